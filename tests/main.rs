//! Integration tests over real servers and processes, one module per guarantee.
//!
//! They are one binary, because each binary links the whole program: `cargo test --test integration crash` runs one
//! module.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test may fail by panicking, and may print its figures"
)]

mod bad_input;
mod choice_groups;
mod cli;
mod conformance;
mod containment;
mod crash;
mod data;
mod demo;
mod environments;
mod eval;
mod experience;
mod http_grants;
mod learning_signals;
mod no_verdict;
mod openai_client;
mod openclaw;
mod owners;
mod parity;
mod plugin_tools;
mod readiness;
mod releases;
mod reload;
mod replay;
mod resume;
mod retry;
mod served_vs_trained;
mod sessions_without_headers;
mod signals;
mod streaming;
mod swap_under_load;
mod transcripts;
mod upgrade;

/// Entry point of the child processes that [`clawhost_tests::Command`] starts.
#[test]
fn clawhost_process() {
    clawhost_tests::become_clawhost();
}
