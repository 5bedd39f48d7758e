//! The experience of a key in the system prompt of its requests.
//!
//! The client's messages stay as they are: sessions are matched and recorded by them. The journal records the added text and
//! its entries with the turn, and the prompt's token ids have it as the policy saw it.

use clawhost_chat::{Message, Role};
use clawhost_config::ExperienceMode;
use clawhost_journal::PromptExperience;
use sha2::{Digest, Sha256};

use super::InferenceRequest;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::shared::Shared;

/// Time after which another share of the conversations that begin alike is held out.
const HOLDOUT_PERIOD_MS: i64 = 24 * 60 * 60 * 1000;

/// The experience for the prompt of a request; `None` if its key has none, or if the request is served without it: a side
/// request, or one of a conversation that is held out.
pub(super) fn for_request(
    shared: &Shared,
    caller: &Caller,
    request: &InferenceRequest,
    received_ms: i64,
) -> Result<Option<PromptExperience>, ApiError> {
    let options = &shared.options.experience;
    let is_side = request.session.turn_type.as_deref() == Some("side");
    if !options.mode.injects() || is_side {
        return Ok(None);
    }
    let entries = shared.journal.active_experience(caller.name())?;
    if entries.is_empty() {
        return Ok(None);
    }
    if options.mode == ExperienceMode::Both
        && is_held_out(
            caller.name(),
            &request.messages,
            received_ms,
            options.holdout_share,
        )
    {
        return Ok(None);
    }
    PromptExperience::new(&entries, shared.engine.tokenizer(), options.max_tokens).map_err(
        |error| {
            ApiError::internal(
                "experience_not_tokenized",
                format!("the experience of the key cannot be tokenized: {error}"),
            )
        },
    )
}

/// Whether the conversation is served without experience. Decided by its key and its first user message, which every
/// request of the conversation repeats, and by the day.
fn is_held_out(key: Option<&str>, messages: &[Message], received_ms: i64, share: f64) -> bool {
    let first = messages.iter().find(|message| message.role() == Role::User);
    let text = first.map(Message::text).unwrap_or_default();
    let mut digest = Sha256::new();
    digest.update(received_ms.div_euclid(HOLDOUT_PERIOD_MS).to_le_bytes());
    digest.update(key.unwrap_or_default().as_bytes());
    digest.update([0]);
    digest.update(text.as_bytes());
    let [a, b, c, d, ..] = <[u8; 32]>::from(digest.finalize());
    let drawn = f64::from(u32::from_le_bytes([a, b, c, d])) / (f64::from(u32::MAX) + 1.0);
    drawn < share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_conversations_is_held_out_from_beginning_to_end() {
        let opening = |number: u32| Message::user(format!("question {number}"));
        let held = |messages: &[Message], share| is_held_out(Some("k"), messages, 0, share);
        let count = (0..1000).filter(|n| held(&[opening(*n)], 0.25)).count();
        assert!((200..300).contains(&count), "{count}");
        for number in 0..50 {
            let later = [
                Message::system("S"),
                opening(number),
                Message::assistant("A"),
                Message::user("no"),
            ];
            assert_eq!(held(&later, 0.25), held(&[opening(number)], 0.25));
            assert!(!held(&later, 0.0) && held(&later, 1.0));
        }
        let days = (0..1000)
            .filter(|day| is_held_out(Some("k"), &[opening(1)], day * HOLDOUT_PERIOD_MS, 0.25));
        assert!((200..300).contains(&days.count()));
    }
}
