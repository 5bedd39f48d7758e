//! The `tokenizer.json` of a GGUF file.
//!
//! A file stores the vocabulary and merges, and a name for how text is split before merging; the patterns behind the
//! names are those of the models' own `tokenizer.json`. A file with `tokenizer.huggingface.json` has the original.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::header::Header;
use crate::error::LoadError;

/// Kinds of tokens (`tokenizer.ggml.token_type`) that matter here.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;

/// GPT-2's pattern without its contractions' case and with single digits, as Qwen2 has it.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with up to three digits together, as Llama 3 has it.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Words split at changes of case, as Mistral's Tekken has it.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How text is split before merging.
struct Splitting {
    steps: Vec<Value>,
    /// Whether text is brought into Unicode's composed form first.
    composes: bool,
    /// Whether a piece that is a token is taken without merging.
    ignore_merges: bool,
    /// Whether the BOS token is added when the metadata does not say.
    adds_bos: bool,
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

impl Splitting {
    /// That of a `tokenizer.ggml.pre`.
    fn named(name: &str) -> Option<Self> {
        let by = |pattern: &str| vec![split(pattern), byte_level(false)];
        let digits = json!({"type": "Digits", "individual_digits": true});
        let (steps, composes, ignore_merges, adds_bos) = match name {
            "gpt-2" | "gpt2" | "olmo" => (vec![byte_level(true)], false, false, false),
            "smollm" | "starcoder" | "refact" | "codeshell" => {
                (vec![digits, byte_level(true)], false, false, false)
            }
            "qwen2" => (by(QWEN2), true, false, false),
            "deepseek-r1-qwen" => (by(QWEN2), false, false, false),
            "llama-bpe" | "llama3" | "llama-v3" => (by(LLAMA3), false, true, true),
            "tekken" => (by(TEKKEN), false, true, true),
            _ => return None,
        };
        Some(Self {
            steps,
            composes,
            ignore_merges,
            adds_bos,
        })
    }

    const NAMES: &str = "gpt-2, olmo, smollm, starcoder, refact, codeshell, qwen2, deepseek-r1-qwen, llama-bpe, tekken";
}

/// The tokens of a file.
struct Vocabulary<'a> {
    header: &'a Header,
    tokens: &'a [String],
    kinds: Option<&'a [f64]>,
}

impl<'a> Vocabulary<'a> {
    fn read(header: &'a Header) -> Result<Self, LoadError> {
        let tokens = header.texts("tokenizer.ggml.tokens")?;
        let tokens = tokens.filter(|tokens| !tokens.is_empty());
        let tokens = tokens.ok_or_else(|| {
            header.error("it has no tokenizer.ggml.tokens; convert the model with its tokenizer")
        })?;
        let kinds = header.numbers("tokenizer.ggml.token_type")?;
        if let Some(kinds) = kinds.filter(|kinds| kinds.len() != tokens.len()) {
            return Err(header.error(format!(
                "it has {} tokens and {} token types",
                tokens.len(),
                kinds.len()
            )));
        }
        Ok(Self {
            header,
            tokens,
            kinds,
        })
    }

    fn kind(&self, id: usize) -> u64 {
        self.kinds.map_or(1, |kinds| kinds[id] as u64)
    }

    /// The token that a metadata key names by its id.
    fn named(&self, key: &str) -> Result<Option<(u64, &'a str)>, LoadError> {
        let key = format!("tokenizer.ggml.{key}_token_id");
        let Some(id) = self.header.integer(&key)? else {
            return Ok(None);
        };
        let token = usize::try_from(id).ok().and_then(|id| self.tokens.get(id));
        let token = token.ok_or_else(|| {
            self.header
                .error(format!("its {key} = {id} is outside the vocabulary"))
        })?;
        Ok(Some((id, token)))
    }

    /// Ids by token, without the rows that pad the embedding.
    fn ids(&self) -> Result<Map<String, Value>, LoadError> {
        let mut ids = Map::new();
        for (id, token) in self.tokens.iter().enumerate() {
            if self.kind(id) == UNUSED {
                continue;
            }
            if ids.insert(token.clone(), id.into()).is_some() {
                return Err(self
                    .header
                    .error(format!("it has the token {token:?} twice")));
            }
        }
        Ok(ids)
    }

    /// The tokens that are parsed in a text before it is split.
    fn added(&self) -> Vec<Value> {
        let tokens = self.tokens.iter().enumerate();
        let added = tokens.filter_map(|(id, token)| {
            let kind = self.kind(id);
            let special = matches!(kind, CONTROL | UNKNOWN);
            (special || kind == USER_DEFINED).then(|| {
                json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": special})
            })
        });
        added.collect()
    }
}

/// Makes a `tokenizer.json`.
///
/// # Errors
/// A kind of tokenizer that is not supported, by name, or a vocabulary that is inconsistent.
pub(super) fn tokenizer(header: &Header) -> Result<Vec<u8>, LoadError> {
    if let Some(original) = header.text("tokenizer.huggingface.json")? {
        return Ok(original.as_bytes().to_vec());
    }
    let vocabulary = Vocabulary::read(header)?;
    let model = header.text("tokenizer.ggml.model")?.unwrap_or("none");
    let json = match model {
        "gpt2" => byte_level_bpe(&vocabulary)?,
        "llama" => sentencepiece_bpe(&vocabulary)?,
        other => {
            return Err(header.error(format!(
                "its tokenizer is of kind {other}, which is not supported; supported are gpt2 and llama; use the model \
                 in safetensors"
            )));
        }
    };
    Ok(json.to_string().into_bytes())
}

