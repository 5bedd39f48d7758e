//! `hint-plugin`: what happened next, as advice that a teacher can condition on.

use serde::{Deserialize, Serialize};

use crate::bindings::hint_extractor as guest;
use crate::call::CallContext;
use crate::calls::Export;
use crate::conversation::Trajectory;
use crate::convert;
use crate::host::{Called, Plugin};
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::verdict::{Metric, VerdictRules};

/// Where a hint goes in the teacher's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Appended to the last user message.
    LastUser,
    /// A system message of its own before the conversation.
    System,
}

/// Advice that was not there when the reply was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hint {
    /// The advice.
    pub text: String,
    /// Where it goes.
    pub placement: Placement,
    /// From 0 to 1, as the plugin sees it.
    pub confidence: f32,
}

/// What a hint extractor answers for one turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Extraction {
    /// None keeps the turn out of distillation.
    pub hint: Option<Hint>,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

impl Plugin {
    /// Extracts a hint from what followed `trajectory.turns[turn_index]`, in a fresh instance.
    /// Dropping the future ends the call.
    pub async fn extract_hint(
        &self,
        call: CallContext,
        trajectory: &Trajectory,
        turn_index: u32,
    ) -> Called<Extraction> {
        let Export::Hint(ready) = self.export() else {
            return self.wrong_kind(&call, Kind::Hint);
        };
        let ready = ready.clone();
        let trajectory = convert::trajectory_to_guest(trajectory);
        let rules = call.limits.verdict;
        invoke::on_plugin_threads(self.loaded(), call, move |store| {
            Box::pin(async move {
                let guest = ready.start(store).await?;
                let answer = guest
                    .call_extract(&mut *store, &trajectory, turn_index)
                    .await
                    .map_err(Stop::while_running)?;
                let extraction = from_guest(answer.map_err(Stop::plugin_error)?);
                check(&extraction, &rules).map_err(Stop::BadOutput)?;
                Ok(extraction)
            })
        })
        .await
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
        return Err("the hint is empty; answer none where there is nothing to advise".to_owned());
    }
    rules.check_total(hint.text.len(), &extraction.metrics)?;
    if !(0.0..=1.0).contains(&hint.confidence) {
        return Err(format!(
            "the hint's confidence is {}, allowed is 0 to 1",
            hint.confidence
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_says_something_and_how_sure_it_is() {
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
            hint(&"x".repeat(rules.text_bytes + 1), 0.5),
        ] {
            assert!(check(&bad, &rules).is_err());
        }
    }
}
