//! Incremental decoding: text that has become final with each token.
//!
//! A token may end inside a UTF-8 character, and a vocabulary with a word-prefix spells the first
//! token of a text differently from the same token later. So text is held back until its bytes are
//! whole, nothing is emitted twice, and nothing that was emitted is ever taken back.

use std::sync::Arc;

use super::form::is_structural;
use super::tokenizer::Tokenizer;

/// Tokens for which text that ends in an incomplete character is held: no character is longer than
/// four bytes, so with the fourth it is not incomplete but wrong.
const LONGEST_WAIT: usize = 3;

/// Turns sampled tokens into text, one at a time. Special tokens give no text, save those that are part of a form of
/// reasoning or calls (whoever reads the reply must see them) and unless all are shown.
#[derive(Debug)]
pub struct TokenStream {
    tokenizer: Arc<Tokenizer>,
    show_special: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Byte-level vocabulary: bytes of a character that is not complete yet.
    Bytes(Vec<u8>),
    /// Any other: tokens that are still needed to decode the next ones in their context, how many of
    /// them are already emitted, and for how many tokens a character has been incomplete.
    Window {
        ids: Vec<u32>,
        emitted: usize,
        waited: usize,
    },
}

impl TokenStream {
    /// A stream at the start of a reply.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let state = if tokenizer.raw_bytes(0).is_some() {
            State::Bytes(Vec::new())
        } else {
            State::Window {
                ids: Vec::new(),
                emitted: 0,
                waited: 0,
            }
        };
        Self {
            tokenizer,
            show_special: false,
            state,
        }
    }

    /// Whether special tokens are written out.
    #[must_use]
    pub fn showing_special(mut self, shown: bool) -> Self {
        self.show_special = shown;
        self
    }

    /// Text that became final with this token; may be empty.
    pub fn push(&mut self, id: u32) -> String {
        if let Some(special) = self.tokenizer.special_text(id) {
            let shown = self.show_special || is_structural(special);
            let shown = shown.then(|| special.to_owned());
            // What came before one that is shown is final.
            return shown.map_or_else(String::new, |special| self.finish() + &special);
        }
        match &mut self.state {
            State::Bytes(held) => {
                held.extend_from_slice(self.tokenizer.raw_bytes(id).unwrap_or_default());
                take_complete(held)
            }
            State::Window {
                ids,
                emitted,
                waited,
            } => {
                ids.push(id);
                let fresh = fresh_text(&self.tokenizer, ids, *emitted);
                if fresh.is_empty() {
                    return fresh;
                }
                if fresh.ends_with(char::REPLACEMENT_CHARACTER) && *waited < LONGEST_WAIT {
                    *waited += 1;
                    return String::new();
                }
                ids.drain(..*emitted);
                *emitted = ids.len();
                *waited = 0;
                fresh
            }
        }
    }

    /// What is still held, once no further token comes. An incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        match &mut self.state {
            State::Bytes(held) => String::from_utf8_lossy(&std::mem::take(held)).into_owned(),
            State::Window {
                ids,
                emitted,
                waited,
            } => {
                let fresh = fresh_text(&self.tokenizer, ids, *emitted);
                ids.clear();
                (*emitted, *waited) = (0, 0);
                fresh
            }
        }
    }
}

/// Text that the tokens after the first `emitted` add to those before them.
fn fresh_text(tokenizer: &Tokenizer, ids: &[u32], emitted: usize) -> String {
    let before = tokenizer.decode(ids.get(..emitted).unwrap_or_default());
    let all = tokenizer.decode(ids);
    match all.strip_prefix(&before) {
        Some(fresh) => fresh.to_owned(),
        // The context decodes differently now (a byte run that became valid in hindsight): what is
        // out stays out, and the new tokens are decoded alone.
        None => tokenizer.decode(ids.get(emitted..).unwrap_or_default()),
    }
}

/// Removes and returns all complete characters; bytes that can never become one give U+FFFD.
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

