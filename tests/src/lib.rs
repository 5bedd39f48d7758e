//! Shared helpers of the integration tests.
//!
//! Every file beside this package's manifest tests one guarantee over real HTTP, with a real model, real plugin
//! components and a real journal on disk.
//!
//! | module | content |
//! |---|---|
//! | `server` | a server in the test process, with its own data directory |
//! | `client` | chat requests, streaming or not, and their responses |
//! | `process` | the `clawhost` command as a child process that can be killed |
//! | `logged_process` | a `clawhost` process observed through its log |
//! | `schema` | the JSON schemas of command output |
//! | `scripted_model` | a checkpoint with scripted replies |
//! | `guest` | plugin components built from core WebAssembly text |
//! | `waiting` | waiting for a condition, never for a fixed time |
//! | `repetitions` | number of repetitions: short by default, full in nightly runs |
//!
//! ```
//! use clawhost_tests::{Script, user};
//!
//! let scripts = [Script::reply('?', &["56"]), Script::endless('!', "on ")];
//! let dir = tempfile::tempdir()?;
//! Script::save(&scripts, dir.path());
//! assert!(dir.path().join("tokenizer.json").is_file());
//! assert_eq!(user("What is 7 × 8?")["role"], "user");
//! # Ok::<(), std::io::Error>(())
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail by panicking"
)]

pub mod guest;

mod client;
mod logged_process;
mod process;
mod repetitions;
mod schema;
mod scripted_model;
mod server;
mod waiting;

pub use client::{
    ApiResponse, ChatRequest, ChatStream, Client, Conversation, StreamedReply, assistant, system,
    user,
};
pub use logged_process::{LoggedOutput, LoggedProcess};
pub use process::{Command, ProcessOutput, ServerProcess, become_clawhost};
pub use repetitions::repeats;
pub use schema::{assert_matches_schema, schema};
pub use scripted_model::Script;
pub use server::{TestServer, configuration, train_on_rewards};
pub use waiting::{WAIT_TIMEOUT, until};
