//! Promise: a plugin in any language builds with one command, passes the test that it came with, asks
//! for nothing, and judges as the same plugin in any other language does.
//!
//! Needs the tools of all languages, so it runs only when `CLAWHOST_AUTHOR_TOOLS` is `1`; then a
//! missing tool is a failure. `.ci/author-tools` installs them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

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

/// Every kind from its template, then the three examples on the shared turns.
async fn language_works(language: Language) {
    if !wanted() {
        return;
    }
    let host = PluginHost::new(HostOptions::default()).unwrap();
    let work = tempfile::tempdir().unwrap();
    for kind in Kind::ALL.into_iter().filter(|kind| language.can(*kind)) {
        let dir = work.path().join(kind.interface());
        scaffold(kind, "my-plugin", language, &dir).unwrap();
        let plugin = built(&host, &dir, language, kind);
        passes(
            &plugin,
            &goldens(&dir).unwrap(),
            &format!("{kind} in {language}"),
        )
        .await;
        let started = match kind {
            Kind::Judge => Some("judge-thanks"),
            Kind::Hint => Some("hint-redo"),
            _ => None,
        };
        if let Some(name) = started {
            passes(&plugin, &shared(name), &format!("{name} in {language}")).await;
        }
        if kind == Kind::Judge {
            fs::write(
                dir.join(language.source()),
                example(language, "judge-words"),
            )
            .unwrap();
            let plugin = built(&host, &dir, language, kind);
            let what = format!("judge-words in {language}");
            passes(&plugin, &shared("judge-words"), &what).await;
        }
    }
}

fn built(host: &PluginHost, dir: &Path, language: Language, kind: Kind) -> Plugin {
    let built = build(dir).unwrap_or_else(|e| panic!("{kind} in {language}: {e}"));
    println!("{kind} in {language}: {} bytes", built.bytes);
    let plugin = load(host, &built);
    assert_eq!(plugin.kind(), kind);
    plugin
}

#[tokio::test]
async fn rust_plugins_build_and_agree() {
    language_works(Language::Rust).await;
}

#[tokio::test]
async fn python_plugins_build_and_agree() {
    language_works(Language::Python).await;
}

#[tokio::test]
async fn js_plugins_build_and_agree() {
    language_works(Language::Js).await;
}

#[tokio::test]
async fn c_plugins_build_and_agree() {
    language_works(Language::C).await;
}

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
