//! Writes the folder of a new plugin.
//!
//! The folder is whole: contract, SDK, source that works, golden transcripts that it passes. Nothing
//! in it points outside. No file that is there already is touched, and when one is in the way
//! nothing is written at all.

use std::fs;
use std::path::{Path, PathBuf};

use clawhost_plugins::{Capability, Kind};

use crate::embedded;
use crate::error::AuthoringError;
use crate::language::Language;
use crate::manifest::MANIFEST;
use crate::name;
use crate::tools;

/// A new plugin's folder.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaffoldOutput {
    /// The folder.
    pub dir: PathBuf,
    /// Every file written, from the folder, in order.
    pub files: Vec<PathBuf>,
    /// The file in which the author goes on, from the folder.
    pub source: PathBuf,
}

/// Writes a plugin that builds and passes its test into `dir`, which is created if it is missing.
///
/// # Errors
/// [`AuthoringError::BadName`], [`AuthoringError::NotInThisLanguage`], or
/// [`AuthoringError::InTheWay`] when a file would be overwritten; nothing is written then.
pub fn scaffold(
    kind: Kind,
    name: &str,
    language: Language,
    dir: &Path,
) -> Result<ScaffoldOutput, AuthoringError> {
    name::check(name)?;
    if !language.can(kind) {
        return Err(AuthoringError::NotInThisLanguage { kind, language });
    }
    let files = PluginFiles::of(kind, name, language).files;
    for (file, _) in &files {
        let path = dir.join(file);
        // `symlink_metadata`: a link to nowhere is in the way too.
        if path.symlink_metadata().is_ok() {
            return Err(AuthoringError::InTheWay { path });
        }
    }
    for (file, text) in &files {
        write(&dir.join(file), text)?;
    }
    Ok(ScaffoldOutput {
        dir: dir.to_owned(),
        files: files.into_iter().map(|(file, _)| file.into()).collect(),
        source: language.source().into(),
    })
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), AuthoringError> {
    let failed = |source| AuthoringError::Write {
        path: path.to_owned(),
        source,
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)
}

/// The example that a new plugin of this kind starts from.
fn example(kind: Kind) -> &'static str {
    match kind {
        Kind::Judge => "judge-thanks",
        Kind::GroupJudge => "group-words",
        Kind::Hint => "hint-redo",
        Kind::Filter => "filter-secrets",
        Kind::Loss => "loss-policy-gradient",
        Kind::PairLoss => "pair-loss-dpo",
        Kind::Advantage => "advantage-mean",
        Kind::Gate => "gate-drift",
        Kind::Environment => "environment-guess",
    }
}

/// The files of a new plugin.
struct PluginFiles {
    files: Vec<(String, String)>,
    /// What stands in braces in templates, and what for.
    filled: Vec<(&'static str, String)>,
}

impl PluginFiles {
    fn of(kind: Kind, name: &str, language: Language) -> PluginFiles {
        let mut folder = PluginFiles {
            files: Vec::new(),
            filled: vec![
                ("{name}", name.to_owned()),
                ("{kind}", kind.interface().to_owned()),
                ("{language}", language.name().to_owned()),
                ("{component}", format!("build/{name}.wasm")),
                ("{optional}", optional_imports(kind)),
                ("{componentize_py}", tools::COMPONENTIZE_PY.to_owned()),
                ("{componentize_qjs}", tools::COMPONENTIZE_QJS.to_owned()),
            ],
        };
        folder.template(MANIFEST, "plugin.toml");
        folder.template(".gitignore", "gitignore");
        folder.template("README.md", &format!("{language}/README.md"));
        folder.template("tests/goldens.json", &format!("goldens/{kind}.json"));
        match language {
            Language::Rust => folder.rust(kind),
            Language::Python => folder.python(kind),
            Language::Js => folder.js(kind),
            Language::C => folder.c(kind),
        }
        folder.files.sort();
        folder
    }

    fn rust(&mut self, kind: Kind) {
        self.template("Cargo.toml", "rust/Cargo.toml");
        let path = format!("sdk/templates/rust/{}.rs", example(kind));
        self.example("src/lib.rs", &path, &[]);
        // The SDK's source looks for the contract two folders up, as it does in its repository.
        self.template("sdk/rust/Cargo.toml", "rust/sdk.Cargo.toml");
        self.copy("sdk/rust/src", "sdk/rust/src");
        self.copy("wit", "wit");
    }

    fn python(&mut self, kind: Kind) {
        self.template("requirements.txt", "python/requirements.txt");
        let example = example(kind).replace('-', "_");
        self.example(
            "plugin.py",
            &format!("sdk/python/examples/{example}.py"),
            &[],
        );
        self.copy("sdk/python/clawhost_sdk", "sdk/python/clawhost_sdk");
        self.contract();
    }

    fn js(&mut self, kind: Kind) {
        self.template("package.json", "js/package.json");
        let path = format!("sdk/js/examples/{}.js", example(kind));
        self.example(
            "plugin.js",
            &path,
            &[
                ("\"../clawhost.js\"", "\"./sdk/js/clawhost.js\""),
                ("\"../host.js\"", "\"./sdk/js/host.js\""),
            ],
        );
        for file in ["sdk/js/clawhost.js", "sdk/js/host.js"] {
            self.example(file, file, &[]);
        }
        self.contract();
    }

    fn c(&mut self, kind: Kind) {
        let path = format!("sdk/c/examples/{}.c", example(kind));
        self.example("plugin.c", &path, &[]);
        self.copy("sdk/c/include", "sdk/c/include");
        self.contract();
    }

    /// The contract as a dependency of the plugin's own world.
    fn contract(&mut self) {
        self.template("wit/world.wit", "world.wit");
        self.copy("wit/deps/clawhost-plugin", "wit");
    }

    /// A template, filled in.
    fn template(&mut self, to: &str, from: &str) {
        let mut text = embedded::file(&format!("sdk/templates/{from}")).to_owned();
        for (key, value) in &self.filled {
            text = text.replace(key, value);
        }
        self.files.push((to.to_owned(), text));
    }

    /// A file as it is, but for some phrases.
    fn example(&mut self, to: &str, from: &str, changes: &[(&str, &str)]) {
        let mut text = embedded::file(from).to_owned();
        for (old, new) in changes {
            text = text.replace(old, new);
        }
        self.files.push((to.to_owned(), text));
    }

    /// A folder as it is.
    fn copy(&mut self, to: &str, from: &str) {
        for (path, text) in embedded::below(from) {
            self.files.push((format!("{to}/{path}"), text.to_owned()));
        }
    }
}

/// What a plugin of this kind may import once the author wants it, as comments.
fn optional_imports(kind: Kind) -> String {
    use Capability::{Display, Http, Model, Sandbox, State};
    let wanted = [Model, State, Http, Sandbox, Display];
    let lines: Vec<String> = wanted
        .into_iter()
        .filter(|capability| kind.may_import(*capability))
        .map(|capability| format!("    // import clawhost:plugin/{}@0.1.2;", capability.name()))
        .collect();
    if lines.is_empty() {
        return "    // Nothing else: this kind is a function of its input.".to_owned();
    }
    format!(
        "    // These have to be granted by whoever runs the plugin:\n{}",
        lines.join("\n")
    )
}
