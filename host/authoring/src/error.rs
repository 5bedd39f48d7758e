//! What can go wrong for an author, each with the way out.

use std::path::PathBuf;

use clawhost_plugins::Kind;

use crate::language::Language;
use crate::tools::Tool;

/// Why a plugin was not made, built or read.
#[derive(Debug, thiserror::Error)]
pub enum AuthoringError {
    /// The name cannot be that of a plugin.
    #[error(
        "{name:?} cannot be the name of a plugin: {reason}; use lower case letters, digits and hyphens, such as my-judge"
    )]
    BadName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No such language.
    #[error("there is no SDK for {name:?}; the languages are rust, python, js and c")]
    UnknownLanguage {
        /// The name as given.
        name: String,
    },
    /// No such kind of plugin.
    #[error(
        "{name:?} is no kind of plugin; the kinds are {}",
        crate::language::kind_names()
    )]
    UnknownKind {
        /// The name as given.
        name: String,
    },
    /// The language cannot express this kind.
    #[error("a plugin of kind {kind} cannot be written in {language} yet; {} can", others(*.kind))]
    NotInThisLanguage {
        /// The kind.
        kind: Kind,
        /// The language.
        language: Language,
    },
    /// A file is in the way.
    #[error("{} is there already and is not overwritten; choose another folder or remove it", .path.display())]
    InTheWay {
        /// The file.
        path: PathBuf,
    },
    /// A file or folder cannot be written.
    #[error("{} cannot be written: {source}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file cannot be read.
    #[error("{} cannot be read: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The folder is not that of a plugin.
    #[error("{} has no plugin.toml; go to a plugin's folder or make one with `clawhost plugin new`", .dir.display())]
    NoManifest {
        /// The folder.
        dir: PathBuf,
    },
    /// `plugin.toml` does not say what it must.
    #[error("{}: {reason}", .path.display())]
    BadManifest {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line.
        reason: String,
    },
    /// Tools are missing.
    #[error("building in {language} needs tools that are not here:{}", to_get(.missing))]
    MissingTools {
        /// The language.
        language: Language,
        /// What is missing; each says how to get it.
        missing: Vec<Tool>,
    },
    /// A tool could not be started.
    #[error("`{command}` cannot be started: {source}")]
    Start {
        /// The command line.
        command: String,
        /// Why.
        source: std::io::Error,
    },
    /// A tool ended with an error.
    #[error("`{command}` failed; what it said:\n{output}")]
    Failed {
        /// The command line.
        command: String,
        /// Its output and errors, the last 16 KiB.
        output: String,
    },
    /// The folder `wit` does not describe the plugin.
    #[error("{}: {reason}", .path.display())]
    Wit {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The compiled module uses WASI, which plugins do not have.
    #[error(
        "the compiled code calls {functions} of WASI, and plugins have no files, clock or standard output; in C, printf and assert do that: use clawhost_log, and compile with NDEBUG"
    )]
    UsesWasi {
        /// The functions.
        functions: String,
    },
    /// The compiled module is not what the contract asks for.
    #[error("the compiled module cannot become a component: {reason}")]
    NotAComponent {
        /// What is wrong.
        reason: String,
    },
    /// A golden transcript is not one.
    #[error("{}: {reason}", .path.display())]
    BadGolden {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

fn others(kind: Kind) -> String {
    let can: Vec<&str> = Language::ALL
        .into_iter()
        .filter(|language| language.can(kind))
        .map(Language::name)
        .collect();
    can.join(", ")
}

fn to_get(missing: &[Tool]) -> String {
    let lines: Vec<String> = missing
        .iter()
        .map(|tool| format!("\n  {}: {}", tool.name, tool.how_to_get))
        .collect();
    lines.concat()
}
