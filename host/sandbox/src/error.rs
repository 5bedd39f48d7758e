//! Why an operation on a machine failed.

use serde::{Deserialize, Serialize};

/// Why an operation on a machine failed. Only [`SandboxError::Unavailable`] is a failure of the host; everything else
/// is caused by the request or by what runs in the machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxError {
    /// The request asks for what the profile does not allow.
    #[error("{0}")]
    Denied(String),
    /// The profile, file, terminal or snapshot does not exist, or the machine has ended.
    #[error("{0}")]
    NotFound(String),
    /// A limit is reached.
    #[error("{0}")]
    QuotaExceeded(String),
    /// The operation did not end in time.
    #[error("the operation did not end in time")]
    Timeout,
    /// The host cannot start or reach the machine.
    #[error("{0}")]
    Unavailable(String),
}
