//! What `explain` says of next states that are doubtful or were retracted.

use clawhost_journal::{Retraction, TurnId, TurnRecord};
use serde_json::{Value, json};

use crate::explain::shown_messages;

/// Why it is doubtful that the next state continues the conversation: it was held back, and released because the session
/// ended, not because a later request proved it.
pub(crate) fn next_doubt(turn: &TurnRecord, around: &[TurnRecord]) -> Option<String> {
    let source = around
        .iter()
        .find(|other| Some(other.id) == turn.next_source)?;
    let report = source.matched.get("next_state")?;
    report.get("kept_back")?;
    let of_group = |id: TurnId| {
        let mut group = around.iter().filter(|other| other.group == source.group);
        group.any(|other| other.id == id)
    };
    let proved = around.iter().filter_map(|other| other.parent).any(of_group);
    let why = report.get("why").and_then(Value::as_str)?;
    (!proved).then(|| format!("nothing has confirmed it since; it was {why}"))
}

pub(crate) fn shown_retraction(retraction: &Retraction) -> Value {
    json!({
        "ms": retraction.ms,
        "why": retraction.reason,
        "source": retraction.source,
        "judged": retraction.judged,
        "next_state": shown_messages(&retraction.messages),
    })
}

/// Why the next state was retracted by which a sample of this time was judged.
pub(crate) fn retracted_since(turn: &TurnRecord, created_ms: i64) -> Option<&str> {
    let later = |retraction: &&Retraction| retraction.judged && retraction.ms >= created_ms;
    let retraction = turn.retractions.iter().rfind(later)?;
    Some(&retraction.reason)
}
