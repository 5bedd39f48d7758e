//! When a watched file was written.

use std::path::Path;
use std::time::SystemTime;

/// File metadata that changes when the file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileStamp {
    modified: Option<SystemTime>,
    bytes: u64,
}

impl FileStamp {
    pub(super) fn read(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            modified: metadata.modified().ok(),
            bytes: metadata.len(),
        })
    }
}
