//! Parity with Hugging Face transformers, and with peft for adapters.
//!
//! The checkpoints are small and random, one per model family, with reference values of transformers in float32;
//! `make.py` generated both. Logprobs agree within [`BOUND`], greedy continuations token by token, with any batching,
//! chunked prefill and prefix caching.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    reason = "a test may fail by panicking"
)]

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawhost_chat::{ChatInput, ChatTemplate, Message, TemplateError, Tokenizer, Tool};
use clawhost_cpu::{BatchRow, CpuModel};
use clawhost_engine::{
    Candidates, CompletionOutput, Engine, EngineOptions, Event, GenerateRequest, Generation,
    LoadedVersion, Priority, SamplingParams, Sequence,
};
use clawhost_model::{Adapter, Model, ModelFiles};
use serde_json::{Map, Value, json};

/// Maximum logprob difference from transformers, in nats.
const BOUND: f32 = 1e-4;

const FAMILIES: [&str; 4] = ["qwen3", "qwen2", "llama", "mistral"];

/// A checkpoint and its reference values.
struct Case {
    dir: PathBuf,
    /// Family and precision, for messages.
    name: String,
    expected: Value,
    model: Arc<Model>,
    /// The base and the adapters, each with its reference values.
    versions: Vec<(String, Option<Arc<Adapter>>, Value)>,
}

impl Case {
    fn all() -> Vec<Self> {
        FAMILIES.into_iter().map(Self::new).collect()
    }

    fn new(family: &str) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fixtures/parity")
            .join(family);
        let text = std::fs::read(dir.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_slice(&text).unwrap();
        let name = format!("{family} in {}", expected["dtype"].as_str().unwrap());
        let model = Model::load(&ModelFiles::from_dir(&dir).unwrap());
        let model = Arc::new(model.unwrap_or_else(|error| panic!("{name}: {error}")));
        let mut versions = vec![("no adapter".to_owned(), None, expected["base"].clone())];
        for (adapter, values) in expected["adapters"].as_object().unwrap() {
            let read = Adapter::load_peft(&dir.join("adapters").join(adapter), model.config());
            let read = read.unwrap_or_else(|error| panic!("{name}, {adapter}: {error}"));
            let label = format!("adapter {adapter}");
            versions.push((label, Some(Arc::new(read)), values.clone()));
        }
        Self {
            dir,
            name,
            expected,
            model,
            versions,
        }
    }

    fn engine(&self, options: EngineOptions) -> Engine {
        clawhost_cpu::load_engine(&ModelFiles::from_dir(&self.dir).unwrap(), options).unwrap()
    }

    fn tokenizer(&self) -> Tokenizer {
        let files = ModelFiles::from_dir(&self.dir).unwrap();
        Tokenizer::from_bytes(files.tokenizer().unwrap()).unwrap()
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn floats(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn assert_close(what: impl Display, found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len(), "{what}");
    let mut worst = 0f32;
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found - expected).abs();
        assert!(
            off <= BOUND,
            "{what}: value {at} is {found}, transformers has {expected}"
        );
        worst = worst.max(off);
    }
    worst
}

fn full_sequence(tokens: &[u32]) -> Sequence<'_> {
    Sequence {
        tokens,
        start: 1,
        temperature: 1.0,
        candidates: Candidates::None,
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let top = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|z| f64::from(z - top).exp()).sum();
    let shift = top + sum.ln() as f32;
    logits.iter().map(|z| z - shift).collect()
}

#[test]
fn scores_match_transformers() {
    for case in Case::all() {
        for (label, adapter, expected) in &case.versions {
            let what = format!("{}, {label}", case.name);
            let adapter = adapter.as_deref();
            let all: Vec<Vec<u32>> = list(&expected["scored"])
                .iter()
                .map(|s| ids(&s["ids"]))
                .collect();
            let sequences: Vec<Sequence<'_>> =
                all.iter().map(|tokens| full_sequence(tokens)).collect();
            let batched = case.model.score(adapter, &sequences).unwrap();
            let mut worst = 0f32;
            for ((sequence, packed), right) in sequences
                .iter()
                .zip(&batched)
                .zip(list(&expected["scored"]))
            {
                let right = floats(&right["logprobs"]);
                let alone = case.model.score(adapter, &[*sequence]).unwrap();
                let what = format!("{what}, {} tokens", sequence.tokens.len());
                worst = worst.max(assert_close(
                    format!("{what}, alone"),
                    &alone[0].logprobs,
                    &right,
                ));
                worst = worst.max(assert_close(
                    format!("{what}, packed"),
                    &packed.logprobs,
                    &right,
                ));
            }
            println!("{what}: within {worst:.1e}");
        }
    }
}

