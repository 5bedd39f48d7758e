//! Pulls a component: its manifest by digest, then its bytes, from the cache or the registry.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::annotation::file_text;
use crate::blob_cache::BlobCache;
use crate::digest::Digest;
use crate::error::OciError;
use crate::manifest::{MEDIA_TYPES, Manifest};
use crate::pull_options::PullOptions;
use crate::reference::{Reference, Version};
use crate::registry::Registry;
use crate::signature;

/// Largest manifest. The specification makes registries accept 4 MiB; that of a component has a few hundred bytes.
const MAX_MANIFEST: u64 = 1 << 20;
/// The annotation of the manifest that has the component's `plugin.toml`, in base64.
const PLUGIN_TOML: &str = "io.clawhost.plugin-toml";

/// A component that was pulled and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// The component's bytes.
    pub component: Vec<u8>,
    /// Text of its `plugin.toml`, if it has one.
    pub plugin_toml: Option<String>,
}

/// Pulls components, and remembers their manifests.
#[derive(Debug)]
pub struct Puller {
    options: PullOptions,
    cache: BlobCache,
    /// Manifests of this process, so that a running server never needs its registry again, whatever happens to the cache.
    manifests: Mutex<BTreeMap<Digest, Vec<u8>>>,
}

impl Puller {
    /// Requests nothing.
    pub fn new(options: PullOptions) -> Self {
        Self {
            cache: BlobCache::new(options.cache.clone()),
            options,
            manifests: Mutex::default(),
        }
    }

    /// Pulls the component of a reference, from the cache if it is there. Blocks; may be called within a runtime's context.
    ///
    /// # Errors
    /// Why it cannot be pulled, or is rejected.
    pub fn pull(&self, reference: &str) -> Result<Artifact, OciError> {
        let reference = Reference::parse(reference)?;
        block_on(async {
            let mut registry = Registry::new(&reference, &self.options);
            let manifest = self.fetch_manifest(&reference, &mut registry).await?;
            let keys = &self.options.config.trusted_keys;
            let signature = manifest.annotations.get(signature::ANNOTATION);
            if signature.is_none() && !keys.is_empty() {
                return Err(OciError::Unsigned {
                    annotation: signature::ANNOTATION,
                });
            }
            let component = self.fetch_component(&manifest, &mut registry).await?;
            if let Some(signature) = signature.filter(|_| !keys.is_empty()) {
                signature::verify(keys, signature, &component)?;
            }
            Ok(Artifact {
                component,
                plugin_toml: plugin_toml(&manifest)?,
            })
        })
    }

    /// Text of the `plugin.toml` of a reference's component. Of a component that this puller has pulled, nothing is
    /// requested. Blocks, as [`Puller::pull`].
    ///
    /// # Errors
    /// The manifest cannot be pulled.
    pub fn plugin_toml(&self, reference: &str) -> Result<Option<String>, OciError> {
        let reference = Reference::parse(reference)?;
        block_on(async {
            let mut registry = Registry::new(&reference, &self.options);
            let manifest = self.fetch_manifest(&reference, &mut registry).await?;
            plugin_toml(&manifest)
        })
    }

    async fn fetch_manifest(
        &self,
        reference: &Reference,
        registry: &mut Registry<'_>,
    ) -> Result<Manifest, OciError> {
        let what = "the manifest";
        let digest = match &reference.version {
            Version::Digest(digest) => digest,
            Version::Tag(tag) => {
                let path = format!("manifests/{tag}");
                let bytes = registry.get(&path, MEDIA_TYPES, what, MAX_MANIFEST).await?;
                return Err(OciError::Unpinned {
                    tag: tag.clone(),
                    pinned: reference.pinned(&Digest::of(&bytes)),
                });
            }
        };
        let lock = || {
            self.manifests
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let known = lock().get(digest).cloned();
        let bytes = match known.or_else(|| self.cache.read(digest, MAX_MANIFEST)) {
            Some(bytes) => bytes,
            None => {
                let path = format!("manifests/{digest}");
                let bytes = registry.get(&path, MEDIA_TYPES, what, MAX_MANIFEST).await?;
                self.keep(what, digest, &bytes)?;
                bytes
            }
        };
        let manifest = Manifest::parse(&bytes)?;
        lock().insert(digest.clone(), bytes);
        Ok(manifest)
    }

    async fn fetch_component(
        &self,
        manifest: &Manifest,
        registry: &mut Registry<'_>,
    ) -> Result<Vec<u8>, OciError> {
        let (digest, size) = (&manifest.component, manifest.size);
        let limit = self.options.max_component_size;
        if size > limit {
            return Err(OciError::TooLarge { size, limit });
        }
        if let Some(bytes) = self.cache.read(digest, size) {
            return Ok(bytes);
        }
        let (path, what) = (format!("blobs/{digest}"), "the component");
        let bytes = registry.get(&path, "*/*", what, size).await?;
        self.keep(what, digest, &bytes)?;
        Ok(bytes)
    }

    /// Compares what a registry sent with its digest, and stores it.
    fn keep(&self, what: &'static str, digest: &Digest, bytes: &[u8]) -> Result<(), OciError> {
        let found = Digest::of(bytes);
        if found != *digest {
            return Err(OciError::Digest {
                what,
                expected: digest.to_string(),
                found: found.to_string(),
            });
        }
        self.cache.store(digest, bytes);
        Ok(())
    }
}

/// Text of the `plugin.toml` that a manifest has.
fn plugin_toml(manifest: &Manifest) -> Result<Option<String>, OciError> {
    let value = manifest.annotations.get(PLUGIN_TOML);
    value.map(|value| file_text(PLUGIN_TOML, value)).transpose()
}

/// Runs a pull on a thread of its own, because the caller's may be one of a runtime, which must not block on another.
fn block_on<T: Send>(
    pull: impl Future<Output = Result<T, OciError>> + Send,
) -> Result<T, OciError> {
    let failed = |error: std::io::Error| OciError::Client(error.to_string());
    std::thread::scope(|scope| {
        let run = || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().map_err(failed)?.block_on(pull)
        };
        let thread = std::thread::Builder::new().name("pull".to_owned());
        let pulling = thread.spawn_scoped(scope, run).map_err(failed)?;
        match pulling.join() {
            Ok(pulled) => pulled,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
