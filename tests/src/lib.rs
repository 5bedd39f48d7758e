//! The promises of clawhost, one file each.
//!
//! Every file beside this package's manifest shows one promise over real HTTP, with a real model, real
//! components and a real journal on disk. Here are the few builders that they share; none of them knows
//! what is promised.
//!
//! | module | idea |
//! |---|---|
//! | `server` | a server inside the test, with a data directory of its own |
//! | `client` | chat requests, whole and streamed, and what came back |
//! | `process` | the `clawhost` command as a process that can be killed |
//! | `work` | a command that is watched at its work by what it logs |
//! | `schema` | the documented shapes of what commands print |
//! | `scripted` | a checkpoint whose replies are known |
//! | `guest` | components written by hand, from core WebAssembly as text |
//! | `waiting` | waiting for a condition, never for a time |
//! | `extent` | how long a repeated promise runs: shortened by default, whole when asked |
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

pub mod guest;

mod client;
mod extent;
mod process;
mod schema;
mod scripted;
mod server;
mod waiting;
mod work;

pub use client::{Answer, Chat, Client, Stream, Streamed, Talk, assistant, system, user};
pub use extent::repeats;
pub use process::{Command, Ended, Process, become_clawhost};
pub use schema::{fits, schema};
pub use scripted::Script;
pub use server::{Running, configuration};
pub use waiting::{PATIENCE, until};
pub use work::{Over, Work};
