//! `judge-plugin`: scores one turn.

use crate::call::CallContext;
use crate::calls::Export;
use crate::conversation::Trajectory;
use crate::convert;
use crate::host::{Called, Plugin};
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::verdict::Verdict;

impl Plugin {
    /// Judges `trajectory.turns[turn_index]` in a fresh instance. Dropping the future ends the
    /// call.
    pub async fn score_turn(
        &self,
        call: CallContext,
        trajectory: &Trajectory,
        turn_index: u32,
    ) -> Called<Verdict> {
        let Export::Judge(ready) = self.export() else {
            return self.wrong_kind(&call, Kind::Judge);
        };
        let ready = ready.clone();
        let trajectory = convert::trajectory_to_guest(trajectory);
        let rules = call.limits.verdict;
        invoke::on_plugin_threads(self.loaded(), call, move |store| {
            Box::pin(async move {
                let guest = ready.start(store).await?;
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