#[test]
fn chunked_prefill_matches_transformers() {
    for case in Case::all() {
        for (label, adapter, expected) in &case.versions {
            for right in list(&expected["scored"]) {
                let tokens = ids(&right["ids"]);
                let (logprobs, last) = (floats(&right["logprobs"]), floats(&right["last"]));
                for chunk in [7, 64, tokens.len()] {
                    let what =
                        format!("{}, {label}, {} tokens by {chunk}", case.name, tokens.len());
                    let mut cache = case.model.new_cache();
                    let mut distribution = Vec::new();
                    for part in tokens.chunks(chunk) {
                        if let Some(from) = cache.len().checked_sub(1) {
                            let next = distribution[part[0] as usize];
                            assert_close(&what, &[next], &logprobs[from..=from]);
                        }
                        let row = BatchRow {
                            tokens: part,
                            cache: &mut cache,
                            adapter: adapter.as_deref(),
                        };
                        distribution = log_softmax(&case.model.forward(&mut [row]).unwrap());
                    }
                    assert_close(&what, &distribution, &last);
                }
            }
        }
    }
}

/// A generated reply.
struct Reply {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    text: String,
    finished: CompletionOutput,
}

fn collect(mut generation: Generation) -> Reply {
    let (mut tokens, mut logprobs, mut text) = (Vec::new(), Vec::new(), String::new());
    loop {
        match generation.blocking_next().unwrap() {
            Event::Token(token) => {
                tokens.push(token.id);
                logprobs.push(token.model_logprob);
                text.push_str(&token.text);
            }
            Event::Finished(finished) => {
                text.push_str(&finished.text);
                return Reply {
                    tokens,
                    logprobs,
                    text,
                    finished,
                };
            }
            Event::Failed(reason) => panic!("{reason}"),
        }
    }
}

fn greedy(engine: &Engine, prompt: &Value, version: &LoadedVersion, tokens: usize) -> Generation {
    let request = GenerateRequest {
        prompt: ids(prompt),
        sampling: SamplingParams {
            temperature: 0.0,
            max_tokens: u32::try_from(tokens).unwrap(),
            ..SamplingParams::default()
        },
        version: version.clone(),
        priority: Priority::Interactive,
        user: None,
    };
    engine.generate(request).unwrap()
}

/// Runs every turn of every conversation with every adapter and compares; with `batched`, all conversations run their
/// turn concurrently. Returns the number of tokens taken from the prefix cache.
fn converse(case: &Case, options: &EngineOptions, batched: bool) -> usize {
    let engine = case.engine(options.clone());
    let mut conversations = Vec::new();
    // Conversations of different adapters are batched batched.
    for number in 0..3 {
        for (version, (label, adapter, expected)) in (0..).zip(&case.versions) {
            let served = match adapter {
                None => LoadedVersion::base(&case.model),
                Some(adapter) => LoadedVersion::new(version, Arc::clone(adapter)),
            };
            conversations.push((label, served, &expected["conversations"][number]));
        }
    }
    let mut cached = 0;
    for turn in 0..2 {
        let mut running = Vec::new();
        for (label, served, turns) in &conversations {
            let expected = &turns[turn];
            let reply = ids(&expected["reply"]);
            let generation = greedy(&engine, &expected["prompt"], served, reply.len());
            running.push((label, expected, generation));
            if !batched {
                cached += running
                    .drain(..)
                    .map(|one| compare(case, turn, one))
                    .sum::<usize>();
            }
        }
        cached += running
            .into_iter()
            .map(|one| compare(case, turn, one))
            .sum::<usize>();
    }
    cached
}

