//! `[server]`: the HTTP endpoint.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clawhost_gateway::{AllowedOrigins, Tls};
use serde::{Deserialize, Serialize};

/// Longest timeout, in seconds: ten years.
pub(super) const LONGEST: f64 = 3650.0 * 86_400.0;

/// `[server]`.
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Listen address. Any address but loopback requires keys, each with its own secret of at least 16 characters.
    /// Default "127.0.0.1".
    pub host: String,
    /// Port; 0 = any free port. Default 30000.
    pub port: u16,
    /// Data directory: journal, adapters and checkpoints. Default "clawhost-data".
    #[serde(rename = "data_dir")]
    pub data: PathBuf,
    /// Additional names of the served model; "*" = any. Default none.
    #[serde(rename = "model_aliases")]
    pub aliases: Vec<String>,
    /// Host names besides loopback ones that are trusted while no keys are configured. Default none.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may call the server from a browser (CORS), such as `https://app.example`; ["*"] = any,
    /// which requires a key. Default none.
    pub allowed_origins: Vec<String>,
    /// PEM file with the server's certificate, followed by the issuers' certificates; requires `tls_key`. Default: no
    /// TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key. Default: no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Maximum size of a request body. Default "8MiB".
    #[serde(rename = "max_body_size", with = "clawhost_config::Size")]
    pub max_body: usize,
    /// Maximum number of concurrent requests. Default 256.
    #[serde(rename = "max_concurrent_requests")]
    pub max_concurrent: usize,
    /// Time after which a connection is closed whose client does not read the response; the reply is recorded as
    /// aborted. Default "30s".
    #[serde(with = "clawhost_config::Seconds")]
    pub write_timeout: f64,
    /// Time that running replies get to finish at shutdown. Default "20s".
    #[serde(rename = "shutdown_timeout", with = "clawhost_config::Seconds")]
    pub shutdown_seconds: f64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 30_000,
            data: PathBuf::from("clawhost-data"),
            aliases: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            tls_cert: None,
            tls_key: None,
            max_body: 8 << 20,
            max_concurrent: 256,
            write_timeout: 30.0,
            shutdown_seconds: 20.0,
        }
    }
}

impl ServerConfig {
    pub(super) fn validate(&self) -> Result<()> {
        anyhow::ensure!(
            self.write_timeout > 0.0 && self.write_timeout <= LONGEST,
            "server.write_timeout: must be more than 0 and at most 3650d"
        );
        self.origins()?;
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), None) => anyhow::bail!(
                "server.tls_cert = {}: requires the certificate's private key; set server.tls_key (--tls-key)",
                cert.display()
            ),
            (None, Some(key)) => anyhow::bail!(
                "server.tls_key = {}: requires the key's certificate; set server.tls_cert (--tls-cert)",
                key.display()
            ),
            _ => Ok(()),
        }
    }

    /// Origins that may call the server from a browser.
    pub(crate) fn origins(&self) -> Result<AllowedOrigins> {
        AllowedOrigins::parse(&self.allowed_origins).context("server.allowed_origins")
    }

    /// The TLS certificate and key, if configured.
    ///
    /// # Errors
    /// A file cannot be read or parsed.
    pub(crate) fn tls(&self) -> Result<Option<Tls>> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Ok(Some(Tls::load(cert, key)?)),
            _ => Ok(None),
        }
    }
}
