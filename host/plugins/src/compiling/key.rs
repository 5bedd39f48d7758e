//! The name under which compiled code is kept: all that it depends on, as one digest.

use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};
use wasmtime::Engine;

use crate::profile::Profile;

/// Changes when what is kept, or how, changes.
const FORMAT: &[u8] = b"clawhost compiled component 2";

/// Component, profile and engine: its version, its settings and the processor that it makes code for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key(String);

impl Key {
    pub(super) fn of(engine: &Engine, profile: Profile, digest: &str) -> Key {
        let mut all = Whole(Sha256::new());
        (FORMAT, profile, digest).hash(&mut all);
        engine.precompile_compatibility_hash().hash(&mut all);
        Key(all
            .0
            .finalize()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect())
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }
}

/// Takes what is hashed and keeps all 256 bits of it.
struct Whole(Sha256);

impl Hasher for Whole {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        let first = digest.first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Machine;
    use crate::options::HostOptions;

    fn key(profile: Profile, pooling: bool, digest: &str) -> Key {
        let options = HostOptions {
            instances: 2,
            pooling,
            ..HostOptions::default()
        };
        let machine = Machine::start(profile, &options).unwrap();
        assert_eq!(machine.pooled, pooling);
        Key::of(&machine.engine, profile, digest)
    }

    #[test]
    fn code_is_shared_by_all_engines_that_can_run_it_and_by_no_others() {
        let steady = key(Profile::Deterministic, true, "a");
        assert_eq!(steady, key(Profile::Deterministic, false, "a"));
        assert_ne!(steady, key(Profile::Fast, true, "a"));
        assert_ne!(steady, key(Profile::Deterministic, true, "b"));
        // What the compiler's process makes.
        let bare = Engine::new(&crate::engine::config(Profile::Deterministic)).unwrap();
        assert_eq!(steady, Key::of(&bare, Profile::Deterministic, "a"));
    }
}
