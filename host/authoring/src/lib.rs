//! What the author of a plugin works with: a new plugin that already passes a test, one command that
//! builds it in any language, and golden transcripts.
//!
//! [`scaffold`] writes a folder that builds anywhere with nothing but public registries: the contract
//! and the SDK are in it. [`build`] looks for the tools that a language needs before it starts, and
//! reports for each that is missing how to get it. [`goldens`] and [`check`] run a component on the
//! transcripts beside it, and see that the partials of a loss are its slopes. A [`Script`] stands for the models, the
//! network and the state that the component imports; a [`Recorder`] writes down what real ones answered.
//!
//! This crate installs nothing and downloads nothing: tools come from their registries by the
//! author's own hand. It refuses to overwrite files.
//!
//! ```
//! use clawhost_authoring::{Language, Manifest, goldens, scaffold};
//! use clawhost_plugins::Kind;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let files = scaffold(Kind::Judge, "my-judge", Language::Python, dir.path())?;
//! assert_eq!(files.source, std::path::Path::new("plugin.py"));
//!
//! let manifest = Manifest::read(dir.path())?;
//! assert_eq!((manifest.name.as_str(), manifest.kind), ("my-judge", Kind::Judge));
//! assert!(!goldens(dir.path())?.is_empty(), "it comes with a transcript to test it");
//! # Ok(())
//! # }
//! ```

mod build;
mod component;
mod embedded;
mod error;
mod golden;
mod language;
mod manifest;
mod name;
mod parse;
mod scaffold;
mod script;
mod tools;

pub use build::{BuildOutput, build};
pub use error::AuthoringError;
pub use golden::check::{TranscriptResult, check};
pub use golden::read::{Golden, GoldenTurn, exchanges, goldens};
pub use language::Language;
pub use manifest::{MANIFEST, Manifest};
pub use parse::kind_from_name;
pub use scaffold::{ScaffoldOutput, scaffold};
pub use script::{
    Choice, Completion, Exchange, FullChoice, Recorder, Response, Scores, Script, ScriptedCall,
};
pub use tools::{Tool, tools};
