//! Exports the recorded adapter of an owner as a directory that [`import_adapter`](crate::import_adapter) and other tools read.

use std::path::Path;

use clawhost_journal::{AdapterOwner, AdapterRow, Journal, JournalError};

use crate::checkpoint::Checkpoints;
use crate::error::TrainingError;

/// Copies the files of an owner's adapter (`None`: the shared one) to the existing directory `out`: the weights, the provenance
/// and, if it is still stored, the optimizer state. Without `version`, that of the active version. Changes nothing in the data
/// directory, so that a server may be using it.
///
/// # Errors
/// The owner has no adapter, the version is unknown or belongs to another owner, its files were removed or are damaged, or
/// they cannot be copied.
pub fn export_adapter(
    journal: &Journal,
    data: &Path,
    owner: Option<&AdapterOwner>,
    version: Option<u64>,
    out: &Path,
) -> Result<AdapterRow, TrainingError> {
    let row = match version {
        None => journal
            .active_adapter_of(owner)?
            .ok_or_else(|| no_adapter(journal, owner))?,
        Some(version) => {
            let rows = journal.adapters()?;
            let row = rows.into_iter().find(|row| row.version == version);
            let row = row.ok_or(JournalError::UnknownAdapter { version })?;
            if row.owner.as_ref() != owner {
                return Err(TrainingError::AdapterOfAnotherOwner {
                    version,
                    owner: owner_name(row.owner.as_ref()).to_owned(),
                });
            }
            row
        }
    };
    Checkpoints::open_read_only(data).copy_to(&row, out)?;
    Ok(row)
}

/// Says who has adapters.
fn no_adapter(journal: &Journal, owner: Option<&AdapterOwner>) -> TrainingError {
    let rows = match journal.adapters() {
        Ok(rows) => rows,
        Err(error) => return error.into(),
    };
    let mut owners: Vec<&str> = rows
        .iter()
        .map(|row| owner_name(row.owner.as_ref()))
        .collect();
    owners.sort_unstable();
    owners.dedup();
    TrainingError::NoAdapterOfOwner {
        owner: owner_name(owner).to_owned(),
        owners: match owners.is_empty() {
            true => "nobody".to_owned(),
            false => owners.join(", "),
        },
    }
}

/// The owner as `--owner` names it.
fn owner_name(owner: Option<&AdapterOwner>) -> &str {
    owner.map_or("shared", AdapterOwner::as_str)
}