fn compare(
    case: &Case,
    turn: usize,
    (label, expected, generation): (&&String, &Value, Generation),
) -> usize {
    let reply = collect(generation);
    let what = format!(
        "{}, {label}, turn {turn} after {} tokens",
        case.name,
        list(&expected["prompt"]).len()
    );
    assert_eq!(reply.tokens, ids(&expected["reply"]), "{what}");
    assert_eq!(reply.tokens.len(), 64, "{what}");
    assert_eq!(reply.text, expected["text"].as_str().unwrap(), "{what}");
    assert_close(&what, &reply.logprobs, &floats(&expected["logprobs"]));
    reply.finished.cached_tokens
}

fn unbatched_options() -> EngineOptions {
    EngineOptions {
        max_num_seqs: 1,
        enable_prefix_caching: false,
        ..EngineOptions::default()
    }
}

#[test]
fn greedy_continuations_match_transformers_one_by_one() {
    for case in Case::all() {
        assert_eq!(converse(&case, &unbatched_options(), false), 0);
    }
}

#[test]
fn greedy_continuations_match_transformers_in_one_batch() {
    for case in Case::all() {
        let options = EngineOptions {
            max_num_seqs: 16,
            ..unbatched_options()
        };
        converse(&case, &options, true);
    }
}

#[test]
fn greedy_continuations_match_transformers_in_small_chunks() {
    for case in Case::all() {
        let options = EngineOptions {
            max_num_seqs: 16,
            max_num_batched_tokens: 7,
            ..unbatched_options()
        };
        converse(&case, &options, true);
        converse(&case, &options, false);
    }
}

#[test]
fn second_turns_from_the_prefix_cache_match_transformers() {
    for case in Case::all() {
        for max_num_batched_tokens in [7, 512] {
            let options = EngineOptions {
                max_num_seqs: 16,
                enable_prefix_caching: true,
                max_num_batched_tokens,
                ..unbatched_options()
            };
            for batched in [true, false] {
                let cached = converse(&case, &options, batched);
                // Every second turn follows a first one of 5, 40 or 150 prompt tokens and 64 reply tokens.
                let least = case.versions.len() * (5 + 40 + 150 + 3 * 50);
                assert!(
                    cached >= least,
                    "{}: {cached} tokens were cached",
                    case.name
                );
            }
        }
    }
}

#[test]
fn merged_and_saved_models_match_peft() {
    for case in Case::all() {
        for (label, adapter, expected) in &case.versions {
            let dir = tempfile::tempdir().unwrap();
            let model = match adapter {
                Some(adapter) => {
                    // Saving and loading gives the same adapter.
                    adapter.save_peft(dir.path(), "base").unwrap();
                    let again = Adapter::load_peft(dir.path(), case.model.config()).unwrap();
                    assert_eq!(again.digest(), adapter.digest(), "{}, {label}", case.name);
                    case.model.merge_adapter(adapter).unwrap()
                }
                None => Model::clone(&case.model),
            };
            let dir = tempfile::tempdir().unwrap();
            model.save(dir.path()).unwrap();
            let read = Model::load(&ModelFiles::from_dir(dir.path()).unwrap()).unwrap();
            assert_eq!(read.digest(), model.digest());
            let right = &expected["scored"][4];
            let found = read
                .score(None, &[full_sequence(&ids(&right["ids"]))])
                .unwrap();
            let what = format!("{}, {label}, merged", case.name);
            assert_close(what, &found[0].logprobs, &floats(&right["logprobs"]));
        }
    }
}

