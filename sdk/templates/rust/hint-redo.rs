//! A hint extractor: turns a user's request to redo the response into a hint.

use clawhost_sdk::hint::{Extraction, Hint};
use clawhost_sdk::{HintExtractor, PluginError, Trajectory, Turn};

const SIGNS: [&str; 3] = ["wrong", "again", "instead"];

struct Redo;

impl HintExtractor for Redo {
    fn extract(_all: &Trajectory, turn: &Turn) -> Result<Extraction, PluginError> {
        if turn.next_state.is_empty() {
            let reason = "nothing followed the reply".to_owned();
            return Err(PluginError::Unsupported(reason));
        }
        let said = turn.user_text();
        let lower = said.to_lowercase();
        if !SIGNS.iter().any(|sign| lower.contains(sign)) {
            return Ok(Extraction::none());
        }
        let mut hint = Hint::new(format!("Afterwards the user said: {said}"));
        hint.confidence = 0.5;
        Ok(hint.into())
    }
}

clawhost_sdk::export_hint_extractor!(Redo);
