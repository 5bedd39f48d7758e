//! Incremental detokenization: the text that becomes final with each token.
//!
//! A token may end inside a UTF-8 character, and a vocabulary with word prefixes decodes the first token of a text
//! differently from later ones. So text is held back until its characters are complete, and emitted text is never
//! repeated or retracted.

use std::sync::Arc;

use super::reply_format::is_structural;
use super::tokenizer::Tokenizer;

/// Tokens for which an incomplete character is held back: a character has at most four bytes, so after four it is
/// invalid.
const MAX_HELD_TOKENS: usize = 3;

/// Converts sampled tokens to text, one at a time. Special tokens give no text, except those of reasoning and tool-call
/// formats (the reply parser needs them) or if all are shown.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    show_special: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Byte-level vocabulary: the bytes of an incomplete character.
    Bytes(Vec<u8>),
    /// Any other vocabulary: tokens needed as context to decode the next ones, how many of them are emitted already,
    /// and for how many tokens a character has been incomplete.
    Window {
        ids: Vec<u32>,
        emitted: usize,
        held_tokens: usize,
    },
}

impl Detokenizer {
    /// Creates a detokenizer at the start of a reply.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let state = if tokenizer.raw_bytes(0).is_some() {
            State::Bytes(Vec::new())
        } else {
            State::Window {
                ids: Vec::new(),
                emitted: 0,
                held_tokens: 0,
            }
        };
        Self {
            tokenizer,
            show_special: false,
            state,
        }
    }

    /// Whether the text includes special tokens. Default false.
    #[must_use]
    pub fn with_special_tokens(mut self, shown: bool) -> Self {
        self.show_special = shown;
        self
    }

    /// Adds a token and returns the text that became final; may be empty.
    pub fn push(&mut self, id: u32) -> String {
        if let Some(special) = self.tokenizer.special_text(id) {
            let shown = self.show_special || is_structural(special);
            let shown = shown.then(|| special.to_owned());
            // Held text before a shown special token is final.
            return shown.map_or_else(String::new, |special| self.finish() + &special);
        }
        match &mut self.state {
            State::Bytes(held) => {
                let bytes = self.tokenizer.raw_bytes(id);
                held.extend_from_slice(bytes.expect("the vocabulary is byte-level"));
                take_complete(held)
            }
            State::Window {
                ids,
                emitted,
                held_tokens,
            } => {
                ids.push(id);
                let text = new_text(&self.tokenizer, ids, *emitted);
                if text.is_empty() {
                    return text;
                }
                if text.ends_with(char::REPLACEMENT_CHARACTER) && *held_tokens < MAX_HELD_TOKENS {
                    *held_tokens += 1;
                    return String::new();
                }
                ids.drain(..*emitted);
                *emitted = ids.len();
                *held_tokens = 0;
                text
            }
        }
    }

    /// Returns the held text at the end of the reply. An incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        match &mut self.state {
            State::Bytes(held) => String::from_utf8_lossy(&std::mem::take(held)).into_owned(),
            State::Window {
                ids,
                emitted,
                held_tokens,
            } => {
                let text = new_text(&self.tokenizer, ids, *emitted);
                ids.clear();
                (*emitted, *held_tokens) = (0, 0);
                text
            }
        }
    }
}

/// Text that the tokens after the first `emitted` add to the text of those before.
fn new_text(tokenizer: &Tokenizer, ids: &[u32], emitted: usize) -> String {
    let before = tokenizer.decode(&ids[..emitted]);
    let all = tokenizer.decode(ids);
    match all.strip_prefix(&before) {
        Some(text) => text.to_owned(),
        // The context decodes differently now (a byte sequence became valid): emitted text stays, and the new tokens
        // are decoded alone.
        None => tokenizer.decode(&ids[emitted..]),
    }
}

/// Removes and returns all complete characters; invalid bytes become U+FFFD.
fn take_complete(held: &mut Vec<u8>) -> String {
    let mut complete = held.len();
    if let Some(last) = held.utf8_chunks().last() {
        let tail = last.invalid();
        if !tail.is_empty() && may_become_character(tail) {
            complete -= tail.len();
        }
    }
    let rest = held.split_off(complete);
    let text = String::from_utf8_lossy(held).into_owned();
    *held = rest;
    text
}

