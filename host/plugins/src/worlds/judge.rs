//! `judge-plugin`: scores one turn.

use crate::call::CallContext;
use crate::conversation::Trajectory;
use crate::convert;
use crate::exports::Export;
use crate::host::Plugin;
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::receipt::CallResult;
use crate::verdict::{CheckResult, Verdict};

impl Plugin {
    /// Scores `trajectory.turns[turn_index]` in a fresh instance. Dropping the future ends the call.
    pub async fn score_turn(
        &self,
        call: CallContext,
        trajectory: &Trajectory,
        turn_index: u32,
    ) -> CallResult<Verdict> {
        let trajectory = convert::trajectory_to_guest(trajectory);
        let rules = call.limits.verdict;
        call_instance!(
            self,
            call,
            Judge,
            |guest, store| guest.call_score_turn(&mut *store, &trajectory, turn_index),
            |answer| {
                let verdict = convert::verdict_from_guest(answer);
                rules.check(&verdict).map(|()| verdict)
            }
        )
    }
}
