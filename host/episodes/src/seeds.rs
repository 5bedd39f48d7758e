//! Seeds that follow from the seed of a run and names, so that a run can be repeated.

use sha2::{Digest, Sha256};

/// A seed for `what` of the run with this seed.
pub(crate) fn derive(run: u64, what: &[&str]) -> u64 {
    let mut hash = Sha256::new();
    hash.update(run.to_le_bytes());
    for part in what {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    let mut seed = [0; 8];
    seed.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_by_run_and_name() {
        assert_eq!(derive(1, &["a", "b"]), derive(1, &["a", "b"]));
        assert_ne!(derive(1, &["a", "b"]), derive(2, &["a", "b"]));
        assert_ne!(derive(1, &["a", "b"]), derive(1, &["ab"]));
    }
}
