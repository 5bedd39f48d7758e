//! What needs the real `clawhost` program: the tests of the workspace run a test binary in its place.

mod compile_component;
mod https;
mod interpreted;
mod languages;
