//! What the next step starts from: a copy of what the journal says, loaded at the start and whenever
//! the active adapter was changed elsewhere.

use std::sync::Arc;

use clawhost_journal::{AdapterRow, Journal};
use clawhost_policy::{Adapter, Engine, Learned};
use serde_json::Value;

use crate::advantage::Baselines;
use crate::checkpoint::Checkpoints;
use crate::error::TrainingError;
use crate::optimizer::Moments;
use crate::options::{Parameters, TrainingOptions};

/// Key of the running means in the journal's table of small values.
pub(crate) const BASELINES: &str = "training.baselines";

/// What the next step starts from.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) version: u64,
    /// Empty for the base.
    pub(crate) digest: String,
    pub(crate) learned: Learned,
    pub(crate) moments: Moments<f32>,
    pub(crate) baselines: Baselines,
}

/// Loads what the journal says is active, or starts anew from the base model.
pub(crate) fn take_up(
    journal: &Journal,
    engine: &Engine,
    checkpoints: &Checkpoints,
    options: &TrainingOptions,
    row: Option<&AdapterRow>,
    adapters: &[AdapterRow],
) -> Result<Current, TrainingError> {
    let empty = Baselines::new(options.baseline_rate, options.baseline_start);
    let baselines = match journal.meta(BASELINES)? {
        Some(text) => empty.with_json(&text)?,
        None => empty,
    };
    let Some(row) = row else {
        // What the operator handed in is where training starts; else a fresh adapter, or the base's own weights,
        // which are copied when the first step changes them.
        let active = engine.active();
        let learned = match active.learned {
            Some(learned) if active.version == 0 => {
                check_kind(options, &learned, || "what --adapter handed in".to_owned())?;
                learned
            }
            _ => fresh(engine, options),
        };
        return Ok(Current {
            version: 0,
            digest: String::new(),
            moments: zeros(&learned),
            learned,
            baselines,
        });
    };
    let newer = adapters.iter().filter(|a| a.version > row.version).count();
    let newest = newer < options.keep_checkpoints;
    let (learned, moments) = recorded(row, engine, checkpoints, options, newest)?;
    let moments = moments.unwrap_or_else(|| {
        tracing::warn!(
            version = row.version,
            "the optimizer's state of this version is no longer kept; starting from zero moments"
        );
        zeros(&learned)
    });
    Ok(Current {
        version: row.version,
        digest: row.digest.clone(),
        learned,
        moments,
        baselines,
    })
}

/// What a recorded version had learned, with the optimizer's state where that is still kept, if this base model and
/// this configuration can go on from it.
pub(crate) fn recorded(
    row: &AdapterRow,
    engine: &Engine,
    checkpoints: &Checkpoints,
    options: &TrainingOptions,
    newest: bool,
) -> Result<(Learned, Option<Moments<f32>>), TrainingError> {
    let model = engine.model();
    let recorded = row
        .provenance
        .get("base_digest")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if recorded != model.digest() {
        return Err(TrainingError::OtherBase {
            version: row.version,
            recorded: recorded.to_owned(),
            present: model.digest().to_owned(),
        });
    }
    let (learned, moments) = checkpoints.load(row, model, newest)?;
    check_kind(options, &learned, || {
        format!("adapter version {}", row.version)
    })?;
    Ok((learned, moments))
}

fn fresh(engine: &Engine, options: &TrainingOptions) -> Learned {
    let model = engine.model();
    match options.parameters {
        Parameters::Lora => {
            let adapter = Adapter::init(model.config(), options.lora.clone(), options.seed);
            Learned::Lora(Arc::new(adapter))
        }
        Parameters::Full => Learned::Full(Arc::clone(model)),
    }
}

pub(crate) fn zeros(learned: &Learned) -> Moments<f32> {
    Moments::zeros(learned.tensors().iter().map(|(_, v)| v.len()))
}

/// An adapter does not go on as a copy of the weights, nor the other way round. Serving alone may have either.
fn check_kind(
    options: &TrainingOptions,
    learned: &Learned,
    what: impl FnOnce() -> String,
) -> Result<(), TrainingError> {
    let (found, asked) = (Parameters::of(learned), options.parameters);
    if found == asked || !options.enabled {
        return Ok(());
    }
    Err(TrainingError::OtherParameters {
        what: what(),
        found,
        asked,
    })
}
