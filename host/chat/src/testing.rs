//! Small tokenizers for tests of this crate and of the engine. Compiled for tests only.
#![allow(
    clippy::unwrap_used,
    reason = "test data: a panic fails the test that asked for it"
)]

use serde_json::json;

use crate::Tokenizer;

/// A byte-level vocabulary: 256 bytes, a few merges, ChatML special tokens and two plain added tokens.
pub fn byte_level() -> Tokenizer {
    Tokenizer::from_bytes(byte_level_json().as_bytes()).unwrap()
}

/// The `tokenizer.json` of [`byte_level`].
pub fn byte_level_json() -> String {
    let alphabet = crate::byte_level::byte_of_char();
    let mut spelled: Vec<(char, u8)> = alphabet.into_iter().collect();
    spelled.sort_by_key(|(_, byte)| *byte);
    let mut vocab = serde_json::Map::new();
    for (character, byte) in &spelled {
        vocab.insert(character.to_string(), json!(byte));
    }
    let merges = [
        ("h", "e"),
        ("l", "l"),
        ("he", "ll"),
        ("hell", "o"),
        ("Ġ", "w"),
    ];
    for (index, (left, right)) in merges.iter().enumerate() {
        vocab.insert(format!("{left}{right}"), json!(256 + index));
    }
    let added = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "special": special, "single_word": false,
               "lstrip": false, "rstrip": false, "normalized": false})
    };
    let file = json!({
        "version": "1.0", "normalizer": null, "post_processor": null,
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [added(261, "<|im_start|>", true), added(262, "<|im_end|>", true),
                         added(263, "<think>", false), added(264, "</think>", false)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges.map(|(l, r)| format!("{l} {r}")),
                  "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false},
    });
    file.to_string()
}

/// A SentencePiece-style vocabulary: U+2581 for the space, byte fallback.
pub fn sentence_piece() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for byte in 0..256 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(byte));
    }
    for (index, piece) in ["▁", "a", "b", "▁a", "▁b", "c", "▁ab", "ab"]
        .iter()
        .enumerate()
    {
        vocab.insert((*piece).to_owned(), json!(256 + index));
    }
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["▁ a", "▁ b", "a b"],
                  "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true},
    });
    Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap()
}
