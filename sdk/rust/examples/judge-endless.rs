//! A judge that never ends, to see what the host makes of one: a fault that names the limit, after the CPU
//! budget of the call and not a moment of anybody else's.
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
