//! The judges of a run, and why they return no judgement.

use clawhost_config::{ExperienceOptions, JudgingOptions, PluginsConfig};
use serde_json::Value;

use crate::slots::JudgeSlots;
use crate::status::JudgingStatus;

/// The judges of a run, with their options and status.
pub(crate) struct JudgePanel {
    pub(crate) slots: JudgeSlots,
    pub(crate) options: JudgingOptions,
    /// Whether hints are kept as experience.
    pub(crate) experience: ExperienceOptions,
    /// Settings and limits of the plugins.
    pub(crate) plugins: PluginsConfig,
    pub(crate) status: JudgingStatus,
}

/// A fault stopped judging because the fault policy is `stop`.
#[derive(Debug, thiserror::Error)]
#[error(
    "{plugin} failed on {target} ({fault}) and judging.fault_policy is \"stop\"; the turn stays ready for the next start"
)]
pub(crate) struct StopError {
    pub(crate) plugin: String,
    pub(crate) target: String,
    pub(crate) fault: String,
}

/// The host could not finish the calls. This says nothing about the turn or the plugin, so nothing is recorded and the
/// judgement is retried later.
#[derive(Debug)]
pub(crate) struct Deferral {
    pub(crate) reason: String,
    /// Receipts of the calls that were made; they are recorded with the judgement that replaces this one.
    pub(crate) receipts: Vec<Value>,
}

/// Why judging a turn returned no judgement.
#[derive(Debug)]
pub(crate) enum JudgeError {
    Stopped(StopError),
    Deferred(Deferral),
}

impl JudgeError {
    /// Prepends the receipts of earlier calls.
    pub(crate) fn with_earlier_receipts(self, mut previous: Vec<Value>) -> Self {
        match self {
            Self::Deferred(Deferral { reason, receipts }) => {
                previous.extend(receipts);
                Self::Deferred(Deferral {
                    reason,
                    receipts: previous,
                })
            }
            stopped => stopped,
        }
    }
}

impl From<StopError> for JudgeError {
    fn from(stopped: StopError) -> Self {
        Self::Stopped(stopped)
    }
}
