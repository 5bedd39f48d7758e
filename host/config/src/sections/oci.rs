//! `[plugins.oci]`: what plugins from OCI registries must satisfy.

use serde::{Deserialize, Serialize};

use crate::rules::{OptionsError, require};

/// `[plugins.oci]`: plugins named as `oci://REGISTRY/NAME@sha256:DIGEST`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OciConfig {
    /// minisign public keys, the second line of `minisign.pub`. If there are any, a plugin from a registry must have a
    /// signature of its bytes by one of them. Default none: the digest in its reference is what identifies it.
    pub trusted_keys: Vec<String>,
    /// Registries that are reached over http instead of https, as `HOST` or `HOST:PORT`. Those on loopback addresses always
    /// are. Default none.
    pub allow_http: Vec<String>,
}

impl OciConfig {
    pub(crate) fn validate(&self) -> Result<(), OptionsError> {
        for key in &self.trusted_keys {
            let base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
            require(
                key.len() == 56 && key.starts_with("RW") && key.bytes().all(base64),
                "plugins.oci.trusted_keys",
                format!("{key:?}"),
                "must be minisign public keys: RW and 54 further characters",
            )?;
        }
        for registry in &self.allow_http {
            require(
                !registry.is_empty() && !registry.contains(['/', '@', ' ']),
                "plugins.oci.allow_http",
                format!("{registry:?}"),
                "must be HOST or HOST:PORT, without a scheme",
            )?;
        }
        Ok(())
    }
}
