//! The `clawhost` command: serve a language model and keep training it from its conversations.
//!
//! Here the rooms are put together: configuration, the command line, and the wiring of the four loops
//! (serving, collecting, judging, training) over one journal and one engine. It refuses to hold any of
//! their logic.

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
mod loading;
mod output;
mod placing;
mod pretraining;
mod progress;
mod reloading;
mod status;
mod terminal;
mod usage;

pub use cli::{main_as_program, main_with};
