//! Settings of the HTTP server.

use std::time::Duration;

use clawhost_config::{AdapterScope, ExperienceOptions, ServerConfig};

use crate::keys::ApiKey;
use crate::limits::RateLimit;
use crate::origins::AllowedOrigins;
use crate::tls::Tls;

/// Most full copies of the weights in memory, including the active one: each is as large as the base model.
pub(crate) const MAX_FULL_COPIES: usize = 2;

/// Settings of a [`Gateway`](crate::Gateway). Start from [`GatewayOptions::new`] and change fields.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// API keys. Without any, every client that reaches the (loopback) address has full access.
    /// Default: none.
    pub keys: Vec<ApiKey>,
    /// Served model name.
    pub model_name: String,
    /// What is configured in `[server]`; the listen address, origins and TLS files are the caller's business.
    pub server: ServerConfig,
    /// Whether prompts get the experience of their key. Default: they do not.
    pub experience: ExperienceOptions,
    /// Whose adapters serve requests. Default: one adapter serves all.
    pub adapters: AdapterScope,
    /// Origins allowed by CORS. Default: none.
    pub allowed_origins: AllowedOrigins,
    /// TLS certificate and key. Default: plain HTTP.
    pub tls: Option<Tls>,
    /// Largest request head (target and header fields) in bytes. Default: 32 KiB.
    pub max_head: usize,
    /// Concurrent connections; more wait in the listen queue. Default: 1,024.
    pub max_connections: usize,
    /// Largest `n` (choices per request). Default: 16.
    pub max_choices: u32,
    /// Rate limit of keys without their own. Default: none.
    pub rate: Option<RateLimit>,
    /// Adapter versions besides the active one that stay loaded and can be requested by name; at most one of them is a
    /// full copy of the weights. Default: 4.
    pub max_loaded_versions: usize,
    /// Timeout for reading a request head, and again for its body. Default: 30 s.
    pub read_timeout: Duration,
    /// Interval of keep-alive comments in idle streams. Default: 15 s.
    pub keep_alive: Duration,
}

impl GatewayOptions {
    /// Most trained versions that are kept in memory to be served: adapters, or full copies of the weights.
    pub fn versions_in_memory(&self, full_copies: bool) -> usize {
        if full_copies {
            MAX_FULL_COPIES
        } else {
            self.max_loaded_versions + 1
        }
    }

    /// The defaults, for a model of this name.
    pub fn new(model_name: impl Into<String>) -> Self {
        Self {
            keys: Vec::new(),
            model_name: model_name.into(),
            server: ServerConfig::default(),
            experience: ExperienceOptions::default(),
            adapters: AdapterScope::default(),
            allowed_origins: AllowedOrigins::None,
            tls: None,
            max_head: 32 << 10,
            max_connections: 1024,
            max_choices: 16,
            rate: None,
            max_loaded_versions: 4,
            read_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(15),
        }
    }
}
