//! What an operator can set about the HTTP surface.

use std::time::Duration;

use crate::auth::ApiKey;
use crate::limits::RateLimit;
use crate::origins::AllowedOrigins;
use crate::tls::Tls;

/// Settings of a [`Gateway`](crate::Gateway). Start from [`GatewayOptions::new`] and change fields.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// Keys that are let in. Without any, everybody who can reach the (loopback) address is let in.
    /// Default: none.
    pub keys: Vec<ApiKey>,
    /// The name under which the model is served and listed.
    pub model_name: String,
    /// Further names that mean the same model, for clients whose model name is fixed; `*` means any.
    /// Default: none.
    pub aliases: Vec<String>,
    /// Host names beside the loopback ones that are trusted while no keys are configured. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Web pages of other origins that may use this server. Default: none.
    pub allowed_origins: AllowedOrigins,
    /// What connections are encrypted with. Default: they are not.
    pub tls: Option<Tls>,
    /// Largest request body in bytes. Default: 8 MiB.
    pub max_body: usize,
    /// Largest request head (target and header fields) in bytes. Default: 32 KiB.
    pub max_head: usize,
    /// Requests in progress at once, streams included; more are refused with 429. Default: 256.
    pub max_concurrent: usize,
    /// Open connections at once; further ones wait to be accepted. Default: 1,024.
    pub max_connections: usize,
    /// Replies in one request (`n`). Default: 16.
    pub max_choices: u32,
    /// Rate limit for keys that have none of their own. Default: none.
    pub rate: Option<RateLimit>,
    /// Versions beside the active one that requests can still name; of those that are whole copies of the weights
    /// one is held at most. Default: 4.
    pub held_versions: usize,
    /// Time for a request's head, and again for its body, to arrive. Default: 30 s.
    pub read_timeout: Duration,
    /// Time after which a connection is closed whose client takes nothing of what is sent to it. Default: 30 s.
    pub write_timeout: Duration,
    /// Time that replies in progress get to finish after the signal to stop. Default: 20 s.
    pub shutdown_grace: Duration,
    /// Time between comments that keep a silent stream open through proxies. Default: 15 s.
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
            held_versions: 4,
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            shutdown_grace: Duration::from_secs(20),
            keep_alive: Duration::from_secs(15),
        }
    }
}