/// BPE over bytes, as of GPT-2, Qwen, Llama 3.
fn byte_level_bpe(vocabulary: &Vocabulary<'_>) -> Result<Value, LoadError> {
    let header = vocabulary.header;
    let pre = header.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let splitting = Splitting::named(pre).ok_or_else(|| {
        header.error(format!(
            "its tokenizer splits text by tokenizer.ggml.pre = {pre}, which is not supported; supported are {}; use the \
             model in safetensors",
            Splitting::NAMES
        ))
    })?;
    let merges = header.texts("tokenizer.ggml.merges")?.unwrap_or_default();
    let ids = vocabulary.ids()?;
    let mut pairs = Vec::with_capacity(merges.len());
    for merge in merges {
        // A token has no space: the alphabet of byte-level tokens writes it as another letter.
        let pair = merge.split_once(' ');
        let known = |(a, b): &(&str, &str)| {
            ids.contains_key(*a) && ids.contains_key(*b) && ids.contains_key(&format!("{a}{b}"))
        };
        let pair = pair.filter(known).ok_or_else(|| {
            header.error(format!(
                "its merge {merge:?} is not of two tokens that give a third"
            ))
        })?;
        pairs.push(json!([pair.0, pair.1]));
    }
    let normalizer = if splitting.composes {
        json!({"type": "NFC"})
    } else {
        Value::Null
    };
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splitting.steps},
        "post_processor": bos_processor(vocabulary, splitting.adds_bos)?,
        "decoder": byte_level(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": splitting.ignore_merges, "vocab": ids, "merges": pairs},
    }))
}

/// SentencePiece's BPE, as of Llama 2 and Mistral: merges are ordered by the scores of the tokens that they give, and
/// text without a token becomes bytes.
fn sentencepiece_bpe(vocabulary: &Vocabulary<'_>) -> Result<Value, LoadError> {
    let header = vocabulary.header;
    let scores = header.numbers("tokenizer.ggml.scores")?.unwrap_or_default();
    if scores.len() != vocabulary.tokens.len() {
        return Err(header.error(format!(
            "it has {} tokens and {} scores",
            vocabulary.tokens.len(),
            scores.len()
        )));
    }
    let ids = vocabulary.ids()?;
    let position: HashMap<&str, usize> = vocabulary
        .tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| vocabulary.kind(*id) != UNUSED)
        .map(|(id, token)| (token.as_str(), id))
        .collect();
    let mut merges: Vec<(usize, &str, &str)> = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        if vocabulary.kind(id) != 1 {
            continue;
        }
        let cuts = token.char_indices().skip(1);
        let mut own: Vec<_> = cuts
            .filter_map(|(at, _)| {
                let (a, b) = token.split_at(at);
                Some(((*position.get(a)?, *position.get(b)?), (id, a, b)))
            })
            .collect();
        own.sort_by_key(|(parts, _)| *parts);
        merges.extend(own.into_iter().map(|(_, merge)| merge));
    }
    // Stable, best first: of equal scores the order of the vocabulary decides.
    merges.sort_by(|a, b| scores[b.0].total_cmp(&scores[a.0]));
    let merges: Vec<Value> = merges.into_iter().map(|(_, a, b)| json!([a, b])).collect();
    let space = "\u{2581}";
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let prefix = header
        .boolean("tokenizer.ggml.add_space_prefix")?
        .unwrap_or(true);
    let (mut normalizers, mut decoders) = (
        Vec::new(),
        vec![
            replace(space, " "),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ],
    );
    if prefix {
        normalizers.push(json!({"type": "Prepend", "prepend": space}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    normalizers.push(replace(" ", space));
    let unknown = vocabulary.named("unknown")?.map(|(_, token)| token);
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": bos_processor(vocabulary, true)?,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": ids, "merges": merges},
    }))
}

/// Adds the BOS token to a text that no template rendered, where the model was trained with it.
fn bos_processor(vocabulary: &Vocabulary<'_>, by_default: bool) -> Result<Value, LoadError> {
    let adds = vocabulary.header.boolean("tokenizer.ggml.add_bos_token")?;
    let Some((id, token)) = vocabulary
        .named("bos")?
        .filter(|_| adds.unwrap_or(by_default))
    else {
        return Ok(Value::Null);
    };
    let bos = json!({"SpecialToken": {"id": token, "type_id": 0}});
    let text = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
    Ok(json!({"type": "TemplateProcessing",
        "single": [bos, text("A", 0)], "pair": [bos, text("A", 0), text("B", 1)],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}}}))
}

/// Makes a `tokenizer_config.json`: the named tokens.
pub(super) fn tokenizer_config(header: &Header) -> Result<Value, LoadError> {
    let vocabulary = Vocabulary::read(header)?;
    let mut fields = Map::new();
    for (name, key) in [
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("pad_token", "padding"),
        ("unk_token", "unknown"),
    ] {
        if let Some((_, token)) = vocabulary.named(key)? {
            fields.insert(name.to_owned(), token.into());
        }
    }
    Ok(Value::Object(fields))
}

/// Makes a `generation_config.json`: every token that ends a reply.
pub(super) fn generation_config(header: &Header) -> Result<Value, LoadError> {
    let vocabulary = Vocabulary::read(header)?;
    let mut ends = Vec::new();
    for key in ["eos", "eot", "eom"] {
        if let Some((id, _)) = vocabulary.named(key)?.filter(|(id, _)| !ends.contains(id)) {
            ends.push(id);
        }
    }
    Ok(json!({"eos_token_id": ends}))
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
