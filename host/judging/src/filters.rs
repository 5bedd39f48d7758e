//! Asks the filters about a turn that would train, after the judges and the hint extractors.
//!
//! Every filter has to keep the turn. A filter that fails drops it, because a filter that removes what must not be
//! learned would otherwise let it through whenever it breaks; only `unsupported` means that it has no objection. The
//! turn, its verdicts and its hints stay in the journal.

use clawhost_plugins::Trajectory;

use crate::calls::CallTarget;
use crate::health::ABSTAINED;
use crate::hints::new_experience;
use crate::judgement::{Judgement, Objection};
use crate::panel::{JudgeError, JudgePanel};
use crate::samples::NEUTRAL;

impl JudgePanel {
    /// Whether any filter is loaded.
    pub(crate) fn has_filters(&self) -> bool {
        !self.slots.filters().snapshot().is_empty()
    }

    /// Calls the filters until one objects. Returns what a turn trains with once the filters have seen it: `reward` is what it would train with, as
    /// [`training_reward`](crate::samples::training_reward) returns it. A neutral turn is shown to them too, because the
    /// end of its session may train it, and so is one whose hint may become experience. The objection and the receipts
    /// are added to `judgement`.
    pub(crate) async fn filter_turn(
        &self,
        target: &CallTarget,
        (trajectory, turn): (&Trajectory, u32),
        reward: Result<Option<f32>, String>,
        judgement: &mut Judgement,
    ) -> Result<Result<Option<f32>, String>, JudgeError> {
        let offered = match &reward {
            Ok(reward) => *reward,
            Err(reason) if reason == NEUTRAL => Some(0.0),
            // Its hint may become experience.
            Err(_) if new_experience(&judgement.hints, &self.experience).is_some() => None,
            Err(_) => return Ok(reward),
        };
        let slots = self.slots.filters();
        let mut receipts = Vec::new();
        let mut objection = None;
        for slot in slots.snapshot().iter() {
            let component = &*slot.component;
            let attempts = self
                .call_slot(slots, slot, target, |call| {
                    component.decide(call, trajectory, turn, offered)
                })
                .await
                .map_err(|error| error.with_earlier_receipts(receipts.clone()))?;
            receipts.extend(attempts.receipts);
            let name = component.name();
            let dropped = attempts.results.iter().flatten().find(|one| !one.keep);
            objection = match (dropped, attempts.fault) {
                (Some(decision), _) => Some(Objection {
                    source: format!("dropped by filter {name}"),
                    detail: decision.reason.clone(),
                }),
                (None, Some((reason, detail))) if reason != ABSTAINED => Some(Objection {
                    source: format!("no decision of filter {name}"),
                    detail: format!("{reason}: {detail}"),
                }),
                (None, _) => None,
            };
            if objection.is_some() {
                break;
            }
        }
        judgement.receipts.extend(receipts);
        judgement.objection = objection;
        Ok(match &judgement.objection {
            Some(objection) => Err(objection.skip_reason()),
            None => reward,
        })
    }
}
