//! Integration tests of the plugin host: loading, compiling, limits and calls.

mod common;
mod compiler;
mod contract_versions;
mod determinism;
mod inspection;
mod model_capability;
