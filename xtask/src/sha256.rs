//! SHA-256 digests in hex.

use sha2::{Digest, Sha256};

/// The digest in hex.
pub fn hex(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
