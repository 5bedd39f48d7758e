//! Calls the hint extractors on a turn: they turn the next state and the feedback into advice that was not available
//! when the reply was generated.
//!
//! Every next state and every feedback text is shown to the extractors once. All hints are recorded; training decides
//! which of them it distils from. An extractor has no influence on the reward.

use clawhost_config::ExperienceOptions;
use clawhost_journal::{
    HintOutcome, HintPlacement, MAX_IGNORED_HINT_CHARS, NewExperience, NewHint, PluginMetrics,
    now_ms,
};
use clawhost_plugins::{Extraction, Placement, Trajectory};
use serde_json::Value;

use crate::calls::{CallTarget, metrics_by_name, source_name};
use crate::judge::Component;
use crate::panel::{JudgeError, JudgePanel};

/// The reason recorded when an extractor succeeds without a hint.
const NO_ADVICE: &str = "nothing to advise";

impl JudgePanel {
    /// Whether any hint extractor is loaded.
    pub(crate) fn has_hint_extractors(&self) -> bool {
        !self.slots.hints().snapshot().is_empty()
    }

    /// Calls every extractor on one turn. Returns one entry per attempt, and the receipts.
    pub(crate) async fn extract_hints(
        &self,
        target: &CallTarget,
        trajectory: &Trajectory,
        turn: u32,
    ) -> Result<(Vec<NewHint>, Vec<Value>), JudgeError> {
        let slots = self.slots.hints();
        let (mut hints, mut receipts) = (Vec::new(), Vec::new());
        for slot in slots.snapshot().iter() {
            let component = &*slot.component;
            let attempts = self
                .call_slot(slots, slot, target, |call| {
                    component.extract(call, trajectory, turn)
                })
                .await
                .map_err(|error| error.with_earlier_receipts(receipts.clone()))?;
            receipts.extend(attempts.receipts);
            if attempts.results.is_empty() {
                hints.push(no_hint(component, attempts.fault.clone()));
            }
            for extraction in attempts.results {
                hints.push(match extraction {
                    Some(extraction) => new_hint(component, extraction),
                    None => no_hint(component, attempts.fault.clone()),
                });
            }
        }
        Ok((hints, receipts))
    }
}

/// The hint that is kept as experience: the longest, as in distillation; the first of equally long ones.
pub(crate) fn new_experience(
    hints: &[NewHint],
    options: &ExperienceOptions,
) -> Option<NewExperience> {
    if !options.mode.collects() {
        return None;
    }
    let length = |hint: &NewHint| match &hint.outcome {
        HintOutcome::Hint { text, .. } => text.trim().chars().count(),
        HintOutcome::None { .. } => 0,
    };
    let (hint, _) = hints
        .iter()
        .map(length)
        .enumerate()
        .filter(|(_, length)| *length > MAX_IGNORED_HINT_CHARS)
        .max_by_key(|(index, length)| (*length, std::cmp::Reverse(*index)))?;
    Some(NewExperience {
        hint,
        max_entries: options.max_entries,
    })
}

fn new_hint(component: &(impl Component + ?Sized), extraction: Extraction) -> NewHint {
    let outcome = match extraction.hint {
        Some(hint) => HintOutcome::Hint {
            text: hint.text,
            placement: match hint.placement {
                Placement::LastUser => HintPlacement::LastUser,
                Placement::System => HintPlacement::System,
            },
            confidence: hint.confidence,
        },
        None => HintOutcome::None {
            reason: NO_ADVICE.to_owned(),
        },
    };
    NewHint {
        outcome,
        metrics: metrics_by_name(&extraction.metrics),
        ..no_hint(component, None)
    }
}

/// A missing hint, with the reason of the last fault.
fn no_hint(component: &(impl Component + ?Sized), fault: Option<(String, String)>) -> NewHint {
    let (reason, said) = fault.unwrap_or_else(|| (NO_ADVICE.to_owned(), String::new()));
    NewHint {
        source: source_name(component),
        digest: component.digest().to_owned(),
        outcome: HintOutcome::None { reason },
        said,
        metrics: PluginMetrics::new(),
        ms: now_ms(),
    }
}
