//! Components as the host loads, limits and calls them.

mod capabilities;
mod common;
mod compiling;
mod determinism;
mod inspection;
