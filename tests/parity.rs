//! What this engine computes with a checkpoint is what Hugging Face transformers computes with it, and peft with an adapter.
//!
//! The checkpoints are small and random, one of each family, with what transformers gives for them in float32; `make.py`
//! beside them made both. Log-probs agree to [`BOUND`], greedy continuations token by token, however requests are batched,
//! cut into chunks, or begun from what another left behind.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a test says what it found by breaking off"
)]

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawhost_policy::{
    Adapter, Candidates, ChatInput, ChatTemplate, Engine, EngineOptions, Event, Finished,
    GenerateRequest, Generation, Learned, Model, ModelFiles, Priority, Row, Sampling, Sequence,
    Served, TemplateError, Tokenizer,
};
use serde_json::{Map, Value, json};

/// How far a log-prob may be from that of transformers, in nats.
const BOUND: f32 = 1e-4;

const FAMILIES: [&str; 4] = ["qwen3", "qwen2", "llama", "mistral"];

/// A checkpoint and what was expected of it.
struct Case {
    dir: PathBuf,
    /// Family and precision, for messages.
    name: String,
    expected: Value,
    model: Arc<Model>,
    /// The base and the adapters, each with what was expected of it.
    learned: Vec<(String, Option<Arc<Adapter>>, Value)>,
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
        let model = Model::load(&ModelFiles::dir(&dir).unwrap());
        let model = Arc::new(model.unwrap_or_else(|error| panic!("{name}: {error}")));
        let mut learned = vec![("no adapter".to_owned(), None, expected["base"].clone())];
        for (adapter, values) in expected["adapters"].as_object().unwrap() {
            let read = Adapter::load_peft(&dir.join("adapters").join(adapter), model.config());
            let read = read.unwrap_or_else(|error| panic!("{name}, {adapter}: {error}"));
            let label = format!("adapter {adapter}");
            learned.push((label, Some(Arc::new(read)), values.clone()));
        }
        Self {
            dir,
            name,
            expected,
            model,
            learned,
        }
    }

    fn engine(&self, options: EngineOptions) -> Engine {
        Engine::load(&ModelFiles::dir(&self.dir).unwrap(), options).unwrap()
    }

    fn tokenizer(&self) -> Tokenizer {
        let files = ModelFiles::dir(&self.dir).unwrap();
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

fn close(what: impl Display, found: &[f32], expected: &[f32]) -> f32 {
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

fn whole(tokens: &[u32]) -> Sequence<'_> {
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
fn scores_equal_those_of_transformers() {
    for case in Case::all() {
        for (label, adapter, expected) in &case.learned {
            let what = format!("{}, {label}", case.name);
            let adapter = adapter.as_deref();
            let all: Vec<Vec<u32>> = list(&expected["scored"])
                .iter()
                .map(|s| ids(&s["ids"]))
                .collect();
            let sequences: Vec<Sequence<'_>> = all.iter().map(|tokens| whole(tokens)).collect();
            let together = case.model.score(adapter, &sequences).unwrap();
            let mut worst = 0f32;
            for ((sequence, packed), right) in sequences
                .iter()
                .zip(&together)
                .zip(list(&expected["scored"]))
            {
                let right = floats(&right["logprobs"]);
                let alone = case.model.score(adapter, &[*sequence]).unwrap();
                let what = format!("{what}, {} tokens", sequence.tokens.len());
                worst = worst.max(close(format!("{what}, alone"), &alone[0].logprobs, &right));
                worst = worst.max(close(format!("{what}, packed"), &packed.logprobs, &right));
            }
            println!("{what}: within {worst:.1e}");
        }
    }
}

#[test]
fn chunks_of_a_prompt_give_the_distribution_of_transformers() {
    for case in Case::all() {
        for (label, adapter, expected) in &case.learned {
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
                            close(&what, &[next], &logprobs[from..=from]);
                        }
                        let row = Row {
                            tokens: part,
                            cache: &mut cache,
                            adapter: adapter.as_deref(),
                        };
                        distribution = log_softmax(&case.model.forward(&mut [row]).unwrap());
                    }
                    close(&what, &distribution, &last);
                }
            }
        }
    }
}

