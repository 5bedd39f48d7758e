//! The cache key of compiled code: a digest of everything that the code depends on.

use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};
use wasmtime::Engine;

use clawhost_config::Profile;

/// The format version. Changes when the cached data or its format changes.
const FORMAT: &[u8] = b"clawhost compiled component 2";

/// Digest of the component, the profile, and the engine's version, settings and target CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CacheKey(String);

impl CacheKey {
    pub(super) fn new(engine: &Engine, profile: Profile, digest: &str) -> CacheKey {
        let mut all = Sha256Hasher(Sha256::new());
        (FORMAT, profile, digest).hash(&mut all);
        engine.precompile_compatibility_hash().hash(&mut all);
        CacheKey(
            all.0
                .finalize()
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect(),
        )
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }
}

/// A hasher with all 256 bits of SHA-256 as its result.
struct Sha256Hasher(Sha256);

impl Hasher for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        u64::from_le_bytes(*digest.first_chunk().expect("a digest has 32 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::WasmRuntime;
    use crate::options::HostOptions;
    use clawhost_config::PluginHostConfig;

    fn key(profile: Profile, pooling: bool, digest: &str) -> CacheKey {
        let options = HostOptions {
            config: PluginHostConfig {
                max_instances: 2,
                ..PluginHostConfig::default()
            },
            pooling,
            ..HostOptions::default()
        };
        let runtime = WasmRuntime::start(profile, &options).unwrap();
        assert_eq!(runtime.pooled, pooling);
        CacheKey::new(&runtime.engine, profile, digest)
    }

    #[test]
    fn the_key_is_equal_for_compatible_engines_only() {
        let deterministic = key(Profile::Deterministic, true, "a");
        assert_eq!(deterministic, key(Profile::Deterministic, false, "a"));
        assert_ne!(deterministic, key(Profile::Fast, true, "a"));
        assert_ne!(deterministic, key(Profile::Deterministic, true, "b"));
        // The engine of the compiler subprocess.
        let bare = Engine::new(&crate::engine::config(Profile::Deterministic)).unwrap();
        assert_eq!(
            deterministic,
            CacheKey::new(&bare, Profile::Deterministic, "a")
        );
    }
}
