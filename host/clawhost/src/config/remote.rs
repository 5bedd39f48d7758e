//! `[engine.remote]`: a vLLM or SGLang server that generates instead of the built-in engine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clawhost_remote::{RemoteOptions, ServerKind};
use clawhost_training::{TrainableParameters, TrainingOptions};
use serde::{Deserialize, Serialize};

/// `[engine.remote]`. The model of `[model]` is loaded all the same: it is trained, and the server's log-probs are
/// checked against it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteConfig {
    /// Base URL without a path, such as "http://127.0.0.1:8000". Plain HTTP only.
    pub url: String,
    /// "vllm" or "sglang".
    pub kind: ServerKind,
    /// Name of the base model on the server.
    pub model: String,
    /// Environment variable that holds the server's API key. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Directory that this program and the server see under the same path; adapters are written to it. Required for
    /// training. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapters: Option<PathBuf>,
    /// Maximum mean difference, in nats, between the server's log-probs and the local model's. A server in bf16 differs
    /// by 0.01 to 0.03, other weights by more than 0.5. Default 0.05.
    #[serde(default = "agreement")]
    pub agreement: f64,
    /// Maximum number of concurrent requests to the server; further ones get 429. Default 256.
    #[serde(default = "max_running")]
    pub max_running: usize,
    /// Connect timeout in seconds. Default 5.
    #[serde(default = "connect_seconds")]
    pub connect_seconds: f64,
    /// Timeout in seconds until the server accepts a request. Default 30.
    #[serde(default = "accept_seconds")]
    pub accept_seconds: f64,
    /// Timeout in seconds for the next token, including the first. Default 120.
    #[serde(default = "two_minutes")]
    pub idle_seconds: f64,
    /// Timeout in seconds for loading an adapter. Default 120.
    #[serde(default = "two_minutes")]
    pub load_seconds: f64,
    /// Interval of health checks in seconds. Default 5.
    #[serde(default = "connect_seconds")]
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
            ("connect_seconds", self.connect_seconds),
            ("accept_seconds", self.accept_seconds),
            ("idle_seconds", self.idle_seconds),
            ("load_seconds", self.load_seconds),
            ("look_seconds", self.look_seconds),
        ] {
            ensure!(
                (0.001..=86_400.0).contains(&value),
                "engine.remote.{key} = {value}: must be between 0.001 and 86400"
            );
        }
        ensure!(
            self.agreement > 0.0 && self.agreement <= 1.0,
            "engine.remote.agreement = {}: must be more than 0 and at most 1",
            self.agreement
        );
        ensure!(
            self.max_running >= 1,
            "engine.remote.max_running = 0: must be at least 1"
        );
        if training.enabled {
            ensure!(
                training.parameters == TrainableParameters::Lora,
                "training.parameters = full: a remote backend takes adapters, not whole weights; use \"lora\" or remove [engine.remote]"
            );
            ensure!(
                self.adapters.is_some(),
                "engine.remote.adapters: training needs a directory that this program and the server share; set it, or set training.enabled = false"
            );
        }
        Ok(())
    }

    /// Resolves the API key and the adapter directory into options of the remote backend.
    pub(crate) fn options(&self, training: &TrainingOptions) -> Result<RemoteOptions> {
        let key = self.api_key_env.as_ref().map(|name| {
            std::env::var(name).with_context(|| {
                format!("engine.remote.api_key_env names {name}, which is not set; export it before starting")
            })
        });
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
        "[engine.remote]\nurl = \"http://127.0.0.1:8000\"\nkind = \"vllm\"\nmodel = \"m\"\n";

    #[test]
    fn options_unsupported_by_a_remote_backend_are_rejected_with_their_key() {
        let message = |more: &str| {
            let text = format!("{REMOTE}{more}");
            format!("{:#}", Config::parse(&text).unwrap_err())
        };
        let adapters = "adapters = \"shared\"\n";
        Config::parse(&format!("{REMOTE}{adapters}")).unwrap();
        Config::parse(&format!("{REMOTE}[training]\nenabled = false")).unwrap();
        assert!(message("").contains("engine.remote.adapters"));
        let full = format!("{adapters}[training]\nparameters = \"full\"");
        assert!(message(&full).contains("not whole weights"));
        assert!(message("adaptors = \"x\"").contains("did you mean `adapters`"));
        assert!(message(&format!("{adapters}agreement = 2.0")).contains("engine.remote.agreement"));
        assert!(
            message(&format!("{adapters}idle_seconds = 0.0"))
                .contains("engine.remote.idle_seconds")
        );
    }

    #[test]
    fn the_api_key_is_read_from_the_environment() {
        let text = format!("{REMOTE}adapters = \"s\"\napi_key_env = \"CLAWHOST_TEST_NO_SUCH_KEY\"");
        let config = Config::parse(&text).unwrap();
        let remote = config.engine.remote.unwrap();
        let error = remote.options(&config.training).unwrap_err().to_string();
        assert!(error.contains("CLAWHOST_TEST_NO_SUCH_KEY"), "{error}");
    }
}
