//! `gate-plugin`: decides whether a new adapter is published.

use serde::{Deserialize, Serialize};

use crate::bindings::gate as guest;
use crate::bindings::types::Metric as GuestMetric;
use crate::call::CallContext;
use crate::convert;
use crate::exports::Export;
use crate::host::Plugin;
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::receipt::CallResult;
use crate::verdict::{CheckResult, Metric};
use clawhost_config::VerdictRules;

/// A new adapter that is written and verified.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Its version.
    pub version: u64,
    /// The version that the step started from.
    pub parent: u64,
    /// sha256 of the weights, in hex.
    pub digest: String,
    /// Whose adapter it is; none for the shared one.
    #[serde(default)]
    pub owner: Option<String>,
    /// Samples that the step trained on.
    pub samples: u32,
    /// The numbers among the step's metrics, named by their path.
    pub metrics: Vec<Metric>,
}

/// The validated decision of a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Review {
    /// False discards the adapter.
    pub publish: bool,
    /// Why; not empty when the adapter is not published.
    pub reason: String,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

impl Plugin {
    /// Decides whether an adapter is published, in a fresh instance. Dropping the future ends the call.
    pub async fn review_candidate(
        &self,
        call: CallContext,
        candidate: &Candidate,
    ) -> CallResult<Review> {
        let candidate = to_guest(candidate);
        let rules = call.limits.verdict;
        call_instance!(
            self,
            call,
            Gate,
            |guest, store| guest.call_review(&mut *store, &candidate),
            |answer| {
                let review = from_guest(answer);
                check(&review, &rules).map(|()| review)
            }
        )
    }
}

fn to_guest(candidate: &Candidate) -> guest::Candidate {
    let metrics = candidate.metrics.iter().map(|metric| GuestMetric {
        name: metric.name.clone(),
        value: metric.value,
    });
    guest::Candidate {
        version: candidate.version,
        parent: candidate.parent,
        digest: candidate.digest.clone(),
        owner: candidate.owner.clone(),
        samples: candidate.samples,
        metrics: metrics.collect(),
    }
}

fn from_guest(decision: guest::Decision) -> Review {
    Review {
        publish: decision.publish,
        reason: decision.reason,
        metrics: convert::metrics_from_guest(decision.metrics),
    }
}

fn check(review: &Review, rules: &VerdictRules) -> Result<(), String> {
    rules.check_metrics(&review.metrics)?;
    rules.check_text("the reason", &review.reason)?;
    rules.check_total(review.reason.len(), &review.metrics)?;
    if !review.publish && review.reason.trim().is_empty() {
        return Err("the adapter is rejected without a reason; say why".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_adapter_needs_a_reason() {
        let rules = VerdictRules::default();
        let review = |publish, reason: &str| Review {
            publish,
            reason: reason.to_owned(),
            metrics: Vec::new(),
        };
        assert_eq!(check(&review(true, ""), &rules), Ok(()));
        assert_eq!(check(&review(false, "it drifts"), &rules), Ok(()));
        assert!(check(&review(false, " "), &rules).is_err());
        assert!(check(&review(true, &"x".repeat(rules.text_size + 1)), &rules).is_err());
    }
}
