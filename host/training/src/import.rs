//! Imports an adapter that was trained elsewhere as the first or newest version of a data directory. It is served, its
//! samples refer to it and the next step starts from it, as with an adapter of a training step. The caller provides its
//! provenance.

use std::path::Path;

use clawhost_journal::{AdapterOwner, Journal, NewAdapter, NewStep, StepId, StepOutcome, now_ms};
use clawhost_model::{Model, ModelFiles, TrainedWeights};
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoints, read_optimizer_state};
use crate::error::TrainingError;
use crate::optimizer::OptimizerState;
use crate::step::next_adapter_version;

/// Result of an import.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedAdapter {
    /// Version number of the adapter.
    pub version: u64,
    /// Digest of the adapter.
    pub digest: String,
    /// The step that records the import; it has no trained samples.
    pub step: StepId,
}

/// Inputs of an import.
#[derive(Debug, Clone, Copy)]
pub struct ImportRequest<'a> {
    /// The adapter or the full weights.
    pub weights: &'a TrainedWeights,
    /// Directory whose optimizer state is imported as well; without one the optimizer state is zero.
    pub from: Option<&'a Path>,
    /// The model's other files, which make the checkpoint of full weights a complete model.
    pub files: Option<&'a ModelFiles>,
    /// Origin of the adapter, stored in its provenance.
    pub origin: &'a Value,
    /// Whose adapter it becomes; `None`: the shared one.
    pub owner: Option<&'a AdapterOwner>,
    /// Whether to import into a data directory where the owner already has an active adapter.
    pub promote: bool,
}

/// Imports an adapter as the newest version of the data directory, with the base model as its parent, and activates it for its
/// owner; if a version is pinned, it becomes a candidate. `journal` must be the only writer on `data`, which [`Journal::open`]
/// ensures.
///
/// # Errors
/// A version is active and `promote` is false, the tensor shapes do not match the base model, or a file or the journal
/// cannot be read or written.
pub fn import_adapter(
    journal: &Journal,
    base: &Model,
    data: &Path,
    request: &ImportRequest<'_>,
) -> Result<ImportedAdapter, TrainingError> {
    let weights = request.weights;
    if let Some(row) = journal
        .active_adapter_of(request.owner)?
        .filter(|_| !request.promote)
    {
        return Err(TrainingError::AlreadyTrained {
            version: row.version,
        });
    }
    if !weights.fits(base) {
        return Err(TrainingError::ShapeMismatch);
    }
    let optimizer_state = match request.from {
        Some(dir) => read_optimizer_state(dir, weights)?,
        None => None,
    };
    let started_ms = now_ms();
    let rows = journal.adapters()?;
    let version = next_adapter_version(&rows);
    let digest = weights.digest();
    let checkpoints = Checkpoints::open(data, &rows)?;
    let pending = checkpoints.write(
        version,
        &format!("sha256:{}", base.digest()),
        (weights, request.files),
        &optimizer_state.unwrap_or_else(|| OptimizerState::for_weights(weights)),
    )?;
    let mut provenance = json!({
        "version": version,
        "parent": 0,
        "digest": digest,
        "base_digest": base.digest(),
        "imported": request.origin,
        "samples": [],
        "components": [],
        "program": concat!("clawhost ", env!("CARGO_PKG_VERSION")),
        "created_ms": started_ms,
    });
    if let Some(owner) = request.owner {
        provenance["owner"] = json!(owner);
    }
    let provenance = pending.commit(provenance)?;
    let step = NewStep {
        started_ms,
        ended_ms: now_ms(),
        outcome: StepOutcome::Published,
        reason: Some("imported".to_owned()),
        metrics: json!({"imported": true, "samples": 0}),
        trained: Vec::new(),
        dropped: Vec::new(),
        adapter: Some(NewAdapter {
            version,
            parent: 0,
            digest: digest.clone(),
            path: Checkpoints::relative_path(version),
            provenance,
        }),
        meta: Vec::new(),
        experience: None,
    };
    let step = journal.commit_step_of(request.owner, &step, None)?.id;
    Ok(ImportedAdapter {
        version,
        digest,
        step,
    })
}
