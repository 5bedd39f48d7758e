//! `group-judge-plugin`: scores all samples of a prompt together.

use crate::call::CallContext;
use crate::conversation::Trajectory;
use crate::convert;
use crate::exports::Export;
use crate::host::{CallResult, Plugin};
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::verdict::Verdict;

impl Plugin {
    /// Scores the trajectories together in a fresh instance and returns one verdict per trajectory, in order. Dropping
    /// the future ends the call.
    pub async fn score_group(
        &self,
        call: CallContext,
        group: &[Trajectory],
    ) -> CallResult<Vec<Verdict>> {
        let Export::GroupJudge(export) = self.export() else {
            return self.wrong_kind(&call, Kind::GroupJudge);
        };
        let export = export.clone();
        let group: Vec<_> = group.iter().map(convert::trajectory_to_guest).collect();
        let rules = call.limits.verdict;
        invoke::on_plugin_threads(self.loaded(), call, move |store| {
            Box::pin(async move {
                let guest = export.instantiate(store).await?;
                let answer = guest
                    .call_score_group(&mut *store, &group)
                    .await
                    .map_err(Stop::while_running)?;
                let verdicts: Vec<Verdict> = answer
                    .map_err(Stop::plugin_error)?
                    .into_iter()
                    .map(convert::verdict_from_guest)
                    .collect();
                if verdicts.len() != group.len() {
                    return Err(Stop::BadOutput(format!(
                        "{} verdicts for a group of {}, expected one per trajectory",
                        verdicts.len(),
                        group.len()
                    )));
                }
                for (i, verdict) in verdicts.iter().enumerate() {
                    rules
                        .check(verdict)
                        .map_err(|error| Stop::BadOutput(format!("verdict {i}: {error}")))?;
                }
                Ok(verdicts)
            })
        })
        .await
    }
}
