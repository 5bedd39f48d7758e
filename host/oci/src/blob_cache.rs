//! Manifests and components that were pulled before, in one directory, by their digest.
//!
//! What is read is compared with its digest, so a damaged or replaced file is pulled again. Nothing is evicted: a server
//! must be able to start without its registry, and only what the operator named is pulled. A directory that cannot be
//! written is no error.

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

use tempfile::NamedTempFile;

use crate::digest::Digest;

/// The directory; without one, nothing is kept.
#[derive(Debug, Clone)]
pub(crate) struct BlobCache {
    directory: Option<PathBuf>,
}

impl BlobCache {
    pub(crate) fn new(directory: Option<PathBuf>) -> Self {
        Self { directory }
    }

    /// The bytes with this digest, if they are here and not larger than `limit`.
    pub(crate) fn read(&self, digest: &Digest, limit: u64) -> Option<Vec<u8>> {
        let file = File::open(self.directory.as_ref()?.join(digest.hex())).ok()?;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes).ok()?;
        (Digest::of(&bytes) == *digest).then_some(bytes)
    }

    /// Keeps bytes that have been compared with their digest.
    pub(crate) fn store(&self, digest: &Digest, bytes: &[u8]) {
        // Without the cache, they are pulled again.
        let _ = self.try_store(digest, bytes);
    }

    fn try_store(&self, digest: &Digest, bytes: &[u8]) -> io::Result<()> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::DirBuilderExt as _;
            // The directory above is that of compiled code, which only this user may access.
            builder.mode(0o700);
        }
        builder.create(directory)?;
        // Renamed once complete, so that readers never see a partial file.
        let mut file = NamedTempFile::new_in(directory)?;
        file.write_all(bytes)?;
        file.persist(directory.join(digest.hex()))?;
        Ok(())
    }
}