/// A copy of a checkpoint with another `config.json`.
fn reconfigured(
    case: &Case,
    change: impl FnOnce(&mut Map<String, Value>),
) -> Result<Model, String> {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(&case.dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(config.as_object_mut().unwrap());
    std::fs::write(&path, config.to_string()).unwrap();
    let files = ModelFiles::from_dir(dir.path()).map_err(|error| error.to_string())?;
    Model::load(&files).map_err(|error| error.to_string())
}

#[test]
fn rope_scaling_matches_transformers() {
    let mut kinds = 0;
    for case in Case::all() {
        for variant in list(&case.expected["variants"]) {
            let model = reconfigured(&case, |config| {
                config.insert(
                    "rope_parameters".to_owned(),
                    variant["rope_parameters"].clone(),
                );
            });
            let model = model.unwrap();
            let right = &variant["scored"][0];
            let found = model
                .score(None, &[full_sequence(&ids(&right["ids"]))])
                .unwrap();
            let what = format!("{}, {}", case.name, variant["name"]);
            assert_close(what, &found[0].logprobs, &floats(&right["logprobs"]));
            kinds += 1;
        }
    }
    assert_eq!(kinds, 2);
}

#[test]
fn configurations_of_older_versions_are_equivalent() {
    for case in Case::all() {
        let older = reconfigured(&case, |config| {
            let Some(Value::Object(mut rope)) = config.remove("rope_parameters") else {
                panic!("{} was not written by transformers 5", case.name);
            };
            config.insert("rope_theta".to_owned(), rope.remove("rope_theta").unwrap());
            let kind = rope.remove("rope_type").unwrap();
            let scaling = if kind == "default" {
                Value::Null
            } else {
                rope.insert("type".to_owned(), kind);
                Value::Object(rope)
            };
            config.insert("rope_scaling".to_owned(), scaling);
            let dtype = config.remove("dtype").unwrap();
            config.insert("torch_dtype".to_owned(), dtype);
        });
        assert_eq!(
            older.unwrap().config(),
            case.model.config(),
            "{}",
            case.name
        );
    }
}

#[test]
fn tokenization_matches_transformers() {
    for case in Case::all() {
        let tokenizer = case.tokenizer();
        for text in list(&case.expected["texts"]) {
            let spelled = text["text"].as_str().unwrap();
            let found = tokenizer.encode(spelled).unwrap();
            assert_eq!(found, ids(&text["ids"]), "{}: {spelled:?}", case.name);
            assert_eq!(tokenizer.decode(&found), text["decoded"].as_str().unwrap());
            // Transformers adds its special tokens even if the text already starts with them.
            let found = tokenizer.encode_with_special_tokens(spelled).unwrap();
            let mut once = ids(&text["with_specials"]);
            if once.len() > 1 && once[0] == once[1] && tokenizer.is_special(once[0]) {
                once.remove(0);
            }
            assert_eq!(found, once, "{}: {spelled:?}", case.name);
        }
    }
}

#[test]
fn rendered_conversations_match_transformers() {
    for case in Case::all() {
        let engine = case.engine(EngineOptions::default());
        let template: &ChatTemplate = engine.template();
        let mut refused = 0;
        for one in list(&case.expected["rendered"]) {
            let mut extra = one["extra"].as_object().unwrap().clone();
            extra.insert("date_string".to_owned(), json!("05 Nov 2026"));
            let messages: Vec<Message> = serde_json::from_value(one["messages"].clone()).unwrap();
            let tools: Option<Vec<Tool>> = serde_json::from_value(one["tools"].clone()).unwrap();
            let tools = tools.unwrap_or_default();
            let rendered = template.render(&ChatInput {
                messages: &messages,
                tools: &tools,
                add_generation_prompt: one["add_generation_prompt"].as_bool().unwrap(),
                extra: Some(&extra),
            });
            match one["refused"].as_str() {
                None => {
                    let text =
                        rendered.unwrap_or_else(|error| panic!("{}: {error}: {one}", case.name));
                    assert_eq!(text, one["text"].as_str().unwrap(), "{}", case.name);
                    let tokens = engine.tokenizer().encode(&text).unwrap();
                    assert_eq!(tokens, ids(&one["ids"]), "{}", case.name);
                }
                Some(reason) => {
                    refused += 1;
                    let error = rendered.unwrap_err();
                    assert!(
                        matches!(&error, TemplateError::Raised(words) if words == reason),
                        "{}: {error}, not {reason}",
                        case.name
                    );
                }
            }
        }
        // The templates of two families reject some conversations.
        assert_eq!(
            refused > 0,
            matches!(
                case.dir.file_name().unwrap().to_str(),
                Some("llama" | "mistral")
            )
        );
    }
}
