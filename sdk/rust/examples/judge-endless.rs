//! A judge that never returns, for tests and benchmarks of the host's CPU limits. Its calls must end with a fault that
//! names the limit, without slowing down other work.
//!
//! ```text
//! cargo build --example judge-endless --profile guest --target wasm32-unknown-unknown
//! ```

use clawhost_sdk::{Judge, PluginError, Trajectory, Turn, Verdict};

struct Endless;

impl Judge for Endless {
    fn score_turn(_trajectory: &Trajectory, turn: &Turn) -> Result<Verdict, PluginError> {
        let mut words = turn.response.text().len();
        loop {
            words = std::hint::black_box(words.wrapping_add(1));
        }
    }
}

clawhost_sdk::export_judge!(Endless);
