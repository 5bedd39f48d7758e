//! Pulls plugin components from OCI registries.
//!
//! A reference names one manifest by its digest, the manifest names the component by its digest, and everything that is
//! read is compared with these digests, from the cache as from the registry. The registry is not trusted: sizes are
//! bounded, redirects go to https only, and credentials are sent to the registry and to the token service it names, and
//! only if a request without them is refused. With trusted keys, the component must also be signed by one of them.
//!
//! Pulls only. Does not push, list or search, run credential helpers, or decide what a component may do: grants belong to
//! the sha256 of its bytes, wherever they come from.
//!
//! ```
//! use clawhost_oci::{OciError, PullOptions, Puller};
//!
//! let puller = Puller::new(PullOptions::default());
//! // Nothing is requested for a reference that cannot be valid.
//! let error = puller.pull("oci://example.com/Judge").unwrap_err();
//! assert!(matches!(error, OciError::Reference { .. }));
//! ```

mod annotation;
mod blob_cache;
mod credentials;
mod digest;
mod error;
mod manifest;
mod pull_options;
mod puller;
mod reference;
mod registry;
mod signature;

pub use error::OciError;
pub use pull_options::PullOptions;
pub use puller::{Artifact, Puller};
