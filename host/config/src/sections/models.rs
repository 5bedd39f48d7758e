//! `[models.ALIAS]`: models that plugins can call.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rules::{OptionsError, require, require_between};
use crate::secret::Secret;

/// `[models.ALIAS]`: what stands behind an alias.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelAlias {
    /// `policy` (the served model with its active adapter) or `reference` (its base). Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<LocalModel>,
    /// Base address of an OpenAI-compatible endpoint, with `/v1`. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The endpoint's name of the model. Default the alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The endpoint's API key itself, or `env:NAME` to read it from the environment. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// Timeout of a request to the endpoint. The plugin's own limits are usually shorter. Default "10m".
    #[serde(skip_serializing_if = "Option::is_none", with = "crate::DurationText")]
    pub timeout: Option<Duration>,
    /// Whether log-probs are requested from the endpoint, which not every server returns. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub logprobs: bool,
}

/// One of the models on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LocalModel {
    /// The served model with its active adapter.
    Policy,
    /// Its base, which never changes.
    Reference,
}

impl ModelAlias {
    /// Checks that the alias is one thing, and its values.
    ///
    /// # Errors
    /// The first invalid value, with its key.
    pub fn validate(&self, alias: &str) -> Result<(), OptionsError> {
        let key = format!("models.{alias}");
        require(
            self.source.is_some() != self.url.is_some(),
            key.clone(),
            "{ .. }",
            "needs either source = \"policy\" or \"reference\", or the url of an OpenAI-compatible endpoint",
        )?;
        let endpoint_keys = self.model.is_some()
            || self.api_key.is_some()
            || self.timeout.is_some()
            || self.logprobs;
        require(
            self.url.is_some() || !endpoint_keys,
            key.clone(),
            "{ .. }",
            "model, api_key, timeout and logprobs belong to an endpoint with url",
        )?;
        require_between(
            format!("{key}.timeout"),
            self.timeout(),
            Duration::from_millis(1),
            Duration::from_secs(86_400),
            "must be between 1ms and 1d",
        )
    }

    /// Timeout of a request to the endpoint.
    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(600))
    }
}
