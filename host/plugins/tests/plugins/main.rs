//! Integration tests of the plugin host: loading, compiling, limits and calls.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail by panicking"
)]

mod common;
mod compiler;
mod contract_versions;
mod determinism;
mod inspection;
mod model_capability;
