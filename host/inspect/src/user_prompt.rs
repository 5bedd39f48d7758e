//! The user prompt of a turn: the last user message of its request that is not ephemeral.
//!
//! Whether a message is ephemeral is detected in the following request and recorded there. So it is known for a turn if
//! it was detected in an earlier or later request; until then the last message counts as the prompt.

use clawhost_chat::Role;
use clawhost_journal::{Journal, JournalError, TurnRecord, TurnSummary};
use clawhost_sessions::{NormalizedMessage, normalize_all};

use crate::preview::truncated;

/// Maximum number of continuations read per reply.
const MAX_READ: u32 = 8;

/// The user prompt of a turn, truncated; `None` without a user message.
pub(crate) fn user_prompt(
    journal: &Journal,
    turn: &TurnRecord,
) -> Result<Option<String>, JournalError> {
    let messages = normalize_all(&turn.messages);
    let mut said = messages.iter().filter(|message| message.role == Role::User);
    let Some(last) = said.next_back() else {
        return Ok(None);
    };
    let asked = match said.next_back() {
        Some(before) if ends_with_ephemeral(journal, turn, &messages)? => before,
        _ => last,
    };
    Ok(Some(truncated(&asked.text)))
}

/// Whether the last message of this request is ephemeral, according to this request or to a continuation of it.
fn ends_with_ephemeral(
    journal: &Journal,
    turn: &TurnRecord,
    messages: &[NormalizedMessage],
) -> Result<bool, JournalError> {
    if messages.last().is_none_or(|last| last.role != Role::User) {
        return Ok(false);
    }
    if turn.matched.ephemeral.is_some() {
        return Ok(true);
    }
    // An ephemeral message follows a user or tool message. In most conversations it does not, so no lookup is needed.
    let behind = messages
        .iter()
        .rev()
        .filter(|message| message.role != Role::System)
        .nth(1);
    if behind.is_none_or(|message| message.role == Role::Assistant) {
        return Ok(false);
    }
    if child_has_ephemeral_note(&journal.children(turn.id, MAX_READ)?) {
        return Ok(true);
    }
    // The conversation may have continued from another reply to the same request.
    for other in journal.turns_in_group(&turn.group)? {
        if other.id != turn.id && child_has_ephemeral_note(&journal.children(other.id, MAX_READ)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn child_has_ephemeral_note(children: &[TurnSummary]) -> bool {
    children
        .iter()
        .any(|child| child.matched.ephemeral.is_some())
}
