//! Explanation of next states that were held back or retracted.

use clawhost_journal::{Retraction, TurnId, TurnRecord};
use serde_json::{Value, json};

use crate::preview::messages_json;

/// Why the next state is unconfirmed: it was held back, and recorded because the session ended, not because a later
/// request confirmed it.
pub(crate) fn unconfirmed_reason(turn: &TurnRecord, around: &[TurnRecord]) -> Option<String> {
    let source = around
        .iter()
        .find(|other| Some(other.id) == turn.next_source)?;
    source.matched.held_messages()?;
    let of_group = |id: TurnId| {
        let mut group = around.iter().filter(|other| other.group == source.group);
        group.any(|other| other.id == id)
    };
    let proved = around.iter().filter_map(|other| other.parent).any(of_group);
    let why = source.matched.next_state.as_ref()?.why.as_deref()?;
    (!proved).then(|| format!("nothing has confirmed it since; it was {why}"))
}

pub(crate) fn retraction_json(retraction: &Retraction) -> Value {
    json!({
        "ms": retraction.ms,
        "why": retraction.reason,
        "source": retraction.source,
        "judged": retraction.judged,
        "next_state": messages_json(&retraction.messages),
    })
}

/// The reason of a retraction, at or after `created_ms`, of a next state that a judgement had seen.
pub(crate) fn retraction_after(turn: &TurnRecord, created_ms: i64) -> Option<&str> {
    let later = |retraction: &&Retraction| retraction.judged && retraction.ms >= created_ms;
    let retraction = turn.retractions.iter().rfind(later)?;
    Some(&retraction.reason)
}
