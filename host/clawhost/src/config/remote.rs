//! `[engine.remote]`: a vLLM or SGLang server that generates in the place of this program's own batcher.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clawhost_remote::{Kind, RemoteOptions};
use clawhost_training::{Parameters, TrainingOptions};
use serde::{Deserialize, Serialize};

/// `[engine.remote]`. The model of `[model]` is loaded all the same: it is trained, and what the server says is
/// checked against it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteConfig {
    /// Base address without a path, such as "http://127.0.0.1:8000". Plain HTTP only.
    pub url: String,
    /// "vllm" or "sglang".
    pub kind: Kind,
    /// The server's name of the base model.
    pub model: String,
    /// Environment variable that holds the server's key. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Directory that this program and the server see under the same path; adapters are written there. Needed for
    /// training. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapters: Option<PathBuf>,
    /// Largest mean difference, in nats, between the server's log-probs and those of the model here. A server in bf16
    /// is 0.01 to 0.03 away, other weights more than 0.5. Default 0.05.
    #[serde(default = "agreement")]
    pub agreement: f64,
    /// Most requests at the server at once; further ones get 429. Default 256.
    #[serde(default = "max_running")]
    pub max_running: usize,
    /// Longest wait for a connection. Default 5.
    #[serde(default = "connect_seconds")]
    pub connect_seconds: f64,
    /// Longest wait until the server has accepted a request. Default 30.
    #[serde(default = "accept_seconds")]
    pub accept_seconds: f64,
    /// Longest wait for the next token, the first included. Default 120.
    #[serde(default = "two_minutes")]
    pub idle_seconds: f64,
    /// Longest wait until an adapter is loaded. Default 120.
    #[serde(default = "two_minutes")]
    pub load_seconds: f64,
    /// How often the server is asked for its health. Default 5.
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
    /// Checks values that have bounds, and that training can work with it.
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
                training.parameters == Parameters::Lora,
                "training.parameters = full: a server that generates elsewhere takes adapters, not whole weights; take \"lora\", or leave [engine.remote] away"
            );
            ensure!(
                self.adapters.is_some(),
                "engine.remote.adapters: training needs a directory that this program and the server both see; name one, or set training.enabled = false"
            );
        }
        Ok(())
    }

    /// With the key's value, and the shape of the adapters that training will release.
    pub(crate) fn options(&self, training: &TrainingOptions) -> Result<RemoteOptions> {
        let key = self.api_key_env.as_ref().map(|name| {
            std::env::var(name).with_context(|| {
                format!("engine.remote.api_key_env names {name}, which is not set; export it before starting")
            })
        });
        // What is written has to be found by another program.
        let adapters = self
            .adapters
            .as_ref()
            .map(std::path::absolute)
            .transpose()?;
        Ok(RemoteOptions {
            key: key.transpose()?,
            adapters,
            lora: training.enabled.then(|| training.lora.clone()),
            agreement: self.agreement,
            max_running: self.max_running,
            connect: Duration::from_secs_f64(self.connect_seconds),
            accept: Duration::from_secs_f64(self.accept_seconds),
            idle: Duration::from_secs_f64(self.idle_seconds),
            load: Duration::from_secs_f64(self.load_seconds),
            look: Duration::from_secs_f64(self.look_seconds),
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
    fn what_cannot_work_with_a_server_elsewhere_is_refused_by_name() {
        let said = |more: &str| {
            let text = format!("{REMOTE}{more}");
            format!("{:#}", Config::parse(&text).unwrap_err())
        };
        let adapters = "adapters = \"shared\"\n";
        Config::parse(&format!("{REMOTE}{adapters}")).unwrap();
        Config::parse(&format!("{REMOTE}[training]\nenabled = false")).unwrap();
        assert!(said("").contains("engine.remote.adapters"));
        let full = format!("{adapters}[training]\nparameters = \"full\"");
        assert!(said(&full).contains("not whole weights"));
        assert!(said("adaptors = \"x\"").contains("did you mean `adapters`"));
        assert!(said(&format!("{adapters}agreement = 2.0")).contains("engine.remote.agreement"));
        assert!(
            said(&format!("{adapters}idle_seconds = 0.0")).contains("engine.remote.idle_seconds")
        );
    }

    #[test]
    fn a_key_is_taken_from_the_environment() {
        let text = format!("{REMOTE}adapters = \"s\"\napi_key_env = \"CLAWHOST_TEST_NO_SUCH_KEY\"");
        let config = Config::parse(&text).unwrap();
        let remote = config.engine.remote.unwrap();
        let error = remote.options(&config.training).unwrap_err().to_string();
        assert!(error.contains("CLAWHOST_TEST_NO_SUCH_KEY"), "{error}");
    }
}
