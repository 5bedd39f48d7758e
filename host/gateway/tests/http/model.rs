//! A test model with predictable replies: the next token depends on the last one only.
//!
//! Attention and feed-forward layers add nothing, embeddings are one-hot, and the output layer maps each token to its
//! successor. The last character of a prompt thus determines the reply, on the real engine with real logprobs. A token
//! without a successor is followed by a random token.

use std::sync::Arc;

use clawhost_chat::{ChatTemplate, Tokenizer};
use clawhost_engine::{Engine, EngineOptions};
use clawhost_model::{Model, ModelConfig};
use serde_json::{Value, json};

const VOCAB: usize = 320;
const END: &str = "<|end|>";

/// Replies by the last character of the prompt. Each piece is one token.
const REPLIES: [(char, &[&str]); 10] = [
    // A character of two tokens in the middle.
    ('H', &["Hello", ", w", "\u{c3}", "\u{b6}", "rld", "!"]),
    // Never ends by itself.
    ('L', &["la ", "la "]),
    ('S', &["one ", "ST", "OP", " two"]),
    (
        'T',
        &[
            "I look.",
            "\n<tool_call>\n",
            "{\"name\": \"read\", \"arguments\": ",
            "{\"path\": \"a.txt\"}}",
            "\n</tool_call>",
            "\n<tool_call>",
            "{\"name\": \"stat\", \"arguments\": {}}",
            "</tool_call>",
        ],
    ),
    // A call whose arguments take several tokens.
    (
        'P',
        &[
            "<tool_call>{\"name\": \"read\", \"arguments\": {\"path\": ",
            "\"b",
            ".txt\"}",
            "}</tool_call>",
        ],
    ),
    (
        'R',
        &[
            "<think>\n",
            "Two and ",
            "two.",
            "\n</think>\n\n",
            "It is ",
            "4.",
        ],
    ),
    // The last token produces non-finite logits.
    ('F', &["so far ", "so good"]),
    ('X', &["<script>", "alert(1)", "</script>"]),
    ('A', &["yes"]),
    ('B', &["no"]),
];

/// Starts an engine with that model.
pub(crate) fn engine(options: EngineOptions) -> Engine {
    let mut vocab = Vocabulary::bytes();
    let end = vocab.add(END);
    let mut follows: Vec<(usize, usize, f32)> = Vec::new();
    for (first, pieces) in REPLIES {
        let mut last = first as usize;
        for piece in pieces {
            let next = vocab.add_piece(piece);
            follows.push((last, next, 2.0));
            last = next;
        }
        match first {
            'L' => {}
            'F' => follows.push((last, end, 1e38)),
            _ => follows.push((last, end, 2.0)),
        }
    }
    let config = ModelConfig {
        max_position_embeddings: 1 << 16,
        eos_token_ids: vec![end as u32],
        ..ModelConfig::parse(
            json!({
                "hidden_size": VOCAB, "intermediate_size": 8, "num_hidden_layers": 1,
                "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8,
                "vocab_size": VOCAB, "max_position_embeddings": 16,
            })
            .to_string()
            .as_bytes(),
        )
        .unwrap()
    };
    let mut model = Model::random(config, 1);
    for (name, values) in model.parameters_mut() {
        if name.contains("embed_tokens") {
            values.fill(0.0);
            for token in 0..VOCAB {
                values[token * VOCAB + token] = 1.0;
            }
        } else if name.contains("lm_head") {
            values.fill(0.0);
            // Random tokens are bytes that start no scripted reply, so that the text continues.
            let scripted = REPLIES.iter().map(|(first, _)| *first as usize);
            for token in scripted.chain(256..VOCAB) {
                values[token * VOCAB..][..VOCAB].fill(-2.0);
            }
            for (last, next, weight) in &follows {
                values[next * VOCAB + last] = *weight;
            }
        } else if name.contains("o_proj") || name.contains("down_proj") {
            values.fill(0.0);
        }
    }
    let tokenizer = Tokenizer::from_bytes(vocab.file().to_string().as_bytes()).unwrap();
    let template = ChatTemplate::new(TEMPLATE, []).unwrap();
    clawhost_cpu::start_engine(
        Arc::new(model),
        Arc::new(tokenizer),
        Arc::new(template),
        options,
    )
    .unwrap()
}

/// Ends with the last character of the last message, or of the variable `ending`. Renders the time if `clock` is set, and
/// whether a generation prompt is added if `probe` is set.
const TEMPLATE: &str = "{% if clock %}{{ strftime_now('%Y-%m-%d %H:%M:%S') }}\n{% endif %}\
    {% for tool in tools or [] %}tool {{ tool.function.name }}\n{% endfor %}\
    {% for message in messages %}{{ message.role }}: {{ message.content }}\
    {% if message.content == 'refuse me' %}{{ raise_exception('no refusing') }}{% endif %}\
    {{ '' if loop.last else '\n' }}{% endfor %}{{ ending or '' }}\
    {% if probe %}{{ 'A' if add_generation_prompt else 'B' }}{% endif %}";

struct Vocabulary {
    vocabulary: Vec<String>,
}

impl Vocabulary {
    fn bytes() -> Self {
        Self {
            vocabulary: (0..=255u8).map(|byte| letter(byte).to_string()).collect(),
        }
    }

    fn add(&mut self, token: &str) -> usize {
        self.vocabulary.push(token.to_owned());
        self.vocabulary.len() - 1
    }

    /// The id of a token text; a single character below U+0100 is that byte.
    fn add_piece(&mut self, piece: &str) -> usize {
        let mut characters = piece.chars();
        if let (Some(only), None) = (characters.next(), characters.next())
            && !only.is_ascii()
        {
            return only as usize;
        }
        let token: String = piece.bytes().map(letter).collect();
        if let Some(id) = self.vocabulary.iter().position(|known| *known == token) {
            return id;
        }
        self.add(&token)
    }

    fn file(&self) -> Value {
        assert!(self.vocabulary.len() <= VOCAB, "make room for more pieces");
        let vocab: serde_json::Map<String, Value> = self
            .vocabulary
            .iter()
            .enumerate()
            .map(|(id, token)| (token.clone(), json!(id)))
            .collect();
        let end = vocab[END].clone();
        json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
            "post_processor": null,
            "added_tokens": [{"id": end, "content": END, "special": true, "single_word": false,
                              "lstrip": false, "rstrip": false, "normalized": false}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            "model": {"type": "BPE", "vocab": vocab, "merges": [], "dropout": null, "unk_token": null,
                      "continuing_subword_prefix": null, "end_of_word_suffix": null,
                      "fuse_unk": false, "byte_fallback": false},
        })
    }
}

/// The character that represents a byte in byte-level vocabularies.
fn letter(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return byte as char;
    }
    let before = (0..byte).filter(|byte| !printable(*byte)).count() as u32;
    char::from_u32(0x100 + before).unwrap()
}
