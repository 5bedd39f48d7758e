//! A checkpoint with scripted replies, so that a test can request a tool call or an endless reply.
//!
//! The last byte of a prompt selects the script; each piece of a script is one token, followed by the next. Attention
//! and MLP outputs are zero, so the hidden state of a token is its embedding, and the LM head maps it to the next
//! token. The rest (engine, template, sampling) is real.

use std::path::Path;

use clawhost_model::{Model, ModelConfig};
use serde_json::{Map, Value, json};

/// Logit weight of the scripted token. Even at temperature 1 all other tokens have a probability below 1e-5.
const WEIGHT: f32 = 1.5;
/// The EOS token.
const END: &str = "<|end|>";
/// Token ids below this are bytes.
const BYTES: usize = 256;

/// The reply to prompts that end with one byte.
#[derive(Debug, Clone)]
pub struct Script {
    /// The last byte of the prompt.
    pub after: char,
    /// The tokens of the reply. A piece shared by several scripts has the same successor in all of them.
    pub pieces: Vec<String>,
    /// Restarts with the first piece instead of ending.
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

    /// An endless reply.
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

/// The prompt ends with the last byte of the last message.
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

/// Byte-level BPE spelling: printable bytes as themselves, the others as characters from U+0100 on, in order.
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
