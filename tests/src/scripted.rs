//! A checkpoint whose replies are known, so that a test can ask for a tool call or for a reply without end.
//!
//! The last byte of a prompt chooses the script; each piece of a script is a token of its own, followed
//! by the next. Attention and feed-forward layers are silenced, so a token is its own hidden state, and
//! the head says which one comes after it. Everything around it (engine, template, sampling) is real.

use std::path::Path;

use clawhost_policy::{Model, ModelConfig};
use serde_json::{Map, Value, json};

/// How strongly the scripted token is preferred. Even at temperature 1 the others have less than one
/// chance in a hundred thousand.
const WEIGHT: f32 = 1.5;
/// Ends a reply.
const END: &str = "<|end|>";
/// Token ids below are bytes.
const BYTES: usize = 256;

/// What is replied to prompts that end with one byte.
#[derive(Debug, Clone)]
pub struct Script {
    /// The byte.
    pub after: char,
    /// The tokens of the reply. A piece of several scripts is followed by the same in all of them.
    pub pieces: Vec<String>,
    /// Begins again with the first piece instead of ending.
    pub endless: bool,
}

impl Script {
    /// A reply that ends.
    pub fn reply(after: char, pieces: &[&str]) -> Self {
        Self {
            after,
            pieces: pieces.iter().map(|piece| (*piece).to_owned()).collect(),
            endless: false,
        }
    }

    /// A reply that goes on until it is stopped.
    pub fn endless(after: char, piece: &str) -> Self {
        Self {
            endless: true,
            ..Self::reply(after, &[piece])
        }
    }

    /// A call of one tool.
    pub fn call(after: char, name: &str, arguments: &Value) -> Self {
        let call = format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}");
        Self::reply(after, &[&call, "\n</tool_call>"])
    }

    /// Writes a model directory that follows these scripts.
    pub fn save(scripts: &[Self], dir: &Path) {
        let mut vocabulary: Vec<String> = (0..=u8::MAX).map(|byte| spelled(&[byte])).collect();
        let mut follows = Vec::new();
        for script in scripts {
            let mut last = script.after as usize;
            for piece in &script.pieces {
                let next = id_of(&mut vocabulary, &spelled(piece.as_bytes()));
                follows.push((last, next));
                last = next;
            }
            let first = id_of(&mut vocabulary, &spelled(script.pieces[0].as_bytes()));
            let end = id_of(&mut vocabulary, END);
            follows.push((last, if script.endless { first } else { end }));
        }
        let end = id_of(&mut vocabulary, END);
        let size = vocabulary.len();
        let config = json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
            "hidden_size": size, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8,
            "vocab_size": size, "max_position_embeddings": 1 << 17, "eos_token_id": end,
        });
        let config = ModelConfig::parse(config.to_string().as_bytes()).unwrap();
        let mut model = Model::random(config, 1);
        for (name, values) in model.parameters_mut() {
            if name.ends_with("embed_tokens.weight") {
                values.fill(0.0);
                for token in 0..size {
                    values[token * size + token] = 1.0;
                }
            } else if name.ends_with("lm_head.weight") {
                values.fill(0.0);
                for (last, next) in &follows {
                    values[next * size + last] = WEIGHT;
                }
            } else if name.contains("o_proj") || name.contains("down_proj") {
                values.fill(0.0);
            }
        }
        model.save(dir).unwrap();
        let write = |file: &str, text: String| std::fs::write(dir.join(file), text).unwrap();
        write("tokenizer.json", tokenizer(&vocabulary, end).to_string());
        write("chat_template.jinja", TEMPLATE.to_owned());
        write(
            "generation_config.json",
            json!({"eos_token_id": end, "temperature": 1.0, "do_sample": true}).to_string(),
        );
    }
}

/// Ends with the last byte of the last message.
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\
    {{ '' if loop.last else '\n' }}{% endfor %}";

fn id_of(vocabulary: &mut Vec<String>, token: &str) -> usize {
    let known = vocabulary.iter().position(|other| other == token);
    known.unwrap_or_else(|| {
        vocabulary.push(token.to_owned());
        vocabulary.len() - 1
    })
}

fn tokenizer(vocabulary: &[String], end: usize) -> Value {
    assert!(vocabulary.len() > BYTES);
    let ids: Map<String, Value> = vocabulary
        .iter()
        .enumerate()
        .map(|(id, token)| (token.clone(), id.into()))
        .collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0",
        "added_tokens": [{"id": end, "content": END, "special": true, "single_word": false,
                          "lstrip": false, "rstrip": false, "normalized": false}],
        "pre_tokenizer": bytes, "decoder": bytes,
        "model": {"type": "BPE", "vocab": ids, "merges": []},
    })
}

/// Bytes as vocabularies of byte-level BPE write them: printable ones as themselves, the others as the
/// characters from U+0100 on, in their order.
fn spelled(bytes: &[u8]) -> String {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let character = |byte: u8| {
        if plain(byte) {
            return char::from(byte);
        }
        let rank = (0..byte).filter(|other| !plain(*other)).count();
        char::from_u32(0x100 + u32::try_from(rank).unwrap()).unwrap()
    };
    bytes.iter().map(|byte| character(*byte)).collect()
}
