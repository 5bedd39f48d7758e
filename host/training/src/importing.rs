//! An adapter that was made elsewhere becomes the first version of a data directory, or its newest one: it is served,
//! every sample says that it was drawn from it, and the next step is made from it. Its record says what it was made from, as far as
//! whoever brings it knows.

use std::path::Path;

use clawhost_journal::{Journal, NewAdapter, NewStep, StepId, StepOutcome, now_ms};
use clawhost_policy::{Learned, Model, ModelFiles};
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoints, moments_in};
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

/// What is imported, and how.
#[derive(Debug, Clone, Copy)]
pub struct Import<'a> {
    /// The adapter, or the weights.
    pub learned: &'a Learned,
    /// Where it was read from: the optimizer's state that lies there comes along. None: it starts from zero moments.
    pub from: Option<&'a Path>,
    /// What goes beside weights, so that the directory is a whole model.
    pub files: Option<&'a ModelFiles>,
    /// Kept in its provenance.
    pub origin: &'a Value,
    /// Whether it becomes the newest version of a data directory that has learned already.
    pub promote: bool,
}

/// Records what was learned elsewhere, made from the base, as the newest version of the data directory and the active
/// one; where a version is pinned, as a candidate. The journal must be the only one that is open on `data` for writing,
/// which [`Journal::open`] sees to.
///
/// # Errors
/// A version is active already and it is not to be promoted over it, something made for a model of another shape, or a
/// file or the journal that cannot be read or written.
pub fn import(
    journal: &Journal,
    base: &Model,
    data: &Path,
    import: &Import<'_>,
) -> Result<Imported, TrainingError> {
    let learned = import.learned;
    if let Some(row) = journal.active_adapter()?.filter(|_| !import.promote) {
        return Err(TrainingError::AlreadyLearned {
            version: row.version,
        });
    }
    if !learned.fits(base) {
        return Err(TrainingError::OtherShape);
    }
    let moments = match import.from {
        Some(dir) => moments_in(dir, learned)?,
        None => None,
    };
    let started_ms = now_ms();
    let rows = journal.adapters()?;
    let version = next_version(&rows);
    let digest = learned.digest();
    let checkpoints = Checkpoints::open(data, &rows)?;
    let unfinished = checkpoints.begin(
        version,
        &format!("sha256:{}", base.digest()),
        (learned, import.files),
        &moments.unwrap_or_else(|| zeros(learned)),
    )?;
    let provenance = unfinished.finish(json!({
        "version": version,
        "parent": 0,
        "digest": digest,
        "base_digest": base.digest(),
        "imported": import.origin,
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
