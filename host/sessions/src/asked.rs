//! What a person asked in a turn: the last user message of its request that is not a block which the client replaces
//! each time.
//!
//! That a request ended with such a block is seen in the request that comes next, and noted there. So it is known of a
//! turn when that was seen before it, or has been seen since; until then the message counts as asked.

use clawhost_journal::{Journal, TurnHit, TurnRecord};
use serde_json::Value;

use crate::error::SessionError;
use crate::explain::shortened;
use crate::normalise::{Plain, Role, list, plain_all};

/// Requests looked at that go on from one reply: the first that keeps the history tells.
const READ: u32 = 8;

/// What was asked, shortened; none where no user said anything.
pub(crate) fn asked(journal: &Journal, turn: &TurnRecord) -> Result<Option<String>, SessionError> {
    let messages = plain_all(list(&turn.messages));
    let mut said = messages.iter().filter(|message| message.role == Role::User);
    let Some(last) = said.next_back() else {
        return Ok(None);
    };
    let asked = match said.next_back() {
        Some(before) if ends_with_a_block(journal, turn, &messages)? => before,
        _ => last,
    };
    Ok(Some(shortened(&asked.text)))
}

/// The client replaced the last message of this request in the next one, or of the one before in this.
fn ends_with_a_block(
    journal: &Journal,
    turn: &TurnRecord,
    messages: &[Plain],
) -> Result<bool, SessionError> {
    if messages.last().is_none_or(|last| last.role != Role::User) {
        return Ok(false);
    }
    if notes_a_block(&turn.matched) {
        return Ok(true);
    }
    // A block stands behind what was asked or what a tool gave, so most conversations need no look at what came next.
    let behind = messages
        .iter()
        .rev()
        .filter(|message| message.role != Role::System)
        .nth(1);
    if behind.is_none_or(|message| message.role == Role::Assistant) {
        return Ok(false);
    }
    if is_followed_by_another(&journal.children(turn.id, READ)?) {
        return Ok(true);
    }
    // The conversation may have gone on from another reply to the same request.
    for other in journal.group_turns(&turn.group)? {
        let elsewhere = other.id != turn.id;
        if elsewhere && is_followed_by_another(&journal.children(other.id, READ)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_followed_by_another(children: &[TurnHit]) -> bool {
    children.iter().any(|child| notes_a_block(&child.matched))
}

fn notes_a_block(matched: &Value) -> bool {
    matched.get("ephemeral").is_some()
}
