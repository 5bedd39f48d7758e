//! Promise: what goes wrong in Python or JavaScript while a plugin runs is reported with the line of its author's source,
//! in every kind; and what did not change is built to the same digest.
//!
//! Needs the tools of these languages, as `languages` does.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail by panicking"
)]

use std::fs;

use serde_json::{Value, json};

use super::languages::{Folder, JS, Language, PYTHON, typed, wanted};

/// A language whose mistakes show when they run.
struct Interpreted {
    language: Language,
    /// A statement that goes wrong, and the name of what it raises.
    wrong: (&'static str, &'static str),
    /// How the functions of the kinds begin, each with its kind and example.
    functions: [(&'static str, &'static str, &'static str); 8],
    /// A judge that asks a model and looks at nothing.
    asking: &'static str,
    /// How a place in the source is written, before the number of the line.
    place: &'static str,
}

const IN_PYTHON: Interpreted = Interpreted {
    language: PYTHON,
    wrong: ("        missing_name", "NameError: name 'missing_name'"),
    functions: [
        ("judge", "judge-thanks", "def score_turn("),
        ("group-judge", "group-words", "def score_group("),
        ("hint", "hint-redo", "def extract("),
        ("loss", "loss-policy-gradient", "def evaluate("),
        ("loss", "loss-policy-gradient", "def describe("),
        ("advantage", "advantage-mean", "def compute("),
        ("environment", "environment-guess", "def reset("),
        ("environment", "environment-guess", "def step("),
    ],
    asking: "from wit_world import exports
from wit_world.imports import model


class Judge(exports.Judge):
    def score_turn(self, trajectory, turn_index):
        sampling = model.Sampling(1, 0.0, 1.0, 5, [], None)
        return model.complete(model.Request(\"judge\", [], [], sampling, None))
",
    place: "plugin.py:",
};

const IN_JS: Interpreted = Interpreted {
    language: JS,
    wrong: ("    missingName();", "ReferenceError: missingName"),
    functions: [
        ("judge", "judge-thanks", "scoreTurn("),
        ("group-judge", "group-words", "scoreGroup("),
        ("hint", "hint-redo", "extract("),
        ("loss", "loss-policy-gradient", "evaluate("),
        ("loss", "loss-policy-gradient", "describe("),
        ("advantage", "advantage-mean", "compute("),
        ("environment", "environment-guess", "static reset("),
        ("environment", "environment-guess", "step("),
    ],
    asking: "import model from \"clawhost:plugin/model\";

export const judge = {
  scoreTurn() {
    const sampling = { n: 1, temperature: 0, topP: 1, maxTokens: 5, stop: [], seed: null };
    return model.complete({ model: \"judge\", messages: [], tools: [], sampling, schema: null });
  },
};
",
    place: "plugin.js:",
};

/// The error of the first transcript that `clawhost plugin test` reports.
fn first_error(folder: &Folder) -> String {
    let ended = typed(&["plugin", "test", "--json"], &folder.0);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let told: Value = serde_json::from_slice(&ended.stdout).unwrap();
    told["transcripts"][0]["error"].as_str().unwrap().to_owned()
}

fn raises(interpreted: &Interpreted) {
    if !wanted() {
        return;
    }
    let language = interpreted.language;
    for (kind, example, function) in interpreted.functions {
        let folder = Folder::new(kind, &format!("raises-{kind}"), language);
        let mut lines: Vec<String> = language
            .example(example)
            .lines()
            .map(str::to_owned)
            .collect();
        let begins = |line: &String| line.trim_start().starts_with(function);
        let at = lines.iter().position(begins).unwrap() + 1;
        lines.insert(at, interpreted.wrong.0.to_owned());
        fs::write(folder.0.join(language.source), lines.join("\n")).unwrap();
        folder.says(&["plugin", "build"]);
        let error = first_error(&folder);
        let place = format!("{}{}", interpreted.place, at + 1);
        for part in [interpreted.wrong.1, &place] {
            assert!(error.contains(part), "{kind} {function} {part}: {error}");
        }
        // `describe` has no error to answer with; what it logged stands beside the trap.
        let internal = error.contains("\"internal\"");
        assert_eq!(internal, !function.contains("describe"), "{error}");
    }
}

fn lets_through(interpreted: &Interpreted) {
    if !wanted() {
        return;
    }
    let language = interpreted.language;
    let folder = Folder::new("judge", "lets-through", language);
    let world = folder.0.join("wit/world.wit");
    let text = fs::read_to_string(&world).unwrap();
    fs::write(
        &world,
        text.replace(
            "// import clawhost:plugin/model",
            "import clawhost:plugin/model",
        ),
    )
    .unwrap();
    fs::write(folder.0.join(language.source), interpreted.asking).unwrap();
    folder.says(&["plugin", "build"]);
    let transcript = json!({
        "turn": {"reply": {"role": "assistant", "content": "7"}},
        "exchanges": [{"call": "model.complete", "request": {"model": "judge"}, "error": "timeout"}],
        "expect": {"error": "nothing"},
    });
    fs::write(folder.0.join("tests/goldens.json"), transcript.to_string()).unwrap();
    let error = first_error(&folder);
    for part in ["\"internal\"", "imeout", interpreted.place] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

fn builds_alike(interpreted: &Interpreted) {
    if !wanted() {
        return;
    }
    let folder = Folder::new("judge", "alike", interpreted.language);
    let build = |folder: &Folder| {
        folder.says(&["plugin", "build"]);
        fs::read(folder.0.join("build/alike.wasm")).unwrap()
    };
    let first = build(&folder);
    assert!(first == build(&folder), "built twice in one folder");
    let elsewhere = Folder(folder.0.with_file_name("another-folder"));
    fs::rename(&folder.0, &elsewhere.0).unwrap();
    fs::remove_dir_all(elsewhere.0.join("build")).unwrap();
    assert!(first == build(&elsewhere), "built in another folder");

    // What has changed is built.
    let source = elsewhere.0.join(interpreted.language.source);
    fs::write(source, interpreted.language.example("judge-words")).unwrap();
    assert!(first != build(&elsewhere), "built from other sources");
}

macro_rules! interpreted {
    ($module:ident, $interpreted:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn an_exception_is_an_internal_error_with_its_line_in_every_kind() {
                raises(&$interpreted);
            }

            #[test]
            fn an_error_of_a_host_call_that_nobody_catches_is_an_internal_error() {
                lets_through(&$interpreted);
            }

            #[test]
            fn unchanged_sources_give_the_same_digest_in_another_folder() {
                builds_alike(&$interpreted);
            }
        }
    };
}

interpreted!(python, IN_PYTHON);
interpreted!(js, IN_JS);
