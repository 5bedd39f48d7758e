//! Tests that need the real `clawhost` program; the workspace's other tests call it as a library.

mod compile_component;
mod https;
mod interpreted;
mod languages;
#[cfg(target_os = "linux")]
mod machines;
#[cfg(target_os = "linux")]
mod swe;
mod train_episodes;
