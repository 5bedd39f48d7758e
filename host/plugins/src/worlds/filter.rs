//! `filter-plugin`: decides whether a turn that would train does.

use serde::{Deserialize, Serialize};

use crate::bindings::filter as guest;
use crate::call::CallContext;
use crate::conversation::Trajectory;
use crate::convert;
use crate::exports::Export;
use crate::host::Plugin;
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::receipt::CallResult;
use crate::verdict::{CheckResult, Metric};
use clawhost_config::VerdictRules;

/// The validated decision of a filter about one turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// False keeps the turn out of training.
    pub keep: bool,
    /// Why; not empty when the turn is dropped.
    pub reason: String,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

impl Plugin {
    /// Decides whether `trajectory.turns[turn_index]` trains, in a fresh instance. `reward` is none where hints alone
    /// would train it. Dropping the future ends the call.
    pub async fn filter_turn(
        &self,
        call: CallContext,
        trajectory: &Trajectory,
        turn_index: u32,
        reward: Option<f32>,
    ) -> CallResult<Decision> {
        let trajectory = convert::trajectory_to_guest(trajectory);
        let rules = call.limits.verdict;
        call_instance!(
            self,
            call,
            Filter,
            |guest, store| guest.call_decide(&mut *store, &trajectory, turn_index, reward),
            |answer| {
                let decision = from_guest(answer);
                check(&decision, &rules).map(|()| decision)
            }
        )
    }
}

fn from_guest(decision: guest::Decision) -> Decision {
    Decision {
        keep: decision.keep,
        reason: decision.reason,
        metrics: convert::metrics_from_guest(decision.metrics),
    }
}

fn check(decision: &Decision, rules: &VerdictRules) -> Result<(), String> {
    rules.check_metrics(&decision.metrics)?;
    rules.check_text("the reason", &decision.reason)?;
    rules.check_total(decision.reason.len(), &decision.metrics)?;
    if !decision.keep && decision.reason.trim().is_empty() {
        return Err("the turn is dropped without a reason; say why".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_turn_needs_a_reason() {
        let rules = VerdictRules::default();
        let decision = |keep, reason: &str| Decision {
            keep,
            reason: reason.to_owned(),
            metrics: Vec::new(),
        };
        assert_eq!(check(&decision(true, ""), &rules), Ok(()));
        assert_eq!(check(&decision(false, "an address"), &rules), Ok(()));
        for bad in [
            decision(false, " \n"),
            decision(false, &"x".repeat(rules.text_size + 1)),
        ] {
            assert!(check(&bad, &rules).is_err());
        }
        let metric = Metric {
            name: "hits".to_owned(),
            value: f64::NAN,
        };
        let metrics = vec![metric];
        assert!(
            check(
                &Decision {
                    metrics,
                    ..decision(true, "")
                },
                &rules
            )
            .is_err()
        );
    }
}
