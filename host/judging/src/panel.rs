//! The judges of a run, where they are called, and why they return no judgement.
//!
//! A judgement is made on the plugin threads, so that it is handed over to them once and its calls are not. Nothing here
//! reads or writes the journal: those threads have a low priority, and on a busy machine a commit there would keep the
//! journal locked while the gateway waits for it.

use std::sync::Arc;

use clawhost_config::{ExperienceOptions, JudgingOptions, PluginsConfig};
use clawhost_plugins::PluginThreads;
use serde_json::Value;

use crate::context::TurnContext;
use crate::judgement::Judgement;
use crate::slots::JudgeSlots;
use crate::status::JudgingStatus;

/// The judges of a run, with their options and status.
pub(crate) struct JudgePanel {
    pub(crate) slots: JudgeSlots,
    /// The threads that run the components, which the host keeps when it reloads one.
    pub(crate) threads: PluginThreads,
    pub(crate) options: JudgingOptions,
    /// Whether hints are kept as experience.
    pub(crate) experience: ExperienceOptions,
    /// Settings and limits of the plugins.
    pub(crate) plugins: PluginsConfig,
    pub(crate) status: JudgingStatus,
}

impl JudgePanel {
    /// Judges one turn. With `may_defer`, a host condition defers the judgement; without it, the judge's verdict is
    /// recorded as missing for that reason. Dropping the future ends the calls; a panic continues in the caller.
    pub(crate) async fn judge_turn(
        self: &Arc<Self>,
        context: &Arc<TurnContext>,
        may_defer: bool,
    ) -> Result<Judgement, JudgeError> {
        let (panel, context) = (Arc::clone(self), Arc::clone(context));
        let judging = async move { panel.call_for_turn(&context, may_defer).await };
        self.threads.run(judging).await
    }

    /// Judges the complete choices of one request; returns one judgement per choice, in order. Otherwise as
    /// [`JudgePanel::judge_turn`].
    pub(crate) async fn judge_group(
        self: &Arc<Self>,
        contexts: &Arc<[TurnContext]>,
        may_defer: bool,
    ) -> Result<Vec<Judgement>, JudgeError> {
        let (panel, contexts) = (Arc::clone(self), Arc::clone(contexts));
        let judging = async move { panel.call_for_group(&contexts, may_defer).await };
        self.threads.run(judging).await
    }
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
