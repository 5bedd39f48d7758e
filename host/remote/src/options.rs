//! Where the server is and what is expected of it.

use std::path::PathBuf;
use std::time::Duration;

use clawhost_policy::LoraSpec;
use serde::{Deserialize, Serialize};

/// Whose form the server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// vLLM: `/v1/completions` with `return_token_ids`, adapters by `/v1/load_lora_adapter`.
    Vllm,
    /// SGLang: `/generate` with `return_logprob`, adapters by `/load_lora_adapter`.
    Sglang,
}

/// A server that generates.
#[derive(Clone)]
pub struct RemoteOptions {
    /// Base address without a path, such as `http://127.0.0.1:8000`. Plain HTTP.
    pub url: String,
    /// Whose form it speaks.
    pub kind: Kind,
    /// Its name of the base model.
    pub model: String,
    /// Value of the bearer key. Default none.
    pub key: Option<String>,
    /// Directory that this process and the server both see under this path; adapters are written there. Default
    /// none: only the base model is served.
    pub adapters: Option<PathBuf>,
    /// Shape of the adapters that will be released; with it a try is made of loading one at the start. Default none.
    pub lora: Option<LoraSpec>,
    /// Largest mean difference, in nats, between the server's log-probs and those of the weights here. A server in
    /// bf16 is 0.01 to 0.03 away from a pass in f32, other weights are more than 0.5 away. Default 0.05.
    pub agreement: f64,
    /// Most requests at the server at once; further ones are refused as busy. Default 256.
    pub max_running: usize,
    /// Longest wait for a connection. Default 5 s.
    pub connect: Duration,
    /// Longest wait until the server has accepted a request. Default 30 s.
    pub accept: Duration,
    /// Longest wait for the next token, the first included. Default 120 s.
    pub idle: Duration,
    /// Longest wait until an adapter is loaded. Default 120 s.
    pub load: Duration,
    /// How often a server that does not answer is looked for, and one that does is asked for its health. Default 5 s.
    pub look: Duration,
}

impl RemoteOptions {
    /// Defaults for a server.
    pub fn new(url: impl Into<String>, kind: Kind, model: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            kind,
            model: model.into(),
            key: None,
            adapters: None,
            lora: None,
            agreement: 0.05,
            max_running: 256,
            connect: Duration::from_secs(5),
            accept: Duration::from_secs(30),
            idle: Duration::from_secs(120),
            load: Duration::from_secs(120),
            look: Duration::from_secs(5),
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
