//! Settings of the HTTP server.

use std::time::Duration;

use crate::auth::ApiKey;
use crate::limits::RateLimit;
use crate::origins::AllowedOrigins;
use crate::tls::Tls;

/// Settings of a [`Gateway`](crate::Gateway). Start from [`GatewayOptions::new`] and change fields.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// API keys. Without any, every client that reaches the (loopback) address has full access.
    /// Default: none.
    pub keys: Vec<ApiKey>,
    /// Served model name.
    pub model_name: String,
    /// Aliases of the model name, for clients with a fixed model name; `*` matches any.
    /// Default: none.
    pub aliases: Vec<String>,
    /// Trusted host names besides the loopback ones while no keys are configured. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Origins allowed by CORS. Default: none.
    pub allowed_origins: AllowedOrigins,
    /// TLS certificate and key. Default: plain HTTP.
    pub tls: Option<Tls>,
    /// Largest request body in bytes. Default: 8 MiB.
    pub max_body: usize,
    /// Largest request head (target and header fields) in bytes. Default: 32 KiB.
    pub max_head: usize,
    /// Concurrent requests, streams included; more are rejected with 429. Default: 256.
    pub max_concurrent: usize,
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
    /// Timeout after which a connection is closed whose client does not read. Default: 30 s.
    pub write_timeout: Duration,
    /// Time for replies in progress to finish after the stop signal. Default: 20 s.
    pub shutdown_grace: Duration,
    /// Interval of keep-alive comments in idle streams. Default: 15 s.
    pub keep_alive: Duration,
}

impl GatewayOptions {
    /// The defaults, for a model of this name.
    pub fn new(model_name: impl Into<String>) -> Self {
        Self {
            keys: Vec::new(),
            model_name: model_name.into(),
            aliases: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: AllowedOrigins::None,
            tls: None,
            max_body: 8 << 20,
            max_head: 32 << 10,
            max_concurrent: 256,
            max_connections: 1024,
            max_choices: 16,
            rate: None,
            max_loaded_versions: 4,
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            shutdown_grace: Duration::from_secs(20),
            keep_alive: Duration::from_secs(15),
        }
    }
}
