//! A minimal hint extractor: the user's next message is the hint.
//!
//! ```text
//! cargo build --example hint-minimal --profile guest --target wasm32-unknown-unknown
//! ```

use clawhost_sdk::hint::{Extraction, Hint};
use clawhost_sdk::{HintExtractor, PluginError, Trajectory, Turn};

struct NextMessage;

impl HintExtractor for NextMessage {
    fn extract(_all: &Trajectory, turn: &Turn) -> Result<Extraction, PluginError> {
        let wish = turn.user_text();
        if wish.is_empty() {
            return Ok(Extraction::none());
        }
        Ok(Hint::new(format!("The user will ask: {wish}")).into())
    }
}

clawhost_sdk::export_hint_extractor!(NextMessage);
