//! Promise: what an author types works. `clawhost plugin new`, `build`, `test` and `run` give a plugin that
//! passes the transcripts it came with, of every kind in every language that can express it; and the same
//! judge or hint extractor answers the shared turns (`sdk/shared/turns.json`) alike in all of them.
//!
//! Needs the tools of all languages, so all but one run only when `CLAWHOST_AUTHOR_TOOLS` is `1`; then a missing
//! tool is a failure. `.ci/author-tools` installs them, `.ci/run` does both.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and these say when they cannot run"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// What was typed, with how it ended.
pub(super) fn typed(arguments: &[&str], within: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clawhost"))
        .args(arguments)
        .current_dir(within)
        // Compiled code of the large runtimes is worth keeping, but not among the user's.
        .env("CLAWHOST_CACHE", scratch().join("compiled"))
        .env_remove("CLAWHOST_LOG")
        .output()
        .unwrap()
}

/// Whether the tools are to be used. Without them nothing is shown, which must not pass in CI.
pub(super) fn wanted() -> bool {
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

/// Files that are kept between runs, so that cargo finds what it has compiled.
fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("languages")
}

/// A language as the command line names it, with the file that holds the plugin.
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
    /// The text of an SDK's example, as it stands in a plugin's own folder.
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
    }
}

/// A plugin's folder.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    /// `clawhost plugin new KIND NAME --lang LANGUAGE`, typed in an empty folder.
    pub(super) fn new(kind: &str, name: &str, language: Language) -> Folder {
        let desk = scratch().join(format!("{}-{name}", language.name));
        // A run before this one may have left it.
        let _ = fs::remove_dir_all(&desk);
        fs::create_dir_all(&desk).unwrap();
        let new = ["plugin", "new", kind, name, "--lang", language.name];
        succeeds(&new, typed(&new, &desk));
        let folder = Folder(desk.join(name));
        if language.name == "rust" {
            // Plugins in Rust share what they depend on; alone each would take a cold build.
            let shared = scratch().join("cargo");
            fs::create_dir_all(&shared).unwrap();
            fs::create_dir_all(folder.0.join("build")).unwrap();
            std::os::unix::fs::symlink(shared, folder.0.join("build/cargo")).unwrap();
        }
        folder
    }

    /// `clawhost plugin …`, typed in the folder; its standard output.
    pub(super) fn says(&self, arguments: &[&str]) -> String {
        succeeds(arguments, typed(arguments, &self.0))
    }

    /// The JSON that a command prints.
    fn tells(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(self.says(arguments).lines().last().unwrap()).unwrap()
    }

    /// Puts the shared turns, with what this example answers, in place of the folder's transcripts.
    fn is_shown_the_shared_turns(&self, example: &str) -> usize {
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

    /// `clawhost plugin test` passes this number of transcripts.
    fn passes(&self, transcripts: usize, more: &[&str]) {
        let arguments = [&["plugin", "test", "--json"], more].concat();
        let told = self.tells(&arguments);
        assert_eq!(told["passed"], transcripts, "{told}");
        assert_eq!(told["failed"], 0, "{told}");
    }
}

fn succeeds(arguments: &[&str], ended: Output) -> String {
    let complaints = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{arguments:?}: {complaints}");
    String::from_utf8(ended.stdout).unwrap()
}

/// Everything that an author types, for a plugin of this kind.
fn works(language: Language, kind: &str) {
    if !wanted() {
        return;
    }
    let name = if kind == "judge" { "j" } else { kind };
    let folder = Folder::new(kind, name, language);
    folder.says(&["plugin", "build"]);
    let tested = folder.says(&["plugin", "test"]);
    assert!(tested.contains(", 0 failed"), "{tested}");
    let looked = folder.tells(&["plugin", "inspect", &format!("build/{name}.wasm"), "--json"]);
    assert_eq!(looked["kind"], kind, "{looked}");
    match kind {
        "judge" => {
            let run = folder.says(&["plugin", "run"]);
            assert!(run.contains("the user gave thanks"), "{run}");
            let turns = folder.is_shown_the_shared_turns("judge-thanks");
            folder.passes(turns, &[]);
            fs::write(
                folder.0.join(language.source),
                language.example("judge-words"),
            )
            .unwrap();
            folder.says(&["plugin", "build"]);
            folder.is_shown_the_shared_turns("judge-words");
            folder.passes(turns, &[]);
        }
        "hint" => {
            let run = folder.says(&["plugin", "run"]);
            assert!(run.contains("Afterwards the user said"), "{run}");
            let turns = folder.is_shown_the_shared_turns("hint-redo");
            folder.passes(turns, &[]);
        }
        _ => {}
    }
}

/// One test for each kind in a language.
macro_rules! language {
    ($module:ident, $language:expr, $($name:ident: $kind:literal),+) => {
        mod $module {
            use super::*;

            $(#[test]
            fn $name() {
                works($language, $kind);
            })+

            #[test]
            fn a_mistake_is_told_in_the_compilers_words() {
                mistaken($language);
            }
        }
    };
}

language!(rust, RUST, judge: "judge", group_judge: "group-judge", hint: "hint", loss: "loss",
    advantage: "advantage", environment: "environment");
language!(python, PYTHON, judge: "judge", group_judge: "group-judge", hint: "hint", loss: "loss",
    advantage: "advantage", environment: "environment");
language!(js, JS, judge: "judge", group_judge: "group-judge", hint: "hint", loss: "loss",
    advantage: "advantage", environment: "environment");
language!(c, C, judge: "judge", group_judge: "group-judge", hint: "hint", loss: "loss",
    advantage: "advantage");

fn mistaken(language: Language) {
    if !wanted() {
        return;
    }
    let folder = Folder::new("judge", "mistaken", language);
    fs::write(folder.0.join(language.source), "this is ( no program\n").unwrap();
    let ended = typed(&["plugin", "build"], &folder.0);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let told = String::from_utf8_lossy(&ended.stderr);
    // The words of a compiler keep their lines.
    assert!(told.contains("failed; what it said:\n"), "{told}");
}

/// Runs without any tool: the component is checked in.
#[test]
fn the_embedded_word_counter_gives_the_shared_verdicts() {
    let folder = Folder::new("judge", "counter", RUST);
    let turns = folder.is_shown_the_shared_turns("judge-words");
    let component = repository().join("plugins/artifacts/judge-minimal.wasm");
    folder.passes(turns, &["--component", component.to_str().unwrap()]);
}
