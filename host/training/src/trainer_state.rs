//! The state that the next step starts from: weights, optimizer state and reward baselines. It is loaded from the journal
//! and the checkpoints at startup, and again whenever an operator or another process changes the active adapter.

use std::sync::Arc;

use clawhost_engine::{Engine, LoadedVersion};
use clawhost_journal::{AdapterOwner, AdapterRow, Journal};
use clawhost_model::{Adapter, TrainedWeights};
use serde_json::Value;

use crate::advantage::Baselines;
use crate::checkpoint::Checkpoints;
use crate::error::TrainingError;
use crate::optimizer::OptimizerState;
use clawhost_config::{TrainableParameters, TrainingOptions};

/// Key of the reward baselines in the journal's `meta` table.
pub(crate) const BASELINES_KEY: &str = "training.baselines";
/// Key of the running mean of the signal in the journal's `meta` table.
pub(crate) const SIGNAL_KEY: &str = "training.signal";

/// An owner's variant of a key of the `meta` table.
pub(crate) fn owner_key(key: &str, owner: Option<&AdapterOwner>) -> String {
    owner.map_or_else(|| key.to_owned(), |owner| format!("{key}/{owner}"))
}

/// The state that the next step starts from.
#[derive(Clone)]
pub(crate) struct TrainerState {
    pub(crate) version: u64,
    /// Digest of the adapter; empty for the base model.
    pub(crate) digest: String,
    pub(crate) weights: TrainedWeights,
    pub(crate) optimizer_state: OptimizerState,
    pub(crate) baselines: Baselines,
}

/// Loads the adapter in `row`, a version of `owner`; without a row, starts from the initial version: the base model or the
/// adapter passed with `--adapter`.
pub(crate) fn load_trainer_state(
    journal: &Journal,
    engine: &Engine,
    (owner, initial): (Option<&AdapterOwner>, LoadedVersion),
    checkpoints: &Checkpoints,
    options: &TrainingOptions,
    row: Option<&AdapterRow>,
    adapters: &[AdapterRow],
) -> Result<TrainerState, TrainingError> {
    let empty = Baselines::new(options.baseline_rate, options.initial_baseline);
    let baselines = match journal.meta(&owner_key(BASELINES_KEY, owner))? {
        Some(text) => empty.with_json(&text)?,
        None => empty,
    };
    let baselines = match journal.meta(&owner_key(SIGNAL_KEY, owner))? {
        Some(text) => baselines.with_signal_text(&text)?,
        None => baselines,
    };
    let Some(row) = row else {
        // Start from the operator's adapter if there is one; otherwise from a new adapter or from the base weights,
        // which the first step copies before it changes them.
        let weights = match initial.weights {
            Some(weights) if initial.version == 0 => {
                check_parameters(options, &weights, || {
                    "the adapter passed with --adapter".to_owned()
                })?;
                weights
            }
            _ => init_weights(engine, options)?,
        };
        return Ok(TrainerState {
            version: 0,
            digest: String::new(),
            optimizer_state: OptimizerState::for_weights(&weights),
            weights,
            baselines,
        });
    };
    let newer = adapters
        .iter()
        .filter(|a| a.owner == row.owner && a.version > row.version)
        .count();
    let newest = newer < options.keep_checkpoints;
    let (weights, optimizer_state) =
        load_recorded_version(row, engine, checkpoints, options, newest)?;
    let optimizer_state = optimizer_state.unwrap_or_else(|| {
        tracing::warn!(
            version = row.version,
            "the optimizer state of this version is no longer stored; starting with a zero state"
        );
        OptimizerState::for_weights(&weights)
    });
    Ok(TrainerState {
        version: row.version,
        // That of an old record may have another form.
        digest: weights.digest(),
        weights,
        optimizer_state,
        baselines,
    })
}

/// Loads the weights of a recorded version, and its optimizer state if retention still keeps it. Fails if the version
/// does not fit the base model or the configuration.
pub(crate) fn load_recorded_version(
    row: &AdapterRow,
    engine: &Engine,
    checkpoints: &Checkpoints,
    options: &TrainingOptions,
    newest: bool,
) -> Result<(TrainedWeights, Option<OptimizerState>), TrainingError> {
    let model = engine.model();
    let recorded = row.provenance.get("base_digest").and_then(Value::as_str);
    let Some(recorded) = recorded.filter(|digest| !digest.is_empty()) else {
        return Err(TrainingError::CorruptCheckpoint {
            path: checkpoints.path(row),
            reason: "its record names no base model".to_owned(),
        });
    };
    if !model.has_digest(recorded)? {
        return Err(TrainingError::BaseModelMismatch {
            version: row.version,
            recorded: recorded.to_owned(),
            present: model.digest().to_owned(),
        });
    }
    let (weights, optimizer_state) = checkpoints.load(row, model, newest)?;
    check_parameters(options, &weights, || {
        format!("adapter version {}", row.version)
    })?;
    Ok((weights, optimizer_state))
}

fn init_weights(
    engine: &Engine,
    options: &TrainingOptions,
) -> Result<TrainedWeights, TrainingError> {
    let model = engine.model();
    Ok(match options.parameters {
        TrainableParameters::Lora => {
            let adapter = Adapter::init(model.config(), options.lora.clone(), options.seed);
            TrainedWeights::Lora(Arc::new(adapter))
        }
        TrainableParameters::Full => TrainedWeights::Full(model.in_memory()?),
    })
}

/// Rejects weights of another kind than `training.parameters`: training cannot continue a LoRA adapter as full weights or
/// the other way round. With training disabled, either kind can be served.
fn check_parameters(
    options: &TrainingOptions,
    weights: &TrainedWeights,
    what: impl FnOnce() -> String,
) -> Result<(), TrainingError> {
    let (found, configured) = (parameters_of(weights), options.parameters);
    if found == configured || !options.enabled {
        return Ok(());
    }
    Err(TrainingError::ParametersMismatch {
        what: what(),
        found,
        configured,
    })
}

/// The kind of these weights.
fn parameters_of(weights: &TrainedWeights) -> TrainableParameters {
    match weights {
        TrainedWeights::Lora(_) => TrainableParameters::Lora,
        TrainedWeights::Full(_) => TrainableParameters::Full,
    }
}
