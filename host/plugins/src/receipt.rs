//! The resource usage and outcome of one call.

use serde::Serialize;

use crate::fault::{Fault, FaultKind, PluginErrorKind};
use crate::verdict::Verdict;
use clawhost_config::Profile;

/// The resource usage and outcome of one call. Every call has one, whatever its outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Receipt {
    /// Name under which the plugin was loaded.
    pub plugin: String,
    /// sha256 of the component, in hex.
    pub digest: String,
    /// The world that was called, such as `judge-plugin`.
    pub world: &'static str,
    /// `RUN/SAMPLE/ATTEMPT`.
    pub call: String,
    /// The engine profile.
    pub profile: Profile,
    /// CPU ticks of 10 ms that ended while the guest ran.
    pub ticks: u64,
    /// Fuel used; none in the fast profile. Of a call that was ended at its wall limit, up to 10,000,000 units less than
    /// it used.
    pub fuel: Option<u64>,
    /// Largest sum of linear memory, in bytes.
    pub peak_memory_bytes: u64,
    /// Calls from the guest into the host.
    pub host_calls: u64,
    /// Requests to models.
    pub model_calls: u32,
    /// Model tokens, prompt and completion.
    pub model_tokens: u64,
    /// HTTP exchanges.
    pub http_calls: u32,
    /// Log lines that were dropped.
    pub log_lines_dropped: u64,
    /// Time spent waiting for a free instance, in microseconds.
    pub queued_us: u64,
    /// Run time, from creating the instance to its end, in microseconds.
    pub wall_us: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "is", content = "kind")]
pub enum Outcome {
    /// A valid result.
    Ok,
    /// The plugin returned an error.
    Refused(PluginErrorKind),
    /// A fault; the short name of its kind.
    Fault(&'static str),
    /// The host ended a deterministic call at its wall time limit. Not a fault of the plugin.
    DeadlineExceeded,
}

impl Outcome {
    /// The outcome for a fault.
    pub fn of(fault: &Fault) -> Outcome {
        match &fault.kind {
            FaultKind::PluginError { kind, .. } => Outcome::Refused(*kind),
            FaultKind::DeadlineExceeded { .. } => Outcome::DeadlineExceeded,
            other => Outcome::Fault(other.name()),
        }
    }
}

/// The outcome of a call and its receipt.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallResult<T> {
    /// The validated result, or the fault.
    pub outcome: Result<T, Fault>,
    /// The resource usage of the call.
    pub receipt: Receipt,
}

/// The result of a judge call.
pub type JudgeResult = CallResult<Verdict>;
