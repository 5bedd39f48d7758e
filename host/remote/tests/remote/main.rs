//! The engine with a remote backend.
//!
//! The fake servers of these tests speak the documented APIs of vLLM and SGLang and answer with the local model, so
//! that every number is real. Real servers are not run here.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod events;
mod probing;
mod publishing;
mod server;
mod serving;
