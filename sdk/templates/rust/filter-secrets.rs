//! A filter: keeps turns out of training that contain what looks like a credential.

use clawhost_sdk::filter::Decision;
use clawhost_sdk::{Filter, Part, PluginError, Trajectory, Turn};

const SIGNS: [&str; 4] = ["-----BEGIN", "password:", "api_key", "Bearer "];

struct Secrets;

impl Filter for Secrets {
    fn decide(
        _all: &Trajectory,
        turn: &Turn,
        _reward: Option<f32>,
    ) -> Result<Decision, PluginError> {
        let messages = turn.prompt.iter().chain([&turn.response]).chain(&turn.next_state);
        for part in messages.flat_map(|message| &message.content) {
            let Part::Text(text) = part else { continue };
            if let Some(sign) = SIGNS.iter().find(|sign| text.contains(**sign)) {
                return Ok(Decision::drop(format!("the text contains {sign:?}")));
            }
        }
        Ok(Decision::keep())
    }
}

clawhost_sdk::export_filter!(Secrets);
