//! What clawhost promises, over real servers and processes; one module for each promise.
//!
//! One binary, because each would link the whole program again: `cargo test --test integration crash`
//! runs one module.

mod bad_input;
mod cli;
mod conformance;
mod containment;
mod crash;
mod data;
mod demo;
mod eval;
mod http_grants;
mod learning_signals;
mod no_verdict;
mod openai_client;
mod openclaw;
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
mod together;
mod transcripts;

/// The body of the processes that [`clawhost_tests::Command`] starts.
#[test]
fn clawhost_process() {
    clawhost_tests::become_clawhost();
}
