//! Tests that need the real `clawhost` program; the workspace's other tests call it as a library.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test may fail by panicking, and may print its figures"
)]

#[cfg(target_os = "linux")]
mod code_interpreter;
mod compile_component;
#[cfg(target_os = "linux")]
mod gui;
mod https;
#[cfg(target_os = "linux")]
mod import;
mod interpreted;
mod languages;
#[cfg(target_os = "linux")]
mod machines;
mod oci;
#[cfg(target_os = "linux")]
mod python_class;
mod server;
#[cfg(target_os = "linux")]
mod swe;
mod train_episodes;
