//! Results of calls, as transcripts have them.

use std::fmt;

use clawhost_plugins::{CallResult, FaultKind};
use serde_json::{Value, json};

/// Why a call has no result.
pub(super) enum CallFailure {
    /// The plugin returned an error, in the form of `expect`.
    PluginError(Value),
    /// A fault, or a transcript that does not fit.
    Invalid(String),
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallFailure::PluginError(error) => error.fmt(f),
            CallFailure::Invalid(reason) => f.write_str(reason),
        }
    }
}

/// The result of a call, or why there is none.
pub(super) fn result<T>(called: CallResult<T>) -> Result<T, CallFailure> {
    called.outcome.map_err(|fault| match fault.kind {
        FaultKind::PluginError { kind, message } => {
            CallFailure::PluginError(json!({"error": kind, "message": message}))
        }
        other => CallFailure::Invalid(if fault.stderr.is_empty() {
            other.to_string()
        } else {
            format!("{other}; standard error ends with: {}", fault.stderr)
        }),
    })
}
