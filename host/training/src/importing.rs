//! An adapter that was made elsewhere becomes the first version of a data directory: it is served, every sample says
//! that it was drawn from it, and the first step is made from it. Its record says what it was made from, as far as
//! whoever brings it knows.

use std::path::Path;

use clawhost_journal::{Journal, NewAdapter, NewStep, StepId, StepOutcome, now_ms};
use clawhost_policy::{Learned, Model, ModelFiles};
use serde_json::{Value, json};

use crate::checkpoint::Checkpoints;
use crate::current::zeros;
use crate::error::TrainingError;
use crate::trainer::next_version;

/// What became of an import.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The version that the adapter has now.
    pub version: u64,
    /// Its digest.
    pub digest: String,
    /// The step that records it; it trained no sample.
    pub step: StepId,
}

/// Records `learned` as the active version of the data directory, made from the base. `origin` is kept in its
/// provenance; `files` go beside weights. The journal must be the only one that is open on `data` for writing, which
/// [`Journal::open`] sees to.
///
/// # Errors
/// A version is active already, something made for a model of another shape, or a file or the journal that cannot be
/// written.
pub fn import(
    journal: &Journal,
    base: &Model,
    files: Option<&ModelFiles>,
    data: &Path,
    learned: &Learned,
    origin: &Value,
) -> Result<Imported, TrainingError> {
    if let Some(row) = journal.active_adapter()? {
        return Err(TrainingError::AlreadyLearned {
            version: row.version,
        });
    }
    if !learned.fits(base) {
        return Err(TrainingError::OtherShape);
    }
    let started_ms = now_ms();
    let rows = journal.adapters()?;
    let version = next_version(&rows);
    let digest = learned.digest();
    let checkpoints = Checkpoints::open(data, &rows)?;
    let unfinished = checkpoints.begin(
        version,
        &format!("sha256:{}", base.digest()),
        (learned, files),
        &zeros(learned),
    )?;
    let provenance = unfinished.finish(json!({
        "version": version,
        "parent": 0,
        "digest": digest,
        "base_digest": base.digest(),
        "imported": origin,
        "samples": [],
        "components": [],
        "program": concat!("clawhost ", env!("CARGO_PKG_VERSION")),
        "created_ms": started_ms,
    }))?;
    let step = journal.commit_step(&NewStep {
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
            path: Checkpoints::relative(version),
            provenance,
        }),
        meta: Vec::new(),
    })?;
    Ok(Imported {
        version,
        digest,
        step,
    })
}
