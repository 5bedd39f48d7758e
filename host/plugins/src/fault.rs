//! How a call can fail, as a type.
//!
//! Every failure of a component ends here as one [`Fault`]: what was exceeded or broken, where in
//! the guest, and the end of what it wrote to standard error. What a fault does to training is
//! for others to decide; this module only makes sure that it can be told apart.

use serde::Serialize;

use crate::kind::Kind;

/// A call that gave no result.
#[derive(Debug, Clone, PartialEq, Serialize, thiserror::Error)]
#[error("{kind}")]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    /// Guest frames, innermost first; empty when the guest was not running.
    pub frames: Vec<String>,
    /// The end of what the guest wrote to standard error and logged at level `error`, control characters escaped.
    pub stderr: String,
}

/// What went wrong in a call.
#[derive(Debug, Clone, PartialEq, Serialize, thiserror::Error)]
#[serde(tag = "fault", rename_all = "kebab-case")]
pub enum FaultKind {
    /// The CPU budget is spent.
    #[error("CPU budget spent: {used} {unit} used, {limit} allowed; limits.{setting} raises it")]
    Cpu {
        /// What was used.
        used: u64,
        /// What was allowed.
        limit: u64,
        /// `ticks` of 10 ms or units of `fuel`.
        unit: &'static str,
        /// The limit's name in the configuration.
        setting: &'static str,
    },
    /// The wall time of a call in the fast profile is over.
    #[error("no answer within {limit_ms} ms; limits.wall_ms raises it")]
    Wall {
        /// Allowed milliseconds.
        limit_ms: u64,
    },
    /// The wall time of a call in the deterministic profile is over: a condition of the host, no fault of the
    /// component. The same call gives its result when the machine has time for it.
    #[error(
        "not finished within {limit_ms} ms on this machine, which is no fault of the plugin; the call is worth retrying, limits.wall_ms gives it more time"
    )]
    DeadlineExceeded {
        /// Allowed milliseconds.
        limit_ms: u64,
    },
    /// Linear memory beyond the sum that is allowed.
    #[error(
        "asked for {wanted} bytes of memory, {limit} are allowed; limits.memory_bytes raises it"
    )]
    Memory {
        /// Sum over all memories that was asked for.
        wanted: usize,
        /// Allowed sum.
        limit: usize,
    },
    /// Table elements beyond the sum that is allowed.
    #[error(
        "asked for {wanted} table elements, {limit} are allowed; limits.table_elements raises it"
    )]
    Table {
        /// Sum over all tables that was asked for.
        wanted: usize,
        /// Allowed sum.
        limit: usize,
    },
    /// The guest's call stack is exhausted.
    #[error("the guest's call stack is exhausted")]
    Stack,
    /// The guest trapped.
    #[error("the guest trapped: {message}")]
    Trap {
        /// The engine's description.
        message: String,
    },
    /// The result breaks the contract.
    #[error("the result was refused: {message}")]
    BadOutput {
        /// What is wrong with it and what is allowed.
        message: String,
    },
    /// A capability was used that the operator did not grant.
    #[error("denied: {message}")]
    Denied {
        /// What was asked for.
        message: String,
    },
    /// A budget of host calls is spent.
    #[error("{what} budget spent: {used} used, {limit} allowed; limits.{what} raises it")]
    Budget {
        /// The limit's name in the configuration.
        what: &'static str,
        /// What was used.
        used: u64,
        /// What was allowed.
        limit: u64,
    },
    /// The component could not be instantiated.
    #[error("could not be instantiated: {message}")]
    Link {
        /// The engine's description.
        message: String,
    },
    /// The host could not run the call; no fault of the component.
    #[error("the plugin host could not run the call: {message}")]
    Host {
        /// What happened.
        message: String,
    },
    /// The call does not belong to this kind of plugin.
    #[error("a {is} plugin was called as a {wanted} plugin")]
    WrongKind {
        /// What the caller wanted.
        wanted: Kind,
        /// What the component is.
        is: Kind,
    },
    /// The episode ended with an earlier fault, or was graded or closed.
    #[error("the episode is over; start another one")]
    EpisodeOver,
    /// The plugin answered with an error of its own.
    #[error("the plugin reports {kind}: {message}")]
    PluginError {
        /// Which error it chose.
        kind: PluginErrorKind,
        /// Its words, bounded and escaped.
        message: String,
    },
}

/// The errors that a plugin can answer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PluginErrorKind {
    /// The input is outside what the plugin handles.
    Unsupported,
    /// The input breaks the plugin's contract.
    InvalidInput,
    /// A host capability was refused or out of budget.
    Denied,
    /// Worth trying again.
    Transient,
    /// A defect in the plugin.
    Internal,
}

impl std::fmt::Display for PluginErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PluginErrorKind::Unsupported => "unsupported",
            PluginErrorKind::InvalidInput => "invalid-input",
            PluginErrorKind::Denied => "denied",
            PluginErrorKind::Transient => "transient",
            PluginErrorKind::Internal => "internal",
        })
    }
}

impl FaultKind {
    /// The short name used in receipts, metrics and reasons, such as `cpu` or `plugin-error`.
    pub fn name(&self) -> &'static str {
        match self {
            FaultKind::Cpu { .. } => "cpu",
            FaultKind::Wall { .. } => "wall",
            FaultKind::DeadlineExceeded { .. } => "deadline-exceeded",
            FaultKind::Memory { .. } => "memory",
            FaultKind::Table { .. } => "table",
            FaultKind::Stack => "stack",
            FaultKind::Trap { .. } => "trap",
            FaultKind::BadOutput { .. } => "bad-output",
            FaultKind::Denied { .. } => "denied",
            FaultKind::Budget { .. } => "budget",
            FaultKind::Link { .. } => "link",
            FaultKind::Host { .. } => "host",
            FaultKind::WrongKind { .. } => "wrong-kind",
            FaultKind::EpisodeOver => "episode-over",
            FaultKind::PluginError { .. } => "plugin-error",
        }
    }
}

impl Fault {
    /// A fault without guest frames and without output.
    pub fn new(kind: FaultKind) -> Fault {
        Fault {
            kind,
            frames: Vec::new(),
            stderr: String::new(),
        }
    }

    /// The plugin itself said that it has no answer (`unsupported`), which is no failure: the
    /// turn simply gets no verdict from it.
    pub fn is_no_answer(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::PluginError {
                kind: PluginErrorKind::Unsupported,
                ..
            }
        )
    }

    /// Trying the same call again may give another outcome.
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::Wall { .. }
                | FaultKind::DeadlineExceeded { .. }
                | FaultKind::Host { .. }
                | FaultKind::PluginError {
                    kind: PluginErrorKind::Transient,
                    ..
                }
        )
    }

    /// The host ended the call, or could not run it. Says nothing about the plugin or its input: the same call
    /// belongs to be made again when the host is well.
    pub fn is_host_condition(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::DeadlineExceeded { .. } | FaultKind::Host { .. }
        )
    }
}
