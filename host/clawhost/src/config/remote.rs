//! `[engine.remote]`: a vLLM or SGLang server that generates instead of the built-in engine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clawhost_config::{Secret, duration_text};
use clawhost_remote::{RemoteOptions, ServerKind};
use clawhost_training::{TrainableParameters, TrainingOptions};
use serde::{Deserialize, Serialize};

/// `[engine.remote]`. The model of `[model]` is loaded all the same: it is trained, and the server's log-probs are
/// checked against it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoteConfig {
    /// Base URL without a path, such as "http://127.0.0.1:8000". Plain HTTP only.
    pub url: String,
    /// "vllm" or "sglang".
    #[serde(rename = "backend")]
    pub kind: ServerKind,
    /// Name of the base model on the server.
    pub model: String,
    /// The server's API key itself, or `env:NAME` to read it from the environment. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// Directory that this program and the server see under the same path; adapters are written to it. Required for
    /// training. Default none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "adapter_dir"
    )]
    pub adapters: Option<PathBuf>,
    /// Maximum mean difference, in nats, between the server's log-probs and the local model's. A server in bf16 differs
    /// by 0.01 to 0.03, other weights by more than 0.5. Default 0.05.
    #[serde(default = "agreement", rename = "max_logprob_difference")]
    pub agreement: f64,
    /// Maximum number of concurrent requests to the server; further ones get 429. Default 256.
    #[serde(default = "max_running", rename = "max_concurrent_requests")]
    pub max_running: usize,
    /// Connect timeout. Default "5s".
    #[serde(
        default = "connect_seconds",
        rename = "connect_timeout",
        with = "clawhost_config::Seconds"
    )]
    pub connect_seconds: f64,
    /// Timeout until the server accepts a request. Default "30s".
    #[serde(
        default = "accept_seconds",
        rename = "response_timeout",
        with = "clawhost_config::Seconds"
    )]
    pub accept_seconds: f64,
    /// Timeout for the next token, including the first. Default "2m".
    #[serde(
        default = "two_minutes",
        rename = "token_timeout",
        with = "clawhost_config::Seconds"
    )]
    pub idle_seconds: f64,
    /// Timeout for loading an adapter. Default "2m".
    #[serde(
        default = "two_minutes",
        rename = "adapter_load_timeout",
        with = "clawhost_config::Seconds"
    )]
    pub load_seconds: f64,
    /// Interval of health checks. Default "5s".
    #[serde(
        default = "connect_seconds",
        rename = "health_check_interval",
        with = "clawhost_config::Seconds"
    )]
    pub look_seconds: f64,
}

fn agreement() -> f64 {
    0.05
}

fn max_running() -> usize {
    256
}

fn connect_seconds() -> f64 {
    5.0
}

fn accept_seconds() -> f64 {
    30.0
}

fn two_minutes() -> f64 {
    120.0
}

impl RemoteConfig {
    /// Checks bounds, and that the training options are supported by a remote backend.
    pub(super) fn validate(&self, training: &TrainingOptions) -> Result<()> {
        for (key, value) in [
            ("connect_timeout", self.connect_seconds),
            ("response_timeout", self.accept_seconds),
            ("token_timeout", self.idle_seconds),
            ("adapter_load_timeout", self.load_seconds),
            ("health_check_interval", self.look_seconds),
        ] {
            ensure!(
                (0.001..=86_400.0).contains(&value),
                "engine.remote.{key} = \"{}\": must be between 1ms and 1d",
                duration_text(Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX))
            );
        }
        ensure!(
            self.agreement > 0.0 && self.agreement <= 1.0,
            "engine.remote.max_logprob_difference = {}: must be more than 0 and at most 1",
            self.agreement
        );
        ensure!(
            self.max_running >= 1,
            "engine.remote.max_concurrent_requests = 0: must be at least 1"
        );
        if training.enabled {
            ensure!(
                training.parameters == TrainableParameters::Lora,
                "training.parameters = full: a remote backend takes adapters, not whole weights; use \"lora\" or remove [engine.remote]"
            );
            ensure!(
                self.adapters.is_some(),
                "engine.remote.adapter_dir: training needs a directory that this program and the server share; set it, or set training.enabled = false"
            );
        }
        Ok(())
    }

    /// Resolves the API key and the adapter directory into options of the remote backend.
    pub(crate) fn options(&self, training: &TrainingOptions) -> Result<RemoteOptions> {
        let key = self
            .api_key
            .as_ref()
            .map(|key| key.read().context("engine.remote.api_key"));
        // The other program needs an absolute path.
        let adapters = self
            .adapters
            .as_ref()
            .map(std::path::absolute)
            .transpose()?;
        Ok(RemoteOptions {
            api_key: key.transpose()?,
            adapters,
            lora: training.enabled.then(|| training.lora.clone()),
            max_logprob_difference: self.agreement,
            max_running: self.max_running,
            connect_timeout: Duration::from_secs_f64(self.connect_seconds),
            accept_timeout: Duration::from_secs_f64(self.accept_seconds),
            idle_timeout: Duration::from_secs_f64(self.idle_seconds),
            load_timeout: Duration::from_secs_f64(self.load_seconds),
            health_interval: Duration::from_secs_f64(self.look_seconds),
            ..RemoteOptions::new(self.url.clone(), self.kind, self.model.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    const REMOTE: &str =
        "[engine.remote]\nurl = \"http://127.0.0.1:8000\"\nbackend = \"vllm\"\nmodel = \"m\"\n";

    #[test]
    fn options_unsupported_by_a_remote_backend_are_rejected_with_their_key() {
        let message = |more: &str| {
            let text = format!("{REMOTE}{more}");
            format!("{:#}", Config::parse(&text).unwrap_err())
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

    #[test]
    fn the_api_key_is_read_from_the_environment() {
        let text =
            format!("{REMOTE}adapter_dir = \"s\"\napi_key = \"env:CLAWHOST_TEST_NO_SUCH_KEY\"");
        let config = Config::parse(&text).unwrap();
        let remote = config.engine.remote.unwrap();
        let error = format!("{:#}", remote.options(&config.training).unwrap_err());
        assert!(error.contains("CLAWHOST_TEST_NO_SUCH_KEY"), "{error}");
    }
}
