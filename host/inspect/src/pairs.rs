//! Explanation of preference pairs: the turns of a pair, with the complaint between them.

use clawhost_journal::{Journal, JournalError, PairTurns, TurnId, TurnRecord};
use clawhost_sessions::NormalizedMessage;
use serde_json::{Value, json};

use crate::preview::{message_preview, messages_json};

/// The pairs that a turn belongs to.
///
/// # Errors
/// The journal cannot be read.
pub(crate) fn pairs_json(journal: &Journal, turn: TurnId) -> Result<Vec<Value>, JournalError> {
    let pairs = journal.pairs_of_turn(turn)?;
    pairs.iter().map(|pair| pair_json(journal, pair)).collect()
}

fn pair_json(journal: &Journal, pair: &PairTurns) -> Result<Value, JournalError> {
    let load = |turn: Option<TurnId>| -> Result<Option<TurnRecord>, JournalError> {
        Ok(turn.map(|turn| journal.turn(turn)).transpose()?.flatten())
    };
    let rejected = load(pair.rejected)?;
    let accepted = load(Some(pair.accepted))?;
    let complaint = rejected.as_ref().map(|turn| {
        json!({
            "turn": turn.next_source,
            "next_state": turn.next_state.as_deref().map(messages_json),
        })
    });
    Ok(json!({
        "rejected": rejected.as_ref().map(reply_json),
        "complaint": complaint,
        "also_rejected": pair.also_rejected,
        "accepted": accepted.as_ref().map(reply_json),
    }))
}

fn reply_json(turn: &TurnRecord) -> Value {
    let reply = turn.completion.as_ref();
    json!({
        "turn": turn.id,
        "reply": reply.map(|reply| message_preview(&NormalizedMessage::of_reply(&reply.reply))),
    })
}
