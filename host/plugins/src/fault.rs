//! The typed errors of a plugin call.
//!
//! Every failed call returns one [`Fault`]: which limit or rule was violated, the guest's backtrace, and the end of its
//! standard error. This module classifies failures; the callers decide what a fault means for training.

use serde::Serialize;

use crate::kind::Kind;

/// The error of a call that returned no result.
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
    /// The CPU limit was exceeded.
    #[error(
        "CPU limit exceeded: used {used} of {limit} {unit}; raise limits.{setting} to allow more"
    )]
    Cpu {
        /// Amount used.
        used: u64,
        /// The limit.
        limit: u64,
        /// `ticks` of 10 ms or units of `fuel`.
        unit: &'static str,
        /// The limit's name in the configuration.
        setting: &'static str,
    },
    /// A call of the fast profile exceeded its wall time limit.
    #[error("timed out after {limit_ms} ms; raise limits.wall_time to allow more")]
    Wall {
        /// The limit, in milliseconds.
        limit_ms: u64,
    },
    /// A call of the deterministic profile exceeded its wall time limit. This is a condition of the host and not a fault
    /// of the component: the same call returns its result when the machine is less busy.
    #[error(
        "not finished within {limit_ms} ms because this machine is busy; the plugin is not at fault: retry the call, or raise limits.wall_time"
    )]
    DeadlineExceeded {
        /// The limit, in milliseconds.
        limit_ms: u64,
    },
    /// The sum of linear memory exceeded its limit.
    #[error(
        "memory limit exceeded: requested {wanted} bytes, the limit is {limit}; raise limits.memory to allow more"
    )]
    Memory {
        /// Requested sum over all memories.
        wanted: usize,
        /// The limit.
        limit: usize,
    },
    /// The sum of table elements exceeded its limit.
    #[error(
        "table limit exceeded: requested {wanted} elements, the limit is {limit}; raise limits.table_elements to allow more"
    )]
    Table {
        /// Requested sum over all tables.
        wanted: usize,
        /// The limit.
        limit: usize,
    },
    /// The guest's call stack is exhausted.
    #[error("the guest's call stack overflowed")]
    Stack,
    /// The guest trapped.
    #[error("the guest trapped: {message}")]
    Trap {
        /// The engine's description.
        message: String,
    },
    /// The result failed validation.
    #[error("invalid result: {message}")]
    BadOutput {
        /// What is wrong with it and what is allowed.
        message: String,
    },
    /// The component used a capability that the operator did not grant.
    #[error("denied: {message}")]
    Denied {
        /// What was requested.
        message: String,
    },
    /// A budget of host calls was exceeded.
    #[error("{what} budget exceeded: used {used} of {limit}; raise limits.{what} to allow more")]
    Budget {
        /// The limit's name in the configuration.
        what: &'static str,
        /// Amount used.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The component could not be instantiated.
    #[error("cannot instantiate the component: {message}")]
    Link {
        /// The engine's description.
        message: String,
    },
    /// The host could not run the call. Not a fault of the component.
    #[error("the plugin host could not run the call: {message}")]
    Host {
        /// What happened.
        message: String,
    },
    /// This kind of plugin does not have the called function.
    #[error("called as a {wanted} plugin, but it is a {is} plugin")]
    WrongKind {
        /// The kind that the caller expected.
        wanted: Kind,
        /// The kind of the component.
        is: Kind,
    },
    /// The episode ended with an earlier fault, or was graded or closed.
    #[error("the episode is over; start another one")]
    EpisodeOver,
    /// The plugin returned an error.
    #[error("the plugin returned {kind}: {message}")]
    PluginError {
        /// The kind of error.
        kind: PluginErrorKind,
        /// Its message, truncated and escaped.
        message: String,
    },
}

/// The errors that a plugin can return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PluginErrorKind {
    /// The plugin does not handle this input.
    Unsupported,
    /// The input is malformed.
    InvalidInput,
    /// A host capability was denied or out of budget.
    Denied,
    /// Worth retrying.
    Transient,
    /// A bug in the plugin.
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
    /// Creates a fault without backtrace and standard error.
    pub fn new(kind: FaultKind) -> Fault {
        Fault {
            kind,
            frames: Vec::new(),
            stderr: String::new(),
        }
    }

    /// The plugin returned `unsupported`: it has no verdict for this input. This is not a failure.
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::PluginError {
                kind: PluginErrorKind::Unsupported,
                ..
            }
        )
    }

    /// Retrying the same call may succeed.
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

    /// The host ended the call or could not run it. This says nothing about the plugin or its input: retry the same
    /// call later.
    pub fn is_host_condition(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::DeadlineExceeded { .. } | FaultKind::Host { .. }
        )
    }
}
