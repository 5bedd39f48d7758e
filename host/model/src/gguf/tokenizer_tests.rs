//! The tokenizers of files. That they encode as the originals do is tested where the tokenizers run (`clawhost-cpu`).

use std::io::Write;

use super::*;

/// A file of metadata alone; values are texts, arrays of texts, or numbers.
fn header(entries: &[(&str, Value)]) -> Header {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    bytes.extend(0u64.to_le_bytes());
    bytes.extend((entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        text(&mut bytes, key);
        match value {
            Value::String(value) => {
                bytes.extend(8u32.to_le_bytes());
                text(&mut bytes, value);
            }
            Value::Bool(value) => {
                bytes.extend(7u32.to_le_bytes());
                bytes.push(u8::from(*value));
            }
            Value::Number(value) => {
                bytes.extend(4u32.to_le_bytes());
                bytes
                    .write_all(&(value.as_u64().unwrap() as u32).to_le_bytes())
                    .unwrap();
            }
            Value::Array(all) => {
                bytes.extend(9u32.to_le_bytes());
                let texts = all.iter().any(Value::is_string);
                bytes.extend(if texts { 8u32 } else { 6 }.to_le_bytes());
                bytes.extend((all.len() as u64).to_le_bytes());
                for one in all {
                    match one.as_str() {
                        Some(one) => text(&mut bytes, one),
                        None => bytes.extend((one.as_f64().unwrap() as f32).to_le_bytes()),
                    }
                }
            }
            other => unreachable!("{other}"),
        }
    }
    let length = bytes.len() as u64;
    Header::parse(bytes.as_slice(), length, "m.gguf".to_owned()).unwrap()
}

fn made(entries: &[(&str, Value)]) -> Value {
    serde_json::from_slice(&tokenizer(&header(entries)).unwrap()).unwrap()
}

fn bpe(pre: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("tokenizer.ggml.model", json!("gpt2")),
        ("tokenizer.ggml.pre", json!(pre)),
        (
            "tokenizer.ggml.tokens",
            json!(["a", "b", "ab", "<|end|>", "<think>", "[PAD5]"]),
        ),
        ("tokenizer.ggml.token_type", json!([1, 1, 1, 3, 4, 5])),
        ("tokenizer.ggml.merges", json!(["a b"])),
        ("tokenizer.ggml.bos_token_id", json!(3)),
        ("tokenizer.ggml.eos_token_id", json!(3)),
        ("tokenizer.ggml.eot_token_id", json!(4)),
    ]
}

#[test]
fn byte_level_bpe_has_its_tokens_merges_and_splitting() {
    let json = made(&bpe("qwen2"));
    assert_eq!(
        json["model"]["vocab"],
        json!({"a": 0, "b": 1, "ab": 2, "<|end|>": 3, "<think>": 4})
    );
    assert_eq!(json["model"]["merges"], json!([["a", "b"]]));
    assert_eq!(json["normalizer"]["type"], "NFC");
    assert_eq!(json["post_processor"], Value::Null);
    let added = json["added_tokens"].as_array().unwrap();
    let shown: Vec<_> = added
        .iter()
        .map(|one| (one["id"].as_u64().unwrap(), one["special"] == true))
        .collect();
    assert_eq!(shown, [(3, true), (4, false)]);
    let llama = made(&bpe("llama-bpe"));
    assert_eq!(llama["model"]["ignore_merges"], true);
    assert_eq!(
        llama["post_processor"]["special_tokens"]["<|end|>"]["ids"],
        json!([3])
    );
    let smollm = made(&bpe("smollm"));
    assert_eq!(
        smollm["pre_tokenizer"]["pretokenizers"][0]["type"],
        "Digits"
    );
    let header = header(&bpe("smollm"));
    assert_eq!(
        generation_config(&header).unwrap(),
        json!({"eos_token_id": [3, 4]})
    );
    assert_eq!(
        tokenizer_config(&header).unwrap(),
        json!({"bos_token": "<|end|>", "eos_token": "<|end|>"})
    );
}

#[test]
fn the_original_tokenizer_is_taken_as_it_is() {
    let mut entries = bpe("unknown to this program");
    entries.push((
        "tokenizer.huggingface.json",
        json!("{\"version\": \"1.0\"}"),
    ));
    assert_eq!(made(&entries), json!({"version": "1.0"}));
}

#[test]
fn sentencepiece_merges_follow_the_scores() {
    let json = made(&[
        ("tokenizer.ggml.model", json!("llama")),
        (
            "tokenizer.ggml.tokens",
            json!([
                "<unk>",
                "<s>",
                "<0x0A>",
                "\u{2581}",
                "a",
                "b",
                "ab",
                "\u{2581}ab",
                "aba"
            ]),
        ),
        (
            "tokenizer.ggml.token_type",
            json!([2, 3, 6, 1, 1, 1, 1, 1, 1]),
        ),
        (
            "tokenizer.ggml.scores",
            json!([0, 0, 0, -4, -5, -6, -2, -1, -3]),
        ),
        ("tokenizer.ggml.bos_token_id", json!(1)),
        ("tokenizer.ggml.unknown_token_id", json!(0)),
    ]);
    assert_eq!(
        json["model"]["merges"],
        json!([["\u{2581}", "ab"], ["a", "b"], ["ab", "a"]])
    );
    assert_eq!(json["model"]["byte_fallback"], true);
    assert_eq!(json["model"]["unk_token"], "<unk>");
    assert_eq!(json["normalizer"]["normalizers"][0]["prepend"], "\u{2581}");
    assert_eq!(
        json["post_processor"]["special_tokens"]["<s>"]["ids"],
        json!([1])
    );
}

#[test]
fn inconsistent_vocabularies_are_rejected() {
    let change = |key: &'static str, value: Value| {
        let mut entries = bpe("qwen2");
        entries.retain(|(own, _)| *own != key);
        entries.push((key, value));
        let error = tokenizer(&header(&entries)).unwrap_err().to_string();
        assert!(error.contains("m.gguf"), "{error}");
        error
    };
    for (error, words) in [
        (
            change("tokenizer.ggml.tokens", json!("none")),
            "is not an array of texts",
        ),
        (
            change("tokenizer.ggml.token_type", json!([1, 1])),
            "6 tokens and 2 token types",
        ),
        (
            change("tokenizer.ggml.merges", json!(["a c"])),
            "is not of two tokens that give a third",
        ),
        (
            change("tokenizer.ggml.merges", json!(["ab"])),
            "is not of two tokens",
        ),
        (
            change(
                "tokenizer.ggml.tokens",
                json!(["a", "b", "ab", "a", "c", "d"]),
            ),
            "the token \"a\" twice",
        ),
        (
            change("tokenizer.ggml.pre", json!("viking")),
            "tokenizer.ggml.pre = viking",
        ),
        (change("tokenizer.ggml.model", json!("rwkv")), "kind rwkv"),
    ] {
        assert!(error.contains(words), "{error}");
    }
}
