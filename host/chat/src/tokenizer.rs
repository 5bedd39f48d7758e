//! The tokenizer of a checkpoint, from its `tokenizer.json`.
//!
//! Encoding parses special tokens in the text (a rendered chat template contains many) and adds none: the model sees
//! exactly what the template rendered. Padding and truncation settings of the file are ignored, because silent
//! truncation would train on half a prompt.

use std::collections::HashMap;

use tokenizers::DecoderWrapper;

use super::byte_level;

/// Why a tokenizer could not be loaded or a text could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file does not describe a tokenizer.
    #[error("tokenizer.json is malformed: {0}")]
    Malformed(String),
    /// The text could not be encoded.
    #[error("the tokenizer cannot encode the text: {0}")]
    Encode(String),
}

/// Encodes text to token ids and decodes them.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    special: HashMap<u32, String>,
    /// Bytes of each token by id, if the vocabulary is byte-level: decoding is then exact per token and needs no window
    /// of earlier tokens.
    bytes: Option<Vec<Vec<u8>>>,
    size: usize,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("size", &self.size)
            .field("special", &self.special.len())
            .field("byte_level", &self.bytes.is_some())
            .finish()
    }
}

impl Tokenizer {
    /// Parses a `tokenizer.json`.
    ///
    /// # Errors
    /// When the file does not describe a supported tokenizer.
    pub fn from_bytes(json: &[u8]) -> Result<Self, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|e| TokenizerError::Malformed(e.to_string()))?;
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|e| TokenizerError::Malformed(e.to_string()))?;
        let special = inner
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, token)| (id, token.content))
            .collect();
        let size = inner
            .get_vocab(true)
            .into_values()
            .max()
            .map_or(0, |largest| largest as usize + 1);
        let bytes = matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_))).then(|| {
            let alphabet = byte_level::byte_of_char();
            let spelled = |id| inner.get_added_vocabulary().simple_id_to_token(id);
            (0..size as u32)
                .map(|id| {
                    spelled(id)
                        .or_else(|| inner.id_to_token(id))
                        .unwrap_or_default()
                })
                .map(|token| byte_level::bytes_of_token(&token, &alphabet))
                .collect()
        });
        Ok(Self {
            inner,
            special,
            bytes,
            size,
        })
    }

    /// Encodes a text; parses special tokens in it and adds none.
    ///
    /// # Errors
    /// When the text cannot be encoded in this vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.inner
            .encode_fast(text, false)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|e| TokenizerError::Encode(e.to_string()))
    }

    /// Encodes a text that no template rendered, with the special tokens that the checkpoint adds around a text, such
    /// as BOS (transformers' `add_special_tokens`). Tokens that the text already has are not added again.
    ///
    /// # Errors
    /// When the text cannot be encoded in this vocabulary.
    pub fn encode_with_special_tokens(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let plain = self.encode(text)?;
        let full = self
            .inner
            .encode_fast(text, true)
            .map_err(|e| TokenizerError::Encode(e.to_string()))?;
        let full = full.get_ids();
        let before = full
            .windows(plain.len().max(1))
            .position(|window| window == plain)
            .unwrap_or(if plain.is_empty() { full.len() } else { 0 });
        let (before, after) = full.split_at(before);
        let after = after.get(plain.len()..).unwrap_or_default();
        let mut ids = Vec::with_capacity(full.len());
        if !plain.starts_with(before) {
            ids.extend_from_slice(before);
        }
        ids.extend_from_slice(&plain);
        if !plain.ends_with(after) {
            ids.extend_from_slice(after);
        }
        Ok(ids)
    }

    /// Decodes ids without special tokens. Invalid UTF-8 becomes U+FFFD; ids outside the vocabulary are skipped.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.decode_as(ids, false)
    }

    /// Decodes ids including special tokens.
    pub fn decode_with_special(&self, ids: &[u32]) -> String {
        self.decode_as(ids, true)
    }

    pub(crate) fn decode_as(&self, ids: &[u32], show_special: bool) -> String {
        match &self.bytes {
            Some(table) => {
                let bytes: Vec<u8> = ids
                    .iter()
                    .filter(|id| show_special || !self.is_special(**id))
                    .filter_map(|id| table.get(*id as usize))
                    .flatten()
                    .copied()
                    .collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            None => self.inner.decode(ids, !show_special).unwrap_or_default(),
        }
    }

    /// The vocabulary entry of a token (byte-level tokens in the byte-to-unicode alphabet).
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Bytes of a token, as reported to chat clients with its logprob. If the vocabulary is not byte-level, the token
    /// is decoded alone.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        match &self.bytes {
            Some(table) => table.get(id as usize).cloned().unwrap_or_default(),
            None => self.decode_with_special(&[id]).into_bytes(),
        }
    }

    /// Bytes that a token adds in the middle of a text. If the vocabulary is not byte-level, they are derived from its
    /// entry: U+2581 is a space, `<0x0A>` a byte.
    pub fn spelled_bytes(&self, id: u32) -> Vec<u8> {
        if let Some(table) = &self.bytes {
            return table.get(id as usize).cloned().unwrap_or_default();
        }
        let Some(spelled) = self.inner.id_to_token(id) else {
            return Vec::new();
        };
        let byte = spelled
            .strip_prefix("<0x")
            .and_then(|rest| rest.strip_suffix('>'))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) => vec![byte],
            None => spelled.replace('\u{2581}', " ").into_bytes(),
        }
    }

    /// Id of a vocabulary entry.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether a token is special. Special tokens are not part of a reply's text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains_key(&id)
    }

    /// Text of a special token; `None` for an ordinary one.
    pub fn special_text(&self, id: u32) -> Option<&str> {
        self.special.get(&id).map(String::as_str)
    }

    /// Special tokens with their ids, unordered.
    pub fn special(&self) -> impl Iterator<Item = (&str, u32)> {
        self.special.iter().map(|(id, token)| (token.as_str(), *id))
    }

    /// The largest id plus one. A model's embedding may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.size
    }

    /// Bytes of a token, if the vocabulary is byte-level.
    pub(crate) fn raw_bytes(&self, id: u32) -> Option<&[u8]> {
        let table = self.bytes.as_ref()?;
        Some(table.get(id as usize).map_or(&[], Vec::as_slice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{byte_level, byte_level_json};
    use serde_json::json;

    #[test]
    fn text_with_special_tokens_round_trips_untruncated() {
        let tokenizer = byte_level();
        let text = "<|im_start|>user\nhello world, größer 🦀<|im_end|>";
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(ids.first(), Some(&261));
        assert_eq!(ids.last(), Some(&262));
        assert!(ids.contains(&tokenizer.id("hello").unwrap()));
        assert_eq!(tokenizer.decode_with_special(&ids), text);
        assert_eq!(tokenizer.decode(&ids), "user\nhello world, größer 🦀");
    }

    #[test]
    fn special_tokens_have_ids_and_plain_added_tokens_are_text() {
        let tokenizer = byte_level();
        assert_eq!(tokenizer.id("<|im_end|>"), Some(262));
        assert!(tokenizer.is_special(262));
        assert!(!tokenizer.is_special(263));
        assert_eq!(tokenizer.decode(&[263]), "<think>");
        assert_eq!(tokenizer.special().count(), 2);
        assert_eq!(tokenizer.vocab_size(), 265);
        assert_eq!(tokenizer.token_bytes(tokenizer.id("Ġw").unwrap()), b" w");
    }

    #[test]
    fn byte_decoding_matches_the_tokenizers_library() {
        let tokenizer = byte_level();
        for ids in [
            vec![104, 105, 195, 169, 32],
            vec![0xF0, 0x9F, 65, 0x80],
            vec![258, 259, 260, 263, 262],
        ] {
            assert_eq!(
                tokenizer.decode(&ids),
                tokenizer.inner.decode(&ids, true).unwrap()
            );
            assert_eq!(
                tokenizer.decode_with_special(&ids),
                tokenizer.inner.decode(&ids, false).unwrap()
            );
        }
    }

    #[test]
    fn encode_with_special_tokens_adds_each_token_once() {
        let mut file: serde_json::Value = serde_json::from_str(&byte_level_json()).unwrap();
        let around = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let special = |id: &str, n: u32| json!({"id": id, "ids": [n], "tokens": [id]});
        file["post_processor"] = json!({"type": "TemplateProcessing",
            "single": [around("<|im_start|>"), text, around("<|im_end|>")], "pair": [text, text],
            "special_tokens": {"<|im_start|>": special("<|im_start|>", 261), "<|im_end|>": special("<|im_end|>", 262)}});
        let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap();
        for (text, expected) in [
            ("hello", vec![261, 259, 262]),
            ("<|im_start|>hello", vec![261, 259, 262]),
            ("<|im_start|>hello<|im_end|>", vec![261, 259, 262]),
            ("", vec![261, 262]),
        ] {
            assert_eq!(
                tokenizer.encode_with_special_tokens(text).unwrap(),
                expected,
                "{text}"
            );
        }
        assert_eq!(tokenizer.encode("hello").unwrap(), [259]);
        assert_eq!(
            byte_level().encode_with_special_tokens("hello").unwrap(),
            [259]
        );
        assert!(
            byte_level()
                .encode_with_special_tokens("")
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn malformed_file_is_named() {
        let error = Tokenizer::from_bytes(b"{\"model\": 3}").unwrap_err();
        assert!(error.to_string().starts_with("tokenizer.json is malformed"));
    }
}
