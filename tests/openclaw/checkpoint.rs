//! The checkpoint in `fixtures/openclaw`, made whole for the OpenClaw that is installed.
//!
//! Its tokenizer has a token for each line that OpenClaw sends every time. The repository knows of these lines a digest
//! alone; their text is taken from what OpenClaw sends.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use clawhost_plugins::digest;
use clawhost_policy::{ChatInput, ChatTemplate};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Hex digits of a digest that are kept.
const KEPT: usize = 32;

/// Where a token's text is in a request.
#[derive(PartialEq)]
enum Place {
    /// A whole line.
    Line,
    /// How a line begins.
    Begins,
    /// How a line ends.
    Ends,
}

/// A token of which all is known but its text.
struct Untold {
    id: u32,
    place: Place,
    bytes: usize,
    digest: String,
}

/// A model directory with the whole tokenizer.
///
/// # Errors
/// How many lines the request does not have.
pub(crate) fn completed(request: &Value) -> Result<TempDir, String> {
    let untold = untold();
    let found = told(&untold, &rendered(request));
    let missing = untold.len() - found.len();
    if missing > 0 {
        return Err(format!(
            "{missing} of the {} lines that tests/fixtures/openclaw was made for are not in what this OpenClaw sends; take \
             the version that .ci/openclaw installs, or make the fixture anew for this one with the scripts beside it",
            untold.len()
        ));
    }
    let mut tokenizer: Value = read("tokenizer.json");
    let tokens = tokenizer["added_tokens"].as_array_mut().unwrap();
    for line in &untold {
        tokens.push(json!({
            "id": line.id, "content": found[&line.id], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false,
        }));
    }
    let tokenizer = serde_json::to_string_pretty(&tokenizer).unwrap();
    // Byte for byte what the model was trained with.
    let provenance = read("provenance.json");
    assert_eq!(
        provenance["files"]["tokenizer.json"],
        digest(tokenizer.as_bytes())
    );
    let dir = TempDir::new().unwrap();
    for file in [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer_config.json",
    ] {
        fs::copy(fixture(file), dir.path().join(file)).unwrap();
    }
    fs::write(dir.path().join("tokenizer.json"), tokenizer).unwrap();
    Ok(dir)
}

fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/openclaw/model")
        .join(file)
}

fn read(file: &str) -> Value {
    serde_json::from_slice(&fs::read(fixture(file)).unwrap()).unwrap()
}

/// The tokens without text, in the order of their ids.
fn untold() -> Vec<Untold> {
    let lines = fs::read_to_string(fixture("lines.txt")).unwrap();
    lines
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [id, place, bytes, digest] = fields[..] else {
                panic!("lines.txt has {line:?}")
            };
            Untold {
                id: id.parse().unwrap(),
                place: match place {
                    "line" => Place::Line,
                    "begins" => Place::Begins,
                    "ends" => Place::Ends,
                    other => panic!("lines.txt has the place {other:?}"),
                },
                bytes: bytes.parse().unwrap(),
                digest: digest.to_owned(),
            }
        })
        .collect()
}

/// The request as the model reads it.
fn rendered(request: &Value) -> String {
    let source = fs::read_to_string(fixture("chat_template.jinja")).unwrap();
    let template = ChatTemplate::new(&source, []).unwrap();
    let list = |field: &str| request[field].as_array().unwrap().as_slice();
    let input = ChatInput {
        messages: list("messages"),
        tools: list("tools"),
        add_generation_prompt: true,
        extra: None,
    };
    template.render(&input).unwrap()
}

/// The texts that a prompt has for tokens, by id.
fn told(untold: &[Untold], prompt: &str) -> HashMap<u32, String> {
    let known: HashMap<&str, &Untold> = untold
        .iter()
        .map(|line| (line.digest.as_str(), line))
        .collect();
    let parts: Vec<&Untold> = untold
        .iter()
        .filter(|line| line.place != Place::Line)
        .collect();
    let mut told = HashMap::new();
    let mut tell = |text: &str| {
        if let Some(line) = known.get(&digest(text.as_bytes())[..KEPT])
            && line.bytes == text.len()
        {
            told.insert(line.id, text.to_owned());
        }
    };
    for line in lines(prompt) {
        tell(line);
        // The last line of a message ends where the message does.
        tell(line.trim_end_matches('\n'));
        for part in &parts {
            let there = match part.place {
                Place::Begins => line.get(..part.bytes),
                _ => line
                    .len()
                    .checked_sub(part.bytes)
                    .and_then(|start| line.get(start..)),
            };
            there.into_iter().for_each(&mut tell);
        }
    }
    told
}

/// The lines of a prompt with their line breaks, without the marks between messages.
fn lines(prompt: &str) -> impl Iterator<Item = &str> {
    prompt
        .split("<|im_start|>")
        .flat_map(|text| text.split("<|im_end|>"))
        .flat_map(|text| text.split_inclusive('\n'))
}
