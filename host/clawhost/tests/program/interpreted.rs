//! An exception in a Python or JavaScript plugin is reported with the line of its source, and unchanged sources are built
//! to the same digest.
//!
//! Needs the tools of these languages, as `languages` does.

use std::fs;

use serde_json::{Value, json};

use super::languages::{JS, Language, PYTHON, PluginDir, run_clawhost, tools_enabled};

/// A language whose errors appear at run time.
struct Interpreted {
    language: Language,
    /// A statement that raises an exception, and the text of the exception.
    error: (&'static str, &'static str),
    /// Functions in which to raise it: kind, example and the start of the function's definition.
    functions: &'static [(&'static str, &'static str, &'static str)],
    /// A judge that calls a model and does not catch its error.
    model_judge: &'static str,
    /// Start of a source location, before the line number.
    location: &'static str,
}

const IN_PYTHON: Interpreted = Interpreted {
    language: PYTHON,
    error: ("        missing_name", "NameError: name 'missing_name'"),
    // A Python component takes tens of seconds to build, so these are the three ways in which the entry calls a
    // plugin: with an error as a possible result, without one (`describe`), and as a resource (an environment). The other
    // kinds differ from the judge only in a row of the entry's table, and `languages` builds and calls each of them. All
    // kinds are tested in JavaScript, which builds in seconds.
    functions: &[
        ("judge", "judge-thanks", "def score_turn("),
        ("loss", "loss-policy-gradient", "def describe("),
        ("environment", "environment-guess", "def step("),
    ],
    model_judge: "from wit_world import exports
from wit_world.imports import model


class Judge(exports.Judge):
    def score_turn(self, trajectory, turn_index):
        sampling = model.Sampling(1, 0.0, 1.0, 5, [], None)
        return model.complete(model.Request(\"judge\", [], [], sampling, None))
",
    location: "plugin.py:",
};

const IN_JS: Interpreted = Interpreted {
    language: JS,
    error: ("    missingName();", "ReferenceError: missingName"),
    functions: &[
        ("judge", "judge-thanks", "scoreTurn("),
        ("group-judge", "group-words", "scoreGroup("),
        ("hint", "hint-redo", "extract("),
        ("loss", "loss-policy-gradient", "evaluate("),
        ("loss", "loss-policy-gradient", "describe("),
        ("advantage", "advantage-mean", "compute("),
        ("environment", "environment-guess", "static reset("),
        ("environment", "environment-guess", "step("),
    ],
    model_judge: "import model from \"clawhost:plugin/model\";

export const judge = {
  scoreTurn() {
    const sampling = { n: 1, temperature: 0, topP: 1, maxTokens: 5, stop: [], seed: null };
    return model.complete({ model: \"judge\", messages: [], tools: [], sampling, schema: null });
  },
};
",
    location: "plugin.js:",
};

/// The error of the first transcript that `clawhost plugin test` reports.
fn first_error(dir: &PluginDir) -> String {
    let output = run_clawhost(&["plugin", "test", "--json"], &dir.0);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["transcripts"][0]["error"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn check_exceptions(interpreted: &Interpreted) {
    if !tools_enabled() {
        return;
    }
    let language = interpreted.language;
    for (kind, example, function) in interpreted.functions.iter().copied() {
        let dir = PluginDir::new(kind, &format!("raises-{kind}"), language);
        let mut lines: Vec<String> = language
            .example(example)
            .lines()
            .map(str::to_owned)
            .collect();
        let begins = |line: &String| line.trim_start().starts_with(function);
        let at = lines.iter().position(begins).unwrap() + 1;
        lines.insert(at, interpreted.error.0.to_owned());
        fs::write(dir.0.join(language.source), lines.join("\n")).unwrap();
        dir.run(&["plugin", "build"]);
        let error = first_error(&dir);
        let location = format!("{}{}", interpreted.location, at + 1);
        for part in [interpreted.error.1, &location] {
            assert!(error.contains(part), "{kind} {function} {part}: {error}");
        }
        // `describe` cannot return an error: it traps, and the fault has what it logged.
        let internal = error.contains("\"internal\"");
        assert_eq!(internal, !function.contains("describe"), "{error}");
    }
}

fn check_host_errors(interpreted: &Interpreted) {
    if !tools_enabled() {
        return;
    }
    let language = interpreted.language;
    let dir = PluginDir::new("judge", "lets-through", language);
    let world = dir.0.join("wit/world.wit");
    let text = fs::read_to_string(&world).unwrap();
    fs::write(
        &world,
        text.replace(
            "// import clawhost:plugin/model",
            "import clawhost:plugin/model",
        ),
    )
    .unwrap();
    fs::write(dir.0.join(language.source), interpreted.model_judge).unwrap();
    dir.run(&["plugin", "build"]);
    let transcript = json!({
        "turn": {"reply": {"role": "assistant", "content": "7"}},
        "exchanges": [{"call": "model.complete", "request": {"model": "judge"}, "error": "timeout"}],
        "expect": {"error": "nothing"},
    });
    fs::write(dir.0.join("tests/goldens.json"), transcript.to_string()).unwrap();
    let error = first_error(&dir);
    for part in ["\"internal\"", "imeout", interpreted.location] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

fn check_digests(interpreted: &Interpreted) {
    if !tools_enabled() {
        return;
    }
    let dir = PluginDir::new("judge", "alike", interpreted.language);
    let build = |dir: &PluginDir| {
        dir.run(&["plugin", "build"]);
        fs::read(dir.0.join("build/alike.wasm")).unwrap()
    };
    let first = build(&dir);
    assert!(first == build(&dir), "built twice in one directory");
    let moved = PluginDir(dir.0.with_file_name("another-directory"));
    fs::rename(&dir.0, &moved.0).unwrap();
    fs::remove_dir_all(moved.0.join("build")).unwrap();
    assert!(first == build(&moved), "built in another directory");

    // Changed sources are built again.
    let source = moved.0.join(interpreted.language.source);
    fs::write(source, interpreted.language.example("judge-words")).unwrap();
    assert!(first != build(&moved), "built from other sources");
}

macro_rules! interpreted {
    ($module:ident, $interpreted:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn an_exception_is_an_internal_error_with_its_line() {
                check_exceptions(&$interpreted);
            }

            #[test]
            fn an_uncaught_error_of_a_host_call_is_an_internal_error() {
                check_host_errors(&$interpreted);
            }

            #[test]
            fn unchanged_sources_give_the_same_digest_in_another_directory() {
                check_digests(&$interpreted);
            }
        }
    };
}

interpreted!(python, IN_PYTHON);
interpreted!(js, IN_JS);
