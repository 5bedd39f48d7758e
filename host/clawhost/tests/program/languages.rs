//! The commands of a plugin author: `clawhost plugin new`, `build`, `test` and `run` give a plugin that passes its
//! transcripts, for every kind in every language that supports it; and the same judge or hint extractor gives the same
//! answers to the shared turns (`sdk/shared/turns.json`) in all languages.
//!
//! Needs the tools of all languages, so all tests but one run only when `CLAWHOST_AUTHOR_TOOLS` is `1`; then a missing
//! tool is a failure. `.ci/author-tools` installs them, `.ci/run` does both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the program with these arguments.
pub(super) fn run_clawhost(arguments: &[&str], dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clawhost"))
        .args(arguments)
        .current_dir(dir)
        // Caches the large runtimes, but not in the user's cache.
        .env("CLAWHOST_CACHE", scratch().join("compiled"))
        // A runtime takes half a minute to compile at a low priority; how long that is depends on what else runs.
        .env("CLAWHOST_PLUGINS__HOST__COMPILING__WALL_TIME", "1h")
        .env_remove("CLAWHOST_LOG")
        .output()
        .unwrap()
}

/// Whether the tools are enabled. Skipping must not pass in CI.
pub(super) fn tools_enabled() -> bool {
    if std::env::var_os("CLAWHOST_AUTHOR_TOOLS").is_some_and(|value| value == "1") {
        return true;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here = |tool: &str| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file());
    let tools = [
        "cargo",
        "componentize-py",
        "node",
        "componentize-qjs",
        "zig",
    ];
    let missing: Vec<&str> = tools.into_iter().filter(|tool| !is_here(tool)).collect();
    let reason = format!(
        "CLAWHOST_AUTHOR_TOOLS is not 1; not on the PATH: {}; `.ci/author-tools` installs them",
        if missing.is_empty() {
            "nothing".to_owned()
        } else {
            missing.join(", ")
        }
    );
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "{reason}"
    );
    println!("not run: {reason}");
    false
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files kept between runs, so that cargo reuses its builds.
fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("languages")
}

/// A language's name on the command line and its source file.
#[derive(Clone, Copy)]
pub(super) struct Language {
    name: &'static str,
    pub(super) source: &'static str,
}

const RUST: Language = Language {
    name: "rust",
    source: "src/lib.rs",
};
pub(super) const PYTHON: Language = Language {
    name: "python",
    source: "plugin.py",
};
pub(super) const JS: Language = Language {
    name: "js",
    source: "plugin.js",
};
const C: Language = Language {
    name: "c",
    source: "plugin.c",
};

impl Language {
    /// The text of an SDK example, with imports as in a plugin directory.
    pub(super) fn example(self, name: &str) -> String {
        let sdk = repository().join("sdk");
        let path = match self.name {
            "rust" => sdk.join(format!("templates/rust/{name}.rs")),
            "python" => sdk.join(format!("python/examples/{}.py", name.replace('-', "_"))),
            "js" => sdk.join(format!("js/examples/{name}.js")),
            _ => sdk.join(format!("c/examples/{name}.c")),
        };
        let text = fs::read_to_string(path).unwrap();
        text.replace("\"../clawhost.js\"", "\"./sdk/js/clawhost.js\"")
            .replace("\"../host.js\"", "\"./sdk/js/host.js\"")
    }
}

/// A plugin directory.
pub(super) struct PluginDir(pub(super) PathBuf);

impl PluginDir {
    /// Runs `clawhost plugin new KIND NAME --lang LANGUAGE` in an empty directory.
    pub(super) fn new(kind: &str, name: &str, language: Language) -> PluginDir {
        let desk = scratch().join(format!("{}-{name}", language.name));
        // A previous run may have left it.
        let _ = fs::remove_dir_all(&desk);
        fs::create_dir_all(&desk).unwrap();
        let new = ["plugin", "new", kind, name, "--lang", language.name];
        assert_success(&new, run_clawhost(&new, &desk));
        let dir = PluginDir(desk.join(name));
        if language.name == "rust" {
            // Rust plugins share a cargo target directory; otherwise each needs a cold build.
            let shared = scratch().join("cargo");
            fs::create_dir_all(&shared).unwrap();
            fs::create_dir_all(dir.0.join("build")).unwrap();
            std::os::unix::fs::symlink(shared, dir.0.join("build/cargo")).unwrap();
        }
        dir
    }

    /// Runs a command in the directory and returns its standard output.
    pub(super) fn run(&self, arguments: &[&str]) -> String {
        assert_success(arguments, run_clawhost(arguments, &self.0))
    }