/// A reply as it was generated.
struct Reply {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    text: String,
    finished: Finished,
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

fn greedy(engine: &Engine, prompt: &Value, served: &Served, tokens: usize) -> Generation {
    let request = GenerateRequest {
        prompt: ids(prompt),
        sampling: Sampling {
            temperature: 0.0,
            max_tokens: u32::try_from(tokens).unwrap(),
            ..Sampling::default()
        },
        served: served.clone(),
        priority: Priority::Person,
        user: None,
    };
    engine.generate(request).unwrap()
}

/// Runs every turn of every conversation under every adapter and compares; `together` asks for all that have a turn
/// of that number at once. Tokens that were taken from the memory of an earlier turn are added up.
fn converse(case: &Case, options: &EngineOptions, together: bool) -> usize {
    let engine = case.engine(options.clone());
    let mut conversations = Vec::new();
    // Conversations of different adapters stand side by side.
    for number in 0..3 {
        for (version, (label, adapter, expected)) in (0..).zip(&case.learned) {
            let served = match adapter {
                None => Served::base(&case.model),
                Some(adapter) => Served {
                    version,
                    digest: adapter.digest(),
                    learned: Some(Learned::Lora(Arc::clone(adapter))),
                },
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
            if !together {
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
    close(&what, &reply.logprobs, &floats(&expected["logprobs"]));
    reply.finished.cached_tokens
}

fn apart() -> EngineOptions {
    EngineOptions {
        max_batch: 1,
        prefix_reuse: false,
        ..EngineOptions::default()
    }
}

#[test]
fn greedy_continuations_equal_those_of_transformers_one_by_one() {
    for case in Case::all() {
        assert_eq!(converse(&case, &apart(), false), 0);
    }
}

#[test]
fn greedy_continuations_equal_those_of_transformers_in_one_batch() {
    for case in Case::all() {
        let options = EngineOptions {
            max_batch: 16,
            ..apart()
        };
        converse(&case, &options, true);
    }
}

#[test]
fn greedy_continuations_equal_those_of_transformers_in_small_chunks() {
    for case in Case::all() {
        let options = EngineOptions {
            max_batch: 16,
            prefill_chunk: 7,
            ..apart()
        };
        converse(&case, &options, true);
        converse(&case, &options, false);
    }
}

#[test]
fn second_turns_that_begin_from_the_first_equal_those_of_transformers() {
    for case in Case::all() {
        for prefill_chunk in [7, 512] {
            let options = EngineOptions {
                max_batch: 16,
                prefix_reuse: true,
                prefill_chunk,
                ..apart()
            };
            for together in [true, false] {
                let cached = converse(&case, &options, together);
                // Every second turn had a first, of 5, 40 or 150 tokens and 64 of reply.
                let least = case.learned.len() * (5 + 40 + 150 + 3 * 50);
                assert!(
                    cached >= least,
                    "{}: {cached} tokens were taken over",
                    case.name
                );
            }
        }
    }
}

#[test]
fn merged_and_written_anew_a_model_still_scores_as_in_peft() {
    for case in Case::all() {
        for (label, adapter, expected) in &case.learned {
            let dir = tempfile::tempdir().unwrap();
            let model = match adapter {
                Some(adapter) => {
                    // What we write of it is the same adapter.
                    adapter.save_peft(dir.path(), "base").unwrap();
                    let again = Adapter::load_peft(dir.path(), case.model.config()).unwrap();
                    assert_eq!(again.digest(), adapter.digest(), "{}, {label}", case.name);
                    case.model.merged(adapter).unwrap()
                }
                None => Model::clone(&case.model),
            };
            let dir = tempfile::tempdir().unwrap();
            model.save(dir.path()).unwrap();
            let read = Model::load(&ModelFiles::dir(dir.path()).unwrap()).unwrap();
            assert_eq!(read.digest(), model.digest());
            let right = &expected["scored"][4];
            let found = read.score(None, &[whole(&ids(&right["ids"]))]).unwrap();
            let what = format!("{}, {label}, merged", case.name);
            close(what, &found[0].logprobs, &floats(&right["logprobs"]));
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
    let files = ModelFiles::dir(dir.path()).map_err(|error| error.to_string())?;
    Model::load(&files).map_err(|error| error.to_string())
}

#[test]
fn stretched_positions_equal_those_of_transformers() {
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
            let found = model.score(None, &[whole(&ids(&right["ids"]))]).unwrap();
            let what = format!("{}, {}", case.name, variant["name"]);
            close(what, &found[0].logprobs, &floats(&right["logprobs"]));
            kinds += 1;
        }
    }
    assert_eq!(kinds, 2);
}

#[test]
fn configurations_of_older_versions_say_the_same() {
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
fn texts_become_the_tokens_of_transformers() {
    for case in Case::all() {
        let tokenizer = case.tokenizer();
        for text in list(&case.expected["texts"]) {
            let spelled = text["text"].as_str().unwrap();
            let found = tokenizer.encode(spelled).unwrap();
            assert_eq!(found, ids(&text["ids"]), "{}: {spelled:?}", case.name);
            assert_eq!(tokenizer.decode(&found), text["decoded"].as_str().unwrap());
            // What transformers puts before a text, it puts there even where the text has it already.
            let found = tokenizer.encode_bare(spelled).unwrap();
            let mut once = ids(&text["with_specials"]);
            if once.len() > 1 && once[0] == once[1] && tokenizer.is_special(once[0]) {
                once.remove(0);
            }
            assert_eq!(found, once, "{}: {spelled:?}", case.name);
        }
    }
}

#[test]
fn conversations_are_rendered_as_transformers_renders_them() {
    for case in Case::all() {
        let engine = case.engine(EngineOptions::default());
        let template: &ChatTemplate = engine.template();
        let mut refused = 0;
        for one in list(&case.expected["rendered"]) {
            let mut extra = one["extra"].as_object().unwrap().clone();
            extra.insert("date_string".to_owned(), json!("05 Nov 2026"));
            let tools = one["tools"].as_array().cloned().unwrap_or_default();
            let rendered = template.render(&ChatInput {
                messages: list(&one["messages"]),
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
        // Those of two families have something to object to.
        assert_eq!(
            refused > 0,
            matches!(
                case.dir.file_name().unwrap().to_str(),
                Some("llama" | "mistral")
            )
        );
    }
}
