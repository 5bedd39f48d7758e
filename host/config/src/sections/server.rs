//! `[server]`: the HTTP endpoint.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rules::{
    OptionsError, require, require_at_least_one, require_duration, require_size, require_timeout,
};

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
    pub data_dir: PathBuf,
    /// Additional names of the served model; "*" = any. Default none.
    pub model_aliases: Vec<String>,
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
    #[serde(with = "crate::SizeText")]
    pub max_body_size: usize,
    /// Maximum number of concurrent requests, streams included; further ones get 429. Default 256.
    pub max_concurrent_requests: usize,
    /// Time after which a connection is closed whose client does not read the response; the reply is recorded as
    /// aborted. Default "30s".
    #[serde(with = "crate::DurationText")]
    pub write_timeout: Duration,
    /// Time that running replies get to finish at shutdown. Default "20s".
    #[serde(with = "crate::DurationText")]
    pub shutdown_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 30_000,
            data_dir: PathBuf::from("clawhost-data"),
            model_aliases: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            tls_cert: None,
            tls_key: None,
            max_body_size: 8 << 20,
            max_concurrent_requests: 256,
            write_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(20),
        }
    }
}

impl ServerConfig {
    pub(crate) fn validate(&self) -> Result<(), OptionsError> {
        require_timeout("server.write_timeout", self.write_timeout)?;
        require_duration("server.shutdown_timeout", self.shutdown_timeout)?;
        require_at_least_one(
            "server.max_concurrent_requests",
            self.max_concurrent_requests,
        )?;
        require_size(
            "server.max_body_size",
            self.max_body_size as u64,
            1..=u64::MAX,
            "must be at least 1B",
        )?;
        let any = self.allowed_origins.as_slice() == ["*"];
        for origin in self.allowed_origins.iter().filter(|_| !any) {
            require(
                is_origin(origin),
                "server.allowed_origins",
                format!("{origin:?}"),
                "must be scheme://host or scheme://host:port as browsers send it, without a path; or [\"*\"] alone",
            )?;
        }
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), None) => require(
                false,
                "server.tls_cert",
                cert.display(),
                "requires the certificate's private key; set server.tls_key (--tls-key)",
            ),
            (None, Some(key)) => require(
                false,
                "server.tls_key",
                key.display(),
                "requires the key's certificate; set server.tls_cert (--tls-cert)",
            ),
            _ => Ok(()),
        }
    }
}

/// Whether this is the origin of a web page: a scheme and an authority.
fn is_origin(text: &str) -> bool {
    let made_of = |part: &str, more: &[u8]| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || more.contains(&byte);
        !part.is_empty() && part.bytes().all(allowed)
    };
    text.split_once("://")
        .is_some_and(|(scheme, authority)| made_of(scheme, b"+-.") && made_of(authority, b"-._:[]"))
}
