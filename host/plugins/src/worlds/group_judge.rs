//! `group-judge-plugin`: scores all samples of a prompt together.

use crate::bindings::types as guest;
use crate::call::CallContext;
use crate::conversation::Trajectory;
use crate::convert;
use crate::exports::Export;
use crate::host::Plugin;
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::receipt::CallResult;
use crate::verdict::{CheckResult, Verdict};
use clawhost_config::VerdictRules;

impl Plugin {
    /// Scores the trajectories together in a fresh instance and returns one verdict per trajectory, in order. Dropping
    /// the future ends the call.
    pub async fn score_group(
        &self,
        call: CallContext,
        group: &[Trajectory],
    ) -> CallResult<Vec<Verdict>> {
        let group: Vec<_> = group.iter().map(convert::trajectory_to_guest).collect();
        let rules = call.limits.verdict;
        call_instance!(
            self,
            call,
            GroupJudge,
            |guest, store| guest.call_score_group(&mut *store, &group),
            |answer| check(answer, group.len(), &rules)
        )
    }
}

fn check(
    answer: Vec<guest::Verdict>,
    trajectories: usize,
    rules: &VerdictRules,
) -> Result<Vec<Verdict>, String> {
    if answer.len() != trajectories {
        return Err(format!(
            "{} verdicts for a group of {trajectories}, expected one per trajectory",
            answer.len()
        ));
    }
    let verdicts = answer.into_iter().map(convert::verdict_from_guest);
    let check = |(i, verdict): (usize, Verdict)| {
        let checked = rules.check(&verdict).map(|()| verdict);
        checked.map_err(|error| format!("verdict {i}: {error}"))
    };
    verdicts.enumerate().map(check).collect()
}
