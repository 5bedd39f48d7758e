//! Promise: a new plugin's folder is whole, and nothing that was there is touched.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clawhost_authoring::{
    AuthoringError, Language, Manifest, build, goldens, kind_from_name, scaffold,
};
use clawhost_plugins::Kind;

/// Every kind in every language that can express it.
fn all() -> impl Iterator<Item = (Kind, Language)> {
    Kind::ALL
        .into_iter()
        .flat_map(|kind| Language::ALL.map(|language| (kind, language)))
        .filter(|(kind, language)| language.can(*kind))
}

fn files_below(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.insert(path);
        }
    }
    found
}

#[test]
fn every_file_is_there_and_filled_in() {
    for (kind, language) in all() {
        let dir = tempfile::tempdir().unwrap();
        let made = scaffold(kind, "my-plugin", language, dir.path()).unwrap();
        let reported: BTreeSet<PathBuf> = made.files.iter().map(|f| dir.path().join(f)).collect();
        assert_eq!(reported, files_below(dir.path()), "{kind} in {language}");
        for file in &reported {
            let text = fs::read_to_string(file).unwrap();
            let name = file.display();
            assert!(
                !text.is_empty() || name.to_string().ends_with("py.typed"),
                "{name}"
            );
            // The SDK is copied as it is, and its code has braces of its own.
            if file.starts_with(dir.path().join("sdk")) {
                continue;
            }
            for left in [
                "{name}",
                "{kind}",
                "{language}",
                "{component}",
                "{optional}",
                "{compo",
            ] {
                assert!(!text.contains(left), "{name} still has {left}");
            }
        }
        let source = fs::read_to_string(dir.path().join(&made.source)).unwrap();
        assert!(
            source.len() > 200,
            "{kind} in {language} starts from nothing"
        );

        let manifest = Manifest::read(dir.path()).unwrap();
        assert_eq!((manifest.kind, manifest.language), (kind, language));
        assert_eq!(manifest.component, Path::new("build/my-plugin.wasm"));
        assert!(!goldens(dir.path()).unwrap().is_empty(), "{kind}");
    }
}

#[test]
fn the_contract_in_the_folder_is_the_contract() {
    let contract = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit");
    for (language, copy) in [
        (Language::Rust, "wit"),
        (Language::Python, "wit/deps/clawhost-plugin"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        scaffold(Kind::Judge, "j", language, dir.path()).unwrap();
        for file in ["types.wit", "host.wit", "plugins.wit"] {
            let own = fs::read_to_string(dir.path().join(copy).join(file)).unwrap();
            assert_eq!(own, fs::read_to_string(contract.join(file)).unwrap());
            assert!(
                own.contains("package clawhost:plugin@0.1.2;"),
                "world.wit names it"
            );
        }
    }
}

#[test]
fn the_rust_sdk_in_the_folder_has_the_dependencies_of_the_sdk() {
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk");
    let dependencies = |file: &str| {
        let text = fs::read_to_string(sdk.join(file)).unwrap();
        let table: toml::Table = toml::from_str(&text).unwrap();
        let names = table["dependencies"].as_table().unwrap().keys().cloned();
        names.collect::<Vec<_>>()
    };
    let copy = dependencies("templates/rust/sdk.Cargo.toml");
    assert_eq!(copy, dependencies("rust/Cargo.toml"));
}

#[test]
fn a_world_offers_what_its_kind_may_ask_for_and_asks_for_nothing() {
    let world = |kind| {
        let dir = tempfile::tempdir().unwrap();
        scaffold(kind, "p", Language::Js, dir.path()).unwrap();
        fs::read_to_string(dir.path().join("wit/world.wit")).unwrap()
    };
    let judge = world(Kind::Judge);
    assert!(
        judge.contains("    // import clawhost:plugin/http@0.1.2;"),
        "{judge}"
    );
    assert!(!judge.contains("sandbox"));
    assert!(judge.contains("export clawhost:plugin/judge@0.1.2;"));
    let asked = |world: &str| {
        world
            .lines()
            .filter(|l| l.trim().starts_with("import"))
            .count()
    };
    assert_eq!(
        asked(&judge),
        2,
        "log and context need no grant; nothing else is asked for"
    );
    assert!(!world(Kind::Loss).contains("// import"));
    assert!(world(Kind::Environment).contains("// import clawhost:plugin/sandbox@0.1.2;"));
}

#[test]
fn nothing_is_overwritten_and_then_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mine = dir.path().join("plugin.py");
    fs::write(&mine, "mine").unwrap();
    let refused = scaffold(Kind::Judge, "j", Language::Python, dir.path()).unwrap_err();
    assert!(
        matches!(&refused, AuthoringError::InTheWay { path } if *path == mine),
        "{refused}"
    );
    assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
    assert_eq!(files_below(dir.path()).len(), 1);

    // A folder with other things in it is fine.
    fs::rename(&mine, dir.path().join("other.py")).unwrap();
    scaffold(Kind::Judge, "j", Language::Python, dir.path()).unwrap();
    assert_eq!(
        fs::read_to_string(dir.path().join("other.py")).unwrap(),
        "mine"
    );
}

#[cfg(unix)]
#[test]
fn a_link_is_in_the_way_even_when_it_leads_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    let folder = dir.path().join("plugin");
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(&outside, folder.join("plugin.toml")).unwrap();
    assert!(scaffold(Kind::Judge, "j", Language::C, &folder).is_err());
    assert!(!outside.exists());
}

#[test]
fn bad_names_kinds_and_languages_say_what_is_good() {
    let dir = tempfile::tempdir().unwrap();
    let bad = scaffold(Kind::Judge, "../evil", Language::C, dir.path()).unwrap_err();
    assert!(bad.to_string().contains("my-judge"), "{bad}");
    let bad = scaffold(Kind::Environment, "e", Language::C, dir.path()).unwrap_err();
    assert!(bad.to_string().contains("rust, python, js can"), "{bad}");
    assert!(files_below(dir.path()).is_empty());

    assert_eq!("javascript".parse::<Language>().unwrap(), Language::Js);
    let bad = "perl".parse::<Language>().unwrap_err().to_string();
    assert!(bad.contains("rust, python, js and c"), "{bad}");
    assert_eq!(kind_from_name("hint").unwrap(), Kind::Hint);
    for kind in Kind::ALL {
        assert_eq!(kind_from_name(kind.interface()).unwrap(), kind);
    }
    let bad = kind_from_name("judgement").unwrap_err().to_string();
    assert!(bad.contains("judge, group-judge, hint-extractor"), "{bad}");
}

#[test]
fn a_build_outside_of_a_plugin_says_how_to_make_one() {
    let dir = tempfile::tempdir().unwrap();
    let refused = build(dir.path(), None).unwrap_err().to_string();
    assert!(refused.contains("clawhost plugin new"), "{refused}");
}
