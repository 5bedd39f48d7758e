//! What the next step starts from: a copy of what the journal says, loaded at the start and whenever
//! the active adapter was changed elsewhere.

use std::sync::Arc;

use clawhost_journal::{AdapterRow, Journal};
use clawhost_policy::{Adapter, Engine};
use serde_json::Value;

use crate::advantage::Baselines;
use crate::checkpoint::Checkpoints;
use crate::error::TrainingError;
use crate::optimizer::Moments;
use crate::options::TrainingOptions;

/// Key of the running means in the journal's table of small values.
pub(crate) const BASELINES: &str = "training.baselines";

/// The adapter that the next step starts from.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) version: u64,
    /// Empty for the base.
    pub(crate) digest: String,
    pub(crate) adapter: Arc<Adapter>,
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
    let model = engine.model();
    let empty = Baselines::new(options.baseline_rate, options.baseline_start);
    let baselines = match journal.meta(BASELINES)? {
        Some(text) => empty.with_json(&text)?,
        None => empty,
    };
    let zeros = |adapter: &Adapter| Moments::zeros(adapter.tensors().iter().map(|(_, v)| v.len()));
    let Some(row) = row else {
        // An adapter that the operator handed in is where training starts; else a fresh one.
        let active = engine.active();
        let adapter = match active.adapter().cloned() {
            Some(adapter) if active.version == 0 => adapter,
            _ => Arc::new(Adapter::init(
                model.config(),
                options.lora.clone(),
                options.seed,
            )),
        };
        return Ok(Current {
            version: 0,
            digest: String::new(),
            moments: zeros(&adapter),
            adapter,
            baselines,
        });
    };
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
    let newer = adapters.iter().filter(|a| a.version > row.version).count();
    let (adapter, moments) =
        checkpoints.load(row, model.config(), newer < options.keep_checkpoints)?;
    let moments = moments.unwrap_or_else(|| {
        tracing::warn!(
            version = row.version,
            "the optimizer's state of this version is no longer kept; starting from zero moments"
        );
        zeros(&adapter)
    });
    Ok(Current {
        version: row.version,
        digest: row.digest.clone(),
        adapter: Arc::new(adapter),
        moments,
        baselines,
    })
}
