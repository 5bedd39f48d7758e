//! `group-judge-plugin`: scores all samples of one prompt together.

use crate::call::CallContext;
use crate::calls::Export;
use crate::conversation::Trajectory;
use crate::convert;
use crate::host::{Called, Plugin};
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::verdict::Verdict;

impl Plugin {
    /// Judges the trajectories together, in a fresh instance: one verdict for each, in order.
    /// Dropping the future ends the call.
    pub async fn score_group(
        &self,
        call: CallContext,
        group: &[Trajectory],
    ) -> Called<Vec<Verdict>> {
        let Export::GroupJudge(ready) = self.export() else {
            return self.wrong_kind(&call, Kind::GroupJudge);
        };
        let ready = ready.clone();
        let group: Vec<_> = group.iter().map(convert::trajectory_to_guest).collect();
        let rules = call.limits.verdict;
        invoke::on_plugin_threads(self.loaded(), call, move |store| {
            Box::pin(async move {
                let guest = ready.start(store).await?;
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
                        "{} verdicts for a group of {}; one for each is expected, in order",
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
