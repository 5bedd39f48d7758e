//! `[[api_keys]]`: who may use the server, and for what.

use anyhow::{Context, Result};
use clawhost_config::Secret;
use clawhost_gateway::{ApiKey, RateLimit, Scope};
use serde::{Deserialize, Serialize};

/// One `[[api_keys]]` entry.
#[derive(Clone, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyConfig {
    /// Name of the key in sessions and logs. A key owns what it collects, so names are unique.
    pub name: String,
    /// The secret itself, or `env:NAME` to read it from the environment.
    pub secret: Secret,
    /// Scopes: `chat`, `feedback`, `operator`. Default all three.
    #[serde(default = "all_scopes")]
    pub scopes: Vec<String>,
    /// Requests per minute. Default unlimited.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "requests_per_minute"
    )]
    pub per_minute: Option<u32>,
    /// Adapter version for requests that name none; 0 = the base model. Default: the newest.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "adapter_version"
    )]
    pub adapter: Option<u64>,
}

impl std::fmt::Debug for KeyConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyConfig")
            .field("name", &self.name)
            .field("scopes", &self.scopes)
            .field("per_minute", &self.per_minute)
            .field("adapter", &self.adapter)
            .finish_non_exhaustive()
    }
}

fn all_scopes() -> Vec<String> {
    Scope::ALL.iter().map(|s| s.as_str().to_owned()).collect()
}

impl KeyConfig {
    /// A key with all scopes and no rate limit.
    pub(crate) fn with_all_scopes(name: &str, secret: &str) -> Self {
        Self {
            name: name.to_owned(),
            secret: Secret::new(secret),
            scopes: all_scopes(),
            per_minute: None,
            adapter: None,
        }
    }

    pub(super) fn key(&self) -> Result<ApiKey> {
        let secret = self
            .secret
            .read()
            .with_context(|| format!("the secret of the API key {}", self.name))?;
        let scopes = self
            .scopes
            .iter()
            .map(|s| s.parse::<Scope>())
            .collect::<Result<Vec<_>, _>>()?;
        let key = ApiKey::new(self.name.clone(), &secret, scopes)?;
        let key = match self.per_minute {
            Some(per_minute) => key.with_rate(RateLimit::per_minute(per_minute)),
            None => key,
        };
        Ok(match self.adapter {
            Some(version) => key.with_adapter(version),
            None => key,
        })
    }
}
