//! `hint-plugin`: extracts a hint from the messages that followed a response. The teacher of distillation is conditioned
//! on it.

use serde::{Deserialize, Serialize};

use crate::bindings::hint_extractor as guest;
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

/// Where the hint is inserted in the teacher's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Appended to the last user message.
    LastUser,
    /// A separate system message before the conversation.
    System,
}

/// Advice in hindsight, which the policy did not have when it responded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hint {
    /// The advice.
    pub text: String,
    /// Where it is inserted in the teacher's prompt.
    pub placement: Placement,
    /// The plugin's confidence, from 0 to 1.
    pub confidence: f32,
}

/// The result of a hint extractor for one turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Extraction {
    /// None excludes the turn from distillation.
    pub hint: Option<Hint>,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

impl Plugin {
    /// Extracts a hint from the messages after `trajectory.turns[turn_index]`, in a fresh instance. Dropping the future
    /// ends the call.
    pub async fn extract_hint(
        &self,
        call: CallContext,
        trajectory: &Trajectory,
        turn_index: u32,
    ) -> CallResult<Extraction> {
        let trajectory = convert::trajectory_to_guest(trajectory);
        let rules = call.limits.verdict;
        call_instance!(
            self,
            call,
            Hint,
            |guest, store| guest.call_extract(&mut *store, &trajectory, turn_index),
            |answer| {
                let extraction = from_guest(answer);
                check(&extraction, &rules).map(|()| extraction)
            }
        )
    }
}

fn from_guest(extraction: guest::Extraction) -> Extraction {
    Extraction {
        hint: extraction.hint.map(|hint| Hint {
            text: hint.text,
            placement: match hint.placement {
                guest::Placement::LastUser => Placement::LastUser,
                guest::Placement::System => Placement::System,
            },
            confidence: hint.confidence,
        }),
        metrics: convert::metrics_from_guest(extraction.metrics),
    }
}

fn check(extraction: &Extraction, rules: &VerdictRules) -> Result<(), String> {
    rules.check_metrics(&extraction.metrics)?;
    let Some(hint) = &extraction.hint else {
        return Ok(());
    };
    rules.check_text("the hint", &hint.text)?;
    if hint.text.trim().is_empty() {
        return Err("the hint is empty; return none if there is no advice".to_owned());
    }
    rules.check_total(hint.text.len(), &extraction.metrics)?;
    if !(0.0..=1.0).contains(&hint.confidence) {
        return Err(format!(
            "the hint's confidence is {}, expected 0 to 1",
            hint.confidence
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_needs_text_and_a_valid_confidence() {
        let rules = VerdictRules::default();
        let hint = |text: &str, confidence| Extraction {
            hint: Some(Hint {
                text: text.into(),
                placement: Placement::LastUser,
                confidence,
            }),
            metrics: Vec::new(),
        };
        assert_eq!(check(&hint("write plain prose", 1.0), &rules), Ok(()));
        let none = Extraction {
            hint: None,
            metrics: Vec::new(),
        };
        assert_eq!(check(&none, &rules), Ok(()));
        for bad in [
            hint(" \n", 0.5),
            hint("x", f32::NAN),
            hint("x", -0.1),
            hint("x", 1.1),
            hint(&"x".repeat(rules.text_size + 1), 0.5),
        ] {
            assert!(check(&bad, &rules).is_err());
        }
    }
}
