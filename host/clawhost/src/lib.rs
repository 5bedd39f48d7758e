//! The `clawhost` command: serve a language model and keep training it from its conversations.
//!
//! Wires configuration, the command line and the four loops (serving, collecting, judging, training) together over one
//! journal and one engine. The logic of the loops lives in the other crates.

pub mod capabilities;
pub mod config;
mod copying;
pub mod serve;

mod allocator;
mod arms;
mod calendar;
mod cli;
mod commands;
mod compiling;
mod granting;
mod output;
mod plugin_loader;
mod plugin_reload;
mod pretraining;
mod progress;
mod staging;
mod status;
mod terminal;
mod usage;

pub use cli::{main_as_program, main_with};
