//! The text of experience in the system message.

use crate::message::{Message, Role};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// The line before the entries.
const HEADING: &str = "What this person said about earlier replies, newest first:";

/// The text that consists of these entries, newest first, and the indices of those that fit into `max_tokens`; `None` if
/// none does.
///
/// # Errors
/// As [`Tokenizer::encode`].
pub fn experience_text<'a>(
    entries: impl IntoIterator<Item = &'a str>,
    tokenizer: &Tokenizer,
    max_tokens: usize,
) -> Result<Option<(String, Vec<usize>)>, TokenizerError> {
    let mut text = HEADING.to_owned();
    let mut included = Vec::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let words: Vec<&str> = entry.split_whitespace().collect();
        let longer = format!("{text}\n- {}", words.join(" "));
        if tokenizer.encode(&longer)?.len() <= max_tokens {
            text = longer;
            included.push(index);
        }
    }
    Ok((!included.is_empty()).then_some((text, included)))
}

/// The messages with a paragraph at the end of the first system message, or, if there is none, with a system message in
/// front.
#[must_use]
pub fn with_system_paragraph(messages: &[Message], paragraph: &str) -> Vec<Message> {
    let mut messages = messages.to_vec();
    let system = messages
        .iter_mut()
        .find(|message| message.role() == Role::System);
    match system.and_then(Message::content_mut) {
        // Text parts are joined by a line break, so this is a paragraph of its own.
        Some(content) => content.push_text(format!("\n{paragraph}")),
        None => messages.insert(0, Message::system(paragraph)),
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_is_added_to_the_system_message_or_becomes_one() {
        let messages = [Message::system("S"), Message::user("U")];
        let placed = with_system_paragraph(&messages, "P");
        assert_eq!(placed[0].text(), "S\n\nP");
        assert_eq!(placed[1..], messages[1..]);
        let alone = with_system_paragraph(&messages[1..], "P");
        assert_eq!(alone, [Message::system("P"), Message::user("U")]);
    }
}