    /// Runs a command and parses the JSON it prints.
    fn run_json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(self.run(arguments).lines().last().unwrap()).unwrap()
    }

    /// Replaces the transcripts by the shared turns with the expected answers of this example.
    fn use_shared_turns(&self, example: &str) -> usize {
        let text = fs::read_to_string(repository().join("sdk/shared/turns.json")).unwrap();
        let mut rows: Vec<Value> = serde_json::from_str(&text).unwrap();
        for row in &mut rows {
            let expected = row["expect"][example].take();
            assert!(expected.is_object(), "{example} has no answer to {row}");
            row["expect"] = expected;
        }
        let text = serde_json::to_string(&rows).unwrap();
        fs::create_dir_all(self.0.join("tests")).unwrap();
        fs::write(self.0.join("tests/goldens.json"), text).unwrap();
        rows.len()
    }

    /// Asserts that `clawhost plugin test` passes this number of transcripts.
    fn assert_passes(&self, transcripts: usize, more: &[&str]) {
        let arguments = [&["plugin", "test", "--json"], more].concat();
        let output = self.run_json(&arguments);
        assert_eq!(output["passed"], transcripts, "{output}");
        assert_eq!(output["failed"], 0, "{output}");
    }
}

fn assert_success(arguments: &[&str], output: Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs all author commands for a plugin of this kind.
fn check_author_commands(language: Language, kind: &str) {
    if !tools_enabled() {
        return;
    }
    let name = if kind == "judge" { "j" } else { kind };
    let dir = PluginDir::new(kind, name, language);
    dir.run(&["plugin", "build"]);
    let test_output = dir.run(&["plugin", "test"]);
    assert!(test_output.contains(", 0 failed"), "{test_output}");
    let inspected = dir.run_json(&["plugin", "inspect", &format!("build/{name}.wasm"), "--json"]);
    assert_eq!(inspected["kind"], kind, "{inspected}");
    match kind {
        "judge" => {
            let run = dir.run(&["plugin", "run"]);
            assert!(run.contains("the user gave thanks"), "{run}");
            let turns = dir.use_shared_turns("judge-thanks");
            dir.assert_passes(turns, &[]);
            fs::write(dir.0.join(language.source), language.example("judge-words")).unwrap();
            dir.run(&["plugin", "build"]);
            dir.use_shared_turns("judge-words");
            dir.assert_passes(turns, &[]);
        }
        "hint" => {
            let run = dir.run(&["plugin", "run"]);
            assert!(run.contains("Afterwards the user said"), "{run}");
            let turns = dir.use_shared_turns("hint-redo");
            dir.assert_passes(turns, &[]);
        }
        _ => {}
    }
}

/// One test per kind in a language.
macro_rules! language {
    ($module:ident, $language:expr, $($name:ident: $kind:literal),+) => {
        mod $module {
            use super::*;

            $(#[test]
            fn $name() {
                check_author_commands($language, $kind);
            })+

            #[test]
            fn compiler_errors_are_printed() {
                check_compiler_errors($language);
            }
        }
    };
}

language!(rust, RUST, judge: "judge", group_judge: "group-judge", hint: "hint", filter: "filter",
    loss: "loss", pair_loss: "pair-loss", advantage: "advantage", gate: "gate", environment: "environment");
language!(python, PYTHON, judge: "judge", group_judge: "group-judge", hint: "hint", filter: "filter",
    loss: "loss", pair_loss: "pair-loss", advantage: "advantage", gate: "gate", environment: "environment");
language!(js, JS, judge: "judge", group_judge: "group-judge", hint: "hint", filter: "filter",
    loss: "loss", pair_loss: "pair-loss", advantage: "advantage", gate: "gate", environment: "environment");
language!(c, C, judge: "judge", group_judge: "group-judge", hint: "hint", filter: "filter",
    loss: "loss", pair_loss: "pair-loss", advantage: "advantage", gate: "gate");

fn check_compiler_errors(language: Language) {
    if !tools_enabled() {
        return;
    }
    let dir = PluginDir::new("judge", "mistaken", language);
    fs::write(dir.0.join(language.source), "this is ( no program\n").unwrap();
    let output = run_clawhost(&["plugin", "build"], &dir.0);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    // Compiler output keeps its line breaks.
    assert!(stderr.contains("failed; what it said:\n"), "{stderr}");
}

/// Needs no tools: the component is checked in.
#[test]
fn the_embedded_word_counter_gives_the_shared_verdicts() {
    let dir = PluginDir::new("judge", "counter", RUST);
    let turns = dir.use_shared_turns("judge-words");
    let component = repository().join("plugins/artifacts/judge-minimal.wasm");
    dir.assert_passes(turns, &["--component", component.to_str().unwrap()]);
}
