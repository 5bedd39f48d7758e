//! `[sessions]`: how requests are matched to conversations.

use std::time::Duration;

use clawhost_sessions::SessionOptions;
use serde::{Deserialize, Serialize};

/// `[sessions]`.
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SessionsConfig {
    /// Time without a request after which a session ends. Default "30m".
    #[serde(rename = "idle_timeout", with = "clawhost_config::Minutes")]
    pub idle_minutes: f64,
    /// Time within which an identical first request counts as a retry if its request id, its trace or an aborted
    /// first reply proves it. Default "10m".
    #[serde(rename = "retry_window", with = "clawhost_config::Minutes")]
    pub retry_minutes: f64,
}

impl Default for SessionsConfig {
    fn default() -> Self {
        Self {
            idle_minutes: 30.0,
            retry_minutes: 10.0,
        }
    }
}

impl SessionsConfig {
    pub(crate) fn options(&self) -> SessionOptions {
        let minutes = |m: f64| Duration::from_secs_f64(m * 60.0);
        SessionOptions {
            idle: minutes(self.idle_minutes),
            retry_window: minutes(self.retry_minutes),
        }
    }
}
