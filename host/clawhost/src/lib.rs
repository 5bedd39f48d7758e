//! The `clawhost` command: serve a language model and keep training it from its conversations.
//!
//! Wires configuration, the command line and the four loops (serving, collecting, judging, training) together over one
//! journal and one engine. The logic of the loops lives in the other crates.
//!
//! ```
//! use clawhost::config::Config;
//!
//! let config = Config::parse("[server]\nport = 8080")?;
//! assert_eq!(config.server.port, 8080);
//! assert!(Config::parse("[server]\nprot = 8080").is_err());
//! # Ok::<(), anyhow::Error>(())
//! ```

pub mod capabilities;
pub mod config;
mod copying;
pub mod serve;

mod allocator;
mod arms;
mod cli;
mod commands;
mod compiling;
mod control;
mod device;
mod environments;
mod granting;
mod machines;
mod memory_plan;
mod nvidia;
mod output;
mod plugin_file;
mod plugin_loader;
mod plugin_reload;
mod progress;
mod staging;
mod status;
mod terminal;

pub use cli::{main_as_program, main_with};
