//! `judge-plugin`: scores one turn.

use crate::call::CallContext;
use crate::conversation::Trajectory;
use crate::convert;
use crate::exports::Export;
use crate::host::{CallResult, Plugin};
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::verdict::Verdict;

impl Plugin {
    /// Scores `trajectory.turns[turn_index]` in a fresh instance. Dropping the future ends the call.
    pub async fn score_turn(
        &self,
        call: CallContext,
        trajectory: &Trajectory,
        turn_index: u32,
    ) -> CallResult<Verdict> {
        let Export::Judge(export) = self.export() else {
            return self.wrong_kind(&call, Kind::Judge);
        };
        let export = export.clone();
        let trajectory = convert::trajectory_to_guest(trajectory);
        let rules = call.limits.verdict;
        invoke::on_plugin_threads(self.loaded(), call, move |store| {
            Box::pin(async move {
                let guest = export.instantiate(store).await?;
                let answer = guest
                    .call_score_turn(&mut *store, &trajectory, turn_index)
                    .await
                    .map_err(Stop::while_running)?;
                let verdict = convert::verdict_from_guest(answer.map_err(Stop::plugin_error)?);
                rules.check(&verdict).map_err(Stop::BadOutput)?;
                Ok(verdict)
            })
        })
        .await
    }
}
