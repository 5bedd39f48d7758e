//! The digest of a model: sha256 over the names of its tensors and the sha256 of each, so that all cores hash. It starts with
//! [`PREFIX`]. Before, it was one sha256 over names and values, without a prefix: that one is only computed to compare a
//! record that has it (see [`crate::Model::has_digest`]).

use std::cmp::Reverse;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest as _, Sha256};

use crate::error::LoadError;

/// Start of a digest that is made from those of the tensors.
pub(crate) const PREFIX: &str = "v2-";

/// Digest of a model with these tensors, by name and number of values. `hash` hashes the values of one of them, by its index,
/// on one of `threads` threads.
///
/// # Errors
/// The error of the first tensor that has one.
pub(crate) fn of_tensors(
    tensors: &[(&str, usize)],
    threads: usize,
    hash: impl Fn(usize) -> Result<Sha256, LoadError> + Sync,
) -> Result<String, LoadError> {
    // The largest first, so that no thread is left with it at the end.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|index| Reverse(tensors[*index].1));
    let (next, hashed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tensors.len().max(1)) {
            scope.spawn(|| {
                while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let digest = hash(*index).map(|hash| hash.finalize());
                    let hashed = hashed.lock();
                    hashed
                        .expect("no thread panics with the lock")
                        .push((*index, digest));
                }
            });
        }
    });
    let mut hashed = hashed.into_inner().expect("no thread has panicked");
    hashed.sort_by_key(|(index, _)| *index);
    let mut all = Sha256::new();
    for (index, digest) in hashed {
        all.update(tensors[index].0.as_bytes());
        all.update([0]);
        all.update(digest?);
    }
    Ok(format!("{PREFIX}{}", hex(&all.finalize())))
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
