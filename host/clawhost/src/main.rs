//! The `clawhost` command.
fn main() {}
