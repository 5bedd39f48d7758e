//! The plugin author's tools, on real folders.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail by panicking"
)]

mod first_party;
mod scaffolding;
