//! Completes the checkpoint in `fixtures/openclaw` for the installed OpenClaw.
//!
//! Its tokenizer has one token for each line that OpenClaw sends in every request. The repository only has digests of
//! these lines; their text is taken from a recorded request.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use clawhost_chat::{ChatInput, ChatTemplate, Message, Tool};
use clawhost_plugins::digest;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Hex digits of a digest that are stored.
const DIGEST_DIGITS: usize = 32;

/// Where the text of a token is in a request.
#[derive(PartialEq)]
enum Place {
    /// A whole line.
    Line,
    /// The start of a line.
    Begins,
    /// The end of a line.
    Ends,
}

/// A token whose text is not known yet.
struct MissingToken {
    id: u32,
    place: Place,
    bytes: usize,
    digest: String,
}

/// A model directory with the completed tokenizer.
///
/// # Errors
/// The number of lines that the request does not contain.
pub(crate) fn completed(request: &Value) -> Result<TempDir, String> {
    let lines = missing_tokens();
    let found = find_texts(&lines, &rendered(request));
    let missing = lines.len() - found.len();
    if missing > 0 {
        return Err(format!(
            "{missing} of the {} lines that tests/fixtures/openclaw was made for are not in what this OpenClaw sends; take \
             the version that .ci/openclaw installs, or regenerate the fixture for this version with the scripts in its directory",
            lines.len()
        ));
    }
    let mut tokenizer: Value = read("tokenizer.json");
    let tokens = tokenizer["added_tokens"].as_array_mut().unwrap();
    for line in &lines {
        tokens.push(json!({
            "id": line.id, "content": found[&line.id], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false,
        }));
    }
    let tokenizer = serde_json::to_string_pretty(&tokenizer).unwrap();
    // Byte for byte the text that the model was trained with.
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

/// The tokens without text, in id order.
fn missing_tokens() -> Vec<MissingToken> {
    let lines = fs::read_to_string(fixture("lines.txt")).unwrap();
    lines
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [id, place, bytes, digest] = fields[..] else {
                panic!("lines.txt has {line:?}")
            };
            MissingToken {
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

/// The request rendered with the chat template.
fn rendered(request: &Value) -> String {
    let source = fs::read_to_string(fixture("chat_template.jinja")).unwrap();
    let template = ChatTemplate::new(&source, []).unwrap();
    let messages: Vec<Message> = serde_json::from_value(request["messages"].clone()).unwrap();
    let tools: Vec<Tool> = serde_json::from_value(request["tools"].clone()).unwrap();
    let input = ChatInput {
        messages: &messages,
        tools: &tools,
        add_generation_prompt: true,
        extra: None,
    };
    template.render(&input).unwrap()
}

/// The token texts found in a prompt, by id.
fn find_texts(missing: &[MissingToken], prompt: &str) -> HashMap<u32, String> {
    let known: HashMap<&str, &MissingToken> = missing
        .iter()
        .map(|line| (line.digest.as_str(), line))
        .collect();
    let parts: Vec<&MissingToken> = missing
        .iter()
        .filter(|line| line.place != Place::Line)
        .collect();
    let mut texts = HashMap::new();
    let mut tell = |text: &str| {
        if let Some(line) = known.get(&digest(text.as_bytes())[..DIGEST_DIGITS])
            && line.bytes == text.len()
        {
            texts.insert(line.id, text.to_owned());
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
    texts
}

/// The lines of a prompt with their line breaks, without the message delimiters.
fn lines(prompt: &str) -> impl Iterator<Item = &str> {
    prompt
        .split("<|im_start|>")
        .flat_map(|text| text.split("<|im_end|>"))
        .flat_map(|text| text.split_inclusive('\n'))
}
