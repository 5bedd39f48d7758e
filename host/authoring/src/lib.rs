//! What the author of a plugin works with: a new plugin that already passes a test, one command that
//! builds it in any language, and golden transcripts.
//!
//! [`scaffold`] writes a folder that builds anywhere with nothing but public registries: the contract
//! and the SDK are in it. [`build`] looks for the tools that a language needs before it starts, and
//! says of each that is missing how to get it. [`goldens`] and [`check`] run a component on the
//! transcripts beside it, and see that the partials of a loss are its slopes. A [`Script`] stands for the models, the
//! network and the state that the component imports; a [`Recorder`] writes down what real ones answered.
//!
//! This crate installs nothing and downloads nothing: tools come from their registries by the
//! author's own hand. It refuses to overwrite files.

mod build;
mod component;
mod embedded;
mod error;
mod golden;
mod language;
mod manifest;
mod name;
mod scaffold;
mod script;
mod tools;

pub use build::{Built, build};
pub use error::AuthoringError;
pub use golden::check::{Checked, check};
pub use golden::read::{Golden, GoldenTurn, exchanges, goldens};
pub use language::{Language, kind_from_name};
pub use manifest::{MANIFEST, Manifest};
pub use scaffold::{Scaffolded, scaffold};
pub use script::{
    Choice, Completion, Exchange, Finish, HttpFailure, ModelFailure, Recorder, Response, Scores,
    Script, ScriptedCall,
};
pub use tools::{Tool, tools};
