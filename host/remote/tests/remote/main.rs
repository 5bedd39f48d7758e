//! The engine with a server elsewhere in the place of its batcher.
//!
//! The servers are programs of these tests that speak the documented form of vLLM and SGLang and let the model of this
//! machine answer, so that every number is real. The real servers are not run here.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod probing;
mod publishing;
mod server;
mod serving;
mod writing;
