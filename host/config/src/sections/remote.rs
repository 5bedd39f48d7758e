//! `[engine.remote]`: a vLLM or SGLang server that generates instead of the built-in engine.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::training::{AdapterScope, TrainableParameters, TrainingOptions};
use crate::rules::{OptionsError, require, require_at_least_one, require_between};
use crate::secret::Secret;

/// The server's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServerKind {
    /// vLLM: `/v1/completions` with `return_token_ids`, adapters by `/v1/load_lora_adapter`.
    Vllm,
    /// SGLang: `/generate` with `return_logprob`, adapters by `/load_lora_adapter`.
    Sglang,
}

/// `[engine.remote]`. The model of `[model]` is loaded all the same: it is trained, and the server's log-probs are
/// checked against it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoteConfig {
    /// Base URL without a path, such as "http://127.0.0.1:8000"; http or https.
    pub url: String,
    /// "vllm" or "sglang".
    pub backend: ServerKind,
    /// Name of the base model on the server.
    pub model: String,
    /// The server's API key itself, or `env:NAME` to read it from the environment. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// Directory that this program and the server see under the same path; adapters are written to it. Required for
    /// training. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_dir: Option<PathBuf>,
    /// Maximum mean difference, in nats, between the server's log-probs and the local model's. A server in bf16 differs
    /// by 0.01 to 0.03, other weights by more than 0.5. Default 0.05.
    #[serde(default = "max_logprob_difference")]
    pub max_logprob_difference: f64,
    /// Maximum number of concurrent requests to the server; further ones get 429. Default 256.
    #[serde(default = "max_concurrent_requests")]
    pub max_concurrent_requests: usize,
    /// Connect timeout. Default "5s".
    #[serde(default = "five_seconds", with = "crate::DurationText")]
    pub connect_timeout: Duration,
    /// Timeout until the server accepts a request. Default "30s".
    #[serde(default = "thirty_seconds", with = "crate::DurationText")]
    pub response_timeout: Duration,
    /// Timeout for the next token, including the first. Default "2m".
    #[serde(default = "two_minutes", with = "crate::DurationText")]
    pub token_timeout: Duration,
    /// Timeout for loading an adapter. Default "2m".
    #[serde(default = "two_minutes", with = "crate::DurationText")]
    pub adapter_load_timeout: Duration,
    /// Interval of health checks. Default "5s".
    #[serde(default = "five_seconds", with = "crate::DurationText")]
    pub health_check_interval: Duration,
}

fn max_logprob_difference() -> f64 {
    0.05
}

fn max_concurrent_requests() -> usize {
    256
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

fn thirty_seconds() -> Duration {
    Duration::from_secs(30)
}

fn two_minutes() -> Duration {
    Duration::from_secs(120)
}

impl RemoteConfig {
    /// A server with the default limits, without an adapter directory.
    pub fn new(url: impl Into<String>, backend: ServerKind, model: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            backend,
            model: model.into(),
            api_key: None,
            adapter_dir: None,
            max_logprob_difference: max_logprob_difference(),
            max_concurrent_requests: max_concurrent_requests(),
            connect_timeout: five_seconds(),
            response_timeout: thirty_seconds(),
            token_timeout: two_minutes(),
            adapter_load_timeout: two_minutes(),
            health_check_interval: five_seconds(),
        }
    }

    /// Checks bounds, and that the training options are supported by a remote backend.
    pub(crate) fn validate(&self, training: &TrainingOptions) -> Result<(), OptionsError> {
        for (key, value) in [
            ("engine.remote.connect_timeout", self.connect_timeout),
            ("engine.remote.response_timeout", self.response_timeout),
            ("engine.remote.token_timeout", self.token_timeout),
            (
                "engine.remote.adapter_load_timeout",
                self.adapter_load_timeout,
            ),
            (
                "engine.remote.health_check_interval",
                self.health_check_interval,
            ),
        ] {
            require_between(
                key,
                value,
                Duration::from_millis(1),
                Duration::from_secs(86_400),
                "must be between 1ms and 1d",
            )?;
        }
        require(
            training.adapters == AdapterScope::Shared,
            "training.adapters",
            "key or user",
            "is not supported with engine.remote, which serves one adapter; use \"shared\"",
        )?;
        require(
            self.max_logprob_difference > 0.0 && self.max_logprob_difference <= 1.0,
            "engine.remote.max_logprob_difference",
            self.max_logprob_difference,
            "must be more than 0 and at most 1",
        )?;
        require_at_least_one(
            "engine.remote.max_concurrent_requests",
            self.max_concurrent_requests,
        )?;
        require(
            !training.enabled || training.parameters == TrainableParameters::Lora,
            "training.parameters",
            training.parameters,
            "a remote backend takes adapters, not whole weights; use \"lora\" or remove [engine.remote]",
        )?;
        require(
            !training.enabled || self.adapter_dir.is_some(),
            "engine.remote.adapter_dir",
            "(none)",
            "training needs a directory that this program and the server share; set it, or set training.enabled = false",
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    const REMOTE: &str =
        "[engine.remote]\nurl = \"http://127.0.0.1:8000\"\nbackend = \"vllm\"\nmodel = \"m\"\n";

    #[test]
    fn options_unsupported_by_a_remote_backend_are_rejected_with_their_key() {
        let message = |more: &str| {
            let text = format!("{REMOTE}{more}");
            format!("{}", Config::parse(&text).unwrap_err())
        };
        let adapters = "adapter_dir = \"shared\"\n";
        Config::parse(&format!("{REMOTE}{adapters}")).unwrap();
        Config::parse(&format!("{REMOTE}[training]\nenabled = false")).unwrap();
        assert!(message("").contains("engine.remote.adapter_dir"));
        let full = format!("{adapters}[training]\nparameters = \"full\"");
        assert!(message(&full).contains("not whole weights"));
        assert!(message("adapter_dor = \"x\"").contains("did you mean `adapter_dir`"));
        assert!(
            message(&format!("{adapters}max_logprob_difference = 2.0"))
                .contains("engine.remote.max_logprob_difference")
        );
        assert!(
            message(&format!("{adapters}token_timeout = \"0s\""))
                .contains("engine.remote.token_timeout")
        );
    }
}
