//! Showing a turn to the hint extractors: what followed the reply, as advice that was not there when it was made.
//!
//! Whatever follows a reply, and whatever a user says of it, is shown once. All hints are kept: which of them somebody
//! distils from is not decided here. An extractor decides nothing about the turn's reward.

use clawhost_journal::{HintOutcome, HintPlacement, NewHint, now_ms};
use clawhost_plugins::{Extraction, Placement, Trajectory};
use serde_json::{Value, json};

use crate::asking::{About, metrics_json, source};
use crate::judge::Asked;
use crate::judgement::{Bench, Unjudged};

/// Why an extractor that was asked gave no hint, where it failed in nothing.
const NOTHING: &str = "nothing to advise";

impl Bench {
    /// Whether there is anybody to show turns to.
    pub(crate) fn takes_hints(&self) -> bool {
        !self.seats.hints().now().is_empty()
    }

    /// Asks every extractor about one turn. One entry for each time that one was asked, and the receipts.
    pub(crate) async fn hints(
        &self,
        about: &About,
        trajectory: &Trajectory,
        turn: u32,
    ) -> Result<(Vec<NewHint>, Vec<Value>), Unjudged> {
        let bank = self.seats.hints();
        let (mut hints, mut receipts) = (Vec::new(), Vec::new());
        for seat in bank.now().iter() {
            let asked = &*seat.asked;
            let given = self
                .ask(bank, seat, about, |call| {
                    asked.extract(call, trajectory, turn)
                })
                .await
                .map_err(|unjudged| unjudged.after(receipts.clone()))?;
            receipts.extend(given.receipts);
            if given.results.is_empty() {
                hints.push(none(asked, given.fault.clone()));
            }
            for extraction in given.results {
                hints.push(match extraction {
                    Some(extraction) => hint(asked, extraction),
                    None => none(asked, given.fault.clone()),
                });
            }
        }
        Ok((hints, receipts))
    }
}

fn hint(asked: &(impl Asked + ?Sized), extraction: Extraction) -> NewHint {
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
            reason: NOTHING.to_owned(),
        },
    };
    NewHint {
        outcome,
        metrics: metrics_json(&extraction.metrics),
        ..none(asked, None)
    }
}

/// No hint, for the reason of the last fault.
fn none(asked: &(impl Asked + ?Sized), fault: Option<(String, String)>) -> NewHint {
    let (reason, said) = fault.unwrap_or_else(|| (NOTHING.to_owned(), String::new()));
    NewHint {
        source: source(asked),
        digest: asked.digest().to_owned(),
        outcome: HintOutcome::None { reason },
        said,
        metrics: json!({}),
        ms: now_ms(),
    }
}
