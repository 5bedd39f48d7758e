//! Promise: a plugin in any language builds with one command, passes the test that it came with, asks
//! for nothing, and judges as the same plugin in any other language does.
//!
//! Needs the tools of all languages, so it runs only when `CLAWHOST_AUTHOR_TOOLS` is `1`; then a
//! missing tool is a failure. `.ci/author-tools` installs them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};

use clawhost_authoring::{
    AuthoringError, Built, Golden, Language, build, check, goldens, scaffold,
};
use clawhost_plugins::{Grants, HostOptions, Kind, Plugin, PluginHost, Profile};

fn wanted() -> bool {
    std::env::var_os("CLAWHOST_AUTHOR_TOOLS").is_some_and(|value| value == "1")
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Loads what was built, without any grant.
fn load(host: &PluginHost, built: &Built) -> Plugin {
    let bytes = fs::read(&built.component).unwrap();
    assert_eq!(bytes.len(), built.bytes);
    let name = built.component.display().to_string();
    host.load(&name, &bytes, &Grants::default(), Profile::default())
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

async fn passes(plugin: &Plugin, transcripts: &[Golden], what: &str) {
    assert!(!transcripts.is_empty(), "{what} has no transcripts");
    for checked in check(plugin, transcripts).await {
        if let Err(difference) = checked.outcome {
            panic!("{what}, {:?}: {difference}", checked.name);
        }
    }
}

/// The shared turns, with what this example answers.
fn shared(example: &str) -> Vec<Golden> {
    let text = fs::read_to_string(repository().join("sdk/shared/turns.json")).unwrap();
    let mut rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    for row in &mut rows {
        let expected = row["expect"][example].take();
        assert!(expected.is_object(), "{example} has no answer to {row}");
        row["expect"] = expected;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tests")).unwrap();
    let text = serde_json::to_string(&rows).unwrap();
    fs::write(dir.path().join("tests/turns.json"), text).unwrap();
    goldens(dir.path()).unwrap()
}

/// Where an SDK keeps an example, and what an author would change in it when it is copied.
fn example(language: Language, name: &str) -> String {
    let sdk = repository().join("sdk");
    let path = match language {
        Language::Rust => sdk.join(format!("templates/rust/{name}.rs")),
        Language::Python => sdk.join(format!("python/examples/{}.py", name.replace('-', "_"))),
        Language::Js => sdk.join(format!("js/examples/{name}.js")),
        Language::C => sdk.join(format!("c/examples/{name}.c")),
    };
    let text = fs::read_to_string(path).unwrap();
    text.replace("\"../clawhost.js\"", "\"./sdk/js/clawhost.js\"")
}

/// A plugin from its template passes its own test and, where it is one of the shared examples, the
/// shared turns.
async fn works(language: Language, kind: Kind) {
    if !wanted() {
        return;
    }
    let host = PluginHost::new(HostOptions::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    scaffold(kind, "my-plugin", language, dir).unwrap();
    let plugin = built(&host, dir, language, kind);
    let what = format!("{kind} in {language}");
    passes(&plugin, &goldens(dir).unwrap(), &what).await;
    match kind {
        Kind::Judge => passes(&plugin, &shared("judge-thanks"), &what).await,
        Kind::Hint => passes(&plugin, &shared("hint-redo"), &what).await,
        _ => return,
    }
    if kind == Kind::Judge {
        let source = example(language, "judge-words");
        fs::write(dir.join(language.source()), source).unwrap();
        let plugin = built(&host, dir, language, kind);
        passes(&plugin, &shared("judge-words"), "judge-words").await;
    }
}

fn built(host: &PluginHost, dir: &Path, language: Language, kind: Kind) -> Plugin {
    let built = build(dir).unwrap_or_else(|e| panic!("{kind} in {language}: {e}"));
    let plugin = load(host, &built);
    assert_eq!(plugin.kind(), kind);
    plugin
}

/// One test for each kind in a language.
macro_rules! language {
    ($module:ident, $language:expr, $($name:ident: $kind:expr),+) => {
        mod $module {
            use super::*;

            $(#[tokio::test]
            async fn $name() {
                works($language, $kind).await;
            })+
        }
    };
}

language!(rust, Language::Rust, judge: Kind::Judge, group_judge: Kind::GroupJudge, hint: Kind::Hint,
    loss: Kind::Loss, advantage: Kind::Advantage, environment: Kind::Environment);
language!(python, Language::Python, judge: Kind::Judge, group_judge: Kind::GroupJudge, hint: Kind::Hint,
    loss: Kind::Loss, advantage: Kind::Advantage, environment: Kind::Environment);
language!(js, Language::Js, judge: Kind::Judge, group_judge: Kind::GroupJudge, hint: Kind::Hint,
    loss: Kind::Loss, advantage: Kind::Advantage, environment: Kind::Environment);
language!(c, Language::C, judge: Kind::Judge, group_judge: Kind::GroupJudge, hint: Kind::Hint,
    loss: Kind::Loss, advantage: Kind::Advantage);

/// Runs without any tool: the component is checked in.
#[tokio::test]
async fn the_embedded_word_counter_gives_the_shared_verdicts() {
    let host = PluginHost::new(HostOptions::default()).unwrap();
    let component = repository().join("plugins/artifacts/judge-minimal.wasm");
    let bytes = fs::metadata(&component).unwrap().len().try_into().unwrap();
    let plugin = load(&host, &Built { component, bytes });
    passes(&plugin, &shared("judge-words"), "judge-minimal").await;
}

#[test]
fn a_mistake_in_the_source_is_told_in_the_compilers_words() {
    if !wanted() {
        return;
    }
    for language in Language::ALL {
        let dir = tempfile::tempdir().unwrap();
        scaffold(Kind::Judge, "j", language, dir.path()).unwrap();
        fs::write(dir.path().join(language.source()), "this is ( no program\n").unwrap();
        let failed = build(dir.path()).unwrap_err();
        assert!(
            matches!(failed, AuthoringError::Failed { .. }),
            "{language}: {failed}"
        );
        assert!(
            failed.to_string().contains("failed; what it said:\n"),
            "{failed}"
        );
    }
}
