//! `[sessions]`: how requests are matched to conversations.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rules::{OptionsError, require_duration};

/// `[sessions]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SessionOptions {
    /// Time without a request after which a session ends. Default "30m".
    #[serde(with = "crate::DurationText")]
    pub idle_timeout: Duration,
    /// Time after a reply within which an identical *opening* request counts as a retry, and not as a new conversation,
    /// if its request id, its trace or an aborted first reply proves it. A request that contains an earlier reply needs
    /// no window. Default "10m".
    #[serde(with = "crate::DurationText")]
    pub retry_window: Duration,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(30 * 60),
            retry_window: Duration::from_secs(10 * 60),
        }
    }
}

impl SessionOptions {
    pub(crate) fn validate(&self) -> Result<(), OptionsError> {
        require_duration("sessions.idle_timeout", self.idle_timeout)?;
        require_duration("sessions.retry_window", self.retry_window)
    }
}