/// Whether more bytes could complete this ill-formed tail. `Utf8Chunks` returns maximal ill-formed prefixes, so it is
/// enough that the tail is shorter than its first byte announces.
fn may_become_character(tail: &[u8]) -> bool {
    let announced = match tail.first() {
        Some(0xC2..=0xDF) => 2,
        Some(0xE0..=0xEF) => 3,
        Some(0xF0..=0xF4) => 4,
        _ => 0,
    };
    tail.len() < announced
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{byte_level, sentence_piece};
    use proptest::prelude::*;

    fn detokenize(tokenizer: Tokenizer, ids: &[u32]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(Arc::new(tokenizer));
        let mut pieces: Vec<String> = ids.iter().map(|id| detokenizer.push(*id)).collect();
        pieces.push(detokenizer.finish());
        pieces
    }

    #[test]
    fn character_of_several_tokens_is_emitted_with_the_last() {
        let crab = "🦀".as_bytes().iter().map(|b| u32::from(*b));
        let ids: Vec<u32> = crab.chain([65]).collect();
        assert_eq!(detokenize(byte_level(), &ids), ["", "", "", "🦀", "A", ""]);
        assert_eq!(
            detokenize(sentence_piece(), &ids),
            ["", "", "", "🦀", "A", ""]
        );
    }

    #[test]
    fn invalid_bytes_do_not_block_later_text() {
        assert_eq!(
            detokenize(byte_level(), &[0xF0, 0x9F, 65]),
            ["", "", "\u{FFFD}A", ""]
        );
        assert_eq!(detokenize(byte_level(), &[0xFF, 65]), ["\u{FFFD}", "A", ""]);
        assert_eq!(
            detokenize(byte_level(), &[65, 0xE2, 0x82]),
            ["A", "", "", "\u{FFFD}"]
        );
    }

    #[test]
    fn invalid_tail_is_not_held() {
        // E0 must be followed by A0..BF, so E0 80 is two errors at once.
        assert_eq!(
            detokenize(byte_level(), &[0xE0, 0x80, 65]).concat(),
            "\u{FFFD}\u{FFFD}A"
        );
    }

    #[test]
    fn special_tokens_give_no_text() {
        assert_eq!(
            detokenize(byte_level(), &[0xC3, 262, 0xA9]),
            ["", "", "é", ""]
        );
    }

    #[test]
    fn structural_special_tokens_give_text_and_others_do_not() {
        let mut file: serde_json::Value =
            serde_json::from_str(&crate::testing::byte_level_json()).unwrap();
        let added = file["added_tokens"].as_array_mut().unwrap();
        for (id, content) in [
            (265, "<|python_tag|>"),
            (266, "<|eot_id|>"),
            (267, "<tool_call>"),
        ] {
            let mut token = added[0].clone();
            token["id"] = id.into();
            token["content"] = content.into();
            added.push(token);
        }
        let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap();
        // The special tokens of the vocabulary determine the format if the template does not.
        let form = crate::reply_format::ToolCallFormat::detect("{{ messages }}", &tokenizer);
        assert_eq!(form, crate::reply_format::ToolCallFormat::Llama);
        // An incomplete character before a tag is invalid.
        assert_eq!(
            detokenize(tokenizer, &[65, 0xC3, 265, 266, 66, 267, 262]),
            [
                "A",
                "",
                "\u{FFFD}<|python_tag|>",
                "",
                "B",
                "<tool_call>",
                "",
                ""
            ]
        );
    }

    #[test]
    fn only_the_first_word_loses_its_prefix() {
        let tokenizer = sentence_piece();
        let ids = tokenizer.encode("ab a b").unwrap();
        assert_eq!(tokenizer.decode(&ids), "ab a b");
        let pieces = detokenize(sentence_piece(), &ids);
        assert_eq!(pieces.concat(), "ab a b");
        assert!(
            pieces.iter().filter(|p| !p.is_empty()).count() >= 3,
            "{pieces:?}"
        );
    }

    proptest! {
        #[test]
        fn streamed_bytes_equal_batch_decoding(ids in prop::collection::vec(0u32..265, 0..80)) {
            let tokenizer = byte_level();
            let whole = tokenizer.decode(&ids);
            prop_assert_eq!(detokenize(tokenizer, &ids).concat(), whole);
        }

        #[test]
        fn streamed_pieces_equal_batch_decoding(text in "[abc 🦀é]{0,40}") {
            let tokenizer = sentence_piece();
            let ids = tokenizer.encode(&text).unwrap();
            let whole = tokenizer.decode(&ids);
            prop_assert_eq!(detokenize(tokenizer, &ids).concat(), whole);
        }
    }
}
