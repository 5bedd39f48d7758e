//! Options of the remote backend.

use std::path::PathBuf;
use std::time::Duration;

use clawhost_policy::LoraSpec;
use serde::{Deserialize, Serialize};

/// The server's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServerKind {
    /// vLLM: `/v1/completions` with `return_token_ids`, adapters by `/v1/load_lora_adapter`.
    Vllm,
    /// SGLang: `/generate` with `return_logprob`, adapters by `/load_lora_adapter`.
    Sglang,
}

/// The address and limits of a remote backend.
#[derive(Clone)]
pub struct RemoteOptions {
    /// Base URL without a path, such as `http://127.0.0.1:8000`. Plain HTTP.
    pub url: String,
    /// The server's API.
    pub kind: ServerKind,
    /// Name of the base model on the server.
    pub model: String,
    /// API key, sent as a bearer token. Default none.
    pub api_key: Option<String>,
    /// Directory that this process and the server see under the same path; adapters are written to it. Default none:
    /// only the base model is served.
    pub adapters: Option<PathBuf>,
    /// Shape of the adapters that will be published; if set, connecting tests loading one. Default none.
    pub lora: Option<LoraSpec>,
    /// Maximum mean difference, in nats, between the server's log-probs and the local model's. A server in bf16 differs
    /// from an f32 pass by 0.01 to 0.03, other weights by more than 0.5. Default 0.05.
    pub max_logprob_difference: f64,
    /// Maximum number of concurrent requests; further ones are rejected as busy. Default 256.
    pub max_running: usize,
    /// Connect timeout. Default 5 s.
    pub connect_timeout: Duration,
    /// Timeout until the server accepts a request. Default 30 s.
    pub accept_timeout: Duration,
    /// Timeout for the next token, including the first. Default 120 s.
    pub idle_timeout: Duration,
    /// Timeout for loading an adapter. Default 120 s.
    pub load_timeout: Duration,
    /// Interval of health checks. Default 5 s.
    pub health_interval: Duration,
}

impl RemoteOptions {
    /// Default options for a server.
    pub fn new(url: impl Into<String>, kind: ServerKind, model: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            kind,
            model: model.into(),
            api_key: None,
            adapters: None,
            lora: None,
            max_logprob_difference: 0.05,
            max_running: 256,
            connect_timeout: Duration::from_secs(5),
            accept_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
            load_timeout: Duration::from_secs(120),
            health_interval: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteOptions")
            .field("url", &self.url)
            .field("kind", &self.kind)
            .field("model", &self.model)
            .field("adapters", &self.adapters)
            .finish_non_exhaustive()
    }
}
