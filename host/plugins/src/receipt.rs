//! What one call cost and how it ended.

use serde::Serialize;

use crate::fault::{Fault, FaultKind, PluginErrorKind};
use crate::profile::Profile;

/// The account of one call. It exists for every call, whatever its outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Receipt {
    /// Name under which the plugin was loaded.
    pub plugin: String,
    /// sha256 of the component, in hex.
    pub digest: String,
    /// The world that was called, such as `judge-plugin`.
    pub world: &'static str,
    /// Run, sample and attempt.
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
    /// Tokens of models, prompt and completion.
    pub model_tokens: u64,
    /// HTTP exchanges.
    pub http_calls: u32,
    /// Log lines that were dropped.
    pub log_lines_dropped: u64,
    /// Time spent waiting for a free instance, in microseconds.
    pub queued_us: u64,
    /// Time from the start of the instance to its end, in microseconds.
    pub wall_us: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "is", content = "kind")]
pub enum Outcome {
    /// With a result that passed the checks.
    Ok,
    /// With an error that the plugin chose.
    Refused(PluginErrorKind),
    /// With a fault; the short name of its kind.
    Fault(&'static str),
    /// Ended by the host at the wall limit of a deterministic call, without a result. No fault of the plugin.
    DeadlineExceeded,
}

impl Outcome {
    /// The outcome that belongs to a fault.
    pub fn of(fault: &Fault) -> Outcome {
        match &fault.kind {
            FaultKind::PluginError { kind, .. } => Outcome::Refused(*kind),
            FaultKind::DeadlineExceeded { .. } => Outcome::DeadlineExceeded,
            other => Outcome::Fault(other.name()),
        }
    }
}