/// Whether more bytes could complete this ill-formed tail. `Utf8Chunks` hands out maximal
/// ill-formed prefixes, so it is enough that the tail is shorter than its first byte announces.
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
    use super::super::tokenizer::tests::{byte_level, sentence_piece};
    use super::*;
    use proptest::prelude::*;

    fn stream(tokenizer: Tokenizer, ids: &[u32]) -> Vec<String> {
        let mut stream = TokenStream::new(Arc::new(tokenizer));
        let mut pieces: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
        pieces.push(stream.finish());
        pieces
    }

    #[test]
    fn a_character_of_several_tokens_comes_out_whole_with_its_last() {
        let crab = "🦀".as_bytes().iter().map(|b| u32::from(*b));
        let ids: Vec<u32> = crab.chain([65]).collect();
        assert_eq!(stream(byte_level(), &ids), ["", "", "", "🦀", "A", ""]);
        assert_eq!(stream(sentence_piece(), &ids), ["", "", "", "🦀", "A", ""]);
    }

    #[test]
    fn bytes_that_never_become_a_character_do_not_block_what_follows() {
        assert_eq!(
            stream(byte_level(), &[0xF0, 0x9F, 65]),
            ["", "", "\u{FFFD}A", ""]
        );
        assert_eq!(stream(byte_level(), &[0xFF, 65]), ["\u{FFFD}", "A", ""]);
        assert_eq!(
            stream(byte_level(), &[65, 0xE2, 0x82]),
            ["A", "", "", "\u{FFFD}"]
        );
    }

    #[test]
    fn a_tail_already_hopeless_is_not_held() {
        // E0 must be followed by A0..BF, so E0 80 is two errors at once.
        assert_eq!(
            stream(byte_level(), &[0xE0, 0x80, 65]).concat(),
            "\u{FFFD}\u{FFFD}A"
        );
    }

    #[test]
    fn special_tokens_give_no_text_and_do_not_disturb_it() {
        assert_eq!(stream(byte_level(), &[0xC3, 262, 0xA9]), ["", "", "é", ""]);
    }

    #[test]
    fn special_tokens_of_a_form_are_read_and_others_are_not() {
        let mut file: serde_json::Value =
            serde_json::from_str(&super::super::tokenizer::tests::byte_level_json()).unwrap();
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
        // A vocabulary with the tag of a family belongs to it, whatever its template says.
        let form = super::super::form::CallForm::of("{{ messages }}", &tokenizer);
        assert_eq!(form, super::super::form::CallForm::Llama);
        // Half a character before a tag is over.
        assert_eq!(
            stream(tokenizer, &[65, 0xC3, 265, 266, 66, 267, 262]),
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
    fn the_first_word_loses_its_prefix_and_later_ones_keep_it() {
        let tokenizer = sentence_piece();
        let ids = tokenizer.encode("ab a b").unwrap();
        assert_eq!(tokenizer.decode(&ids), "ab a b");
        let pieces = stream(sentence_piece(), &ids);
        assert_eq!(pieces.concat(), "ab a b");
        assert!(
            pieces.iter().filter(|p| !p.is_empty()).count() >= 3,
            "{pieces:?}"
        );
    }

    proptest! {
        #[test]
        fn streamed_bytes_equal_decoding_at_once(ids in prop::collection::vec(0u32..265, 0..80)) {
            let tokenizer = byte_level();
            let whole = tokenizer.decode(&ids);
            prop_assert_eq!(stream(tokenizer, &ids).concat(), whole);
        }

        #[test]
        fn streamed_pieces_equal_decoding_at_once(text in "[abc 🦀é]{0,40}") {
            let tokenizer = sentence_piece();
            let ids = tokenizer.encode(&text).unwrap();
            let whole = tokenizer.decode(&ids);
            prop_assert_eq!(stream(tokenizer, &ids).concat(), whole);
        }
    }
}
