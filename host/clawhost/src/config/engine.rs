//! `[engine]`: batching and the KV cache.

use clawhost_policy::EngineOptions;
use serde::{Deserialize, Serialize};

use super::remote::RemoteConfig;

/// `[engine]`.
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// Maximum number of requests in one step. Default 64.
    pub max_batch: usize,
    /// Maximum number of waiting requests; further ones get 429. Default 256.
    pub max_waiting: usize,
    /// Maximum number of prompt tokens in one step (chunked prefill). While replies are decoding, a step takes at most
    /// as many prompt tokens as there are replies, or 64 if that is more. Default 512.
    pub prefill_chunk: usize,
    /// Maximum size of the KV cache in MiB, for running requests and for cached prefixes. Memory is allocated on demand
    /// and then reused. A prompt that does not fit is rejected; a reply ends when the cache is full. Default 1024.
    pub cache_megabytes: usize,
    /// Maximum context length in tokens. Default: the model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// Threads of one matrix product, in serving and in training; 0 = all of the machine's. Default 0.
    pub threads: usize,
    /// Remote backend that generates instead of the built-in engine. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteConfig>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let own = EngineOptions::default();
        Self {
            max_batch: own.max_batch,
            max_waiting: own.max_waiting,
            prefill_chunk: own.prefill_chunk,
            cache_megabytes: own.kv_cache_bytes >> 20,
            context: None,
            threads: own.threads,
            remote: None,
        }
    }
}

impl EngineConfig {
    pub(crate) fn options(&self) -> EngineOptions {
        EngineOptions {
            max_batch: self.max_batch,
            max_waiting: self.max_waiting,
            prefill_chunk: self.prefill_chunk,
            kv_cache_bytes: self.cache_megabytes << 20,
            context: self.context,
            threads: self.threads,
            ..EngineOptions::default()
        }
    }
}
