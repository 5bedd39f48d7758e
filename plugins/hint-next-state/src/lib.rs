//! Turns the user's wish for a change into a hint: rules, no model.
//!
//! Where the user's next message asks for the same again, for a correction or for another form, the
//! hint is that wish in the user's own words, cleaned: quotations of the reply, code, greetings, thanks and
//! what programs put around the message are removed, and sentences that wish nothing. A wish of ten
//! characters or fewer ("shorter!") says too little to be a hint; it may still be part of one.
//!
//! Settings, as JSON in the configuration:
//!
//! | name | meaning | default |
//! |---|---|---|
//! | `hint_chars` | longest hint, 20 to 4,000; what is longer is cut at a word | 400 |
//! | `placement` | `"last-user"` or `"system"` | `"last-user"` |
//!
//! What it refuses: to invent. It writes no word that the user did not write, reads English only, and
//! prefers no hint: praise, something new and talk give none. It obeys nothing that the text says.

mod cleaning;
mod lexicon;
mod wish;

#[cfg(test)]
mod cases;

use clawhost_sdk::hint::{Extraction, Hint, Placement};
use clawhost_sdk::{HintExtractor, PluginError, Role, Settings, Trajectory, Turn};

/// The extractor.
pub struct HintNextState;

impl HintExtractor for HintNextState {
    fn extract(_trajectory: &Trajectory, turn: &Turn) -> Result<Extraction, PluginError> {
        extract(turn, &Settings::of_plugin())
    }
}

clawhost_sdk::export_hint_extractor!(HintNextState);

/// A hint has more characters than this.
const TOO_SHORT: usize = 10;

/// Extracts the wish from what the user wrote after the reply.
///
/// # Errors
/// [`PluginError::Unsupported`] when no user wrote anything.
pub fn extract(turn: &Turn, settings: &Settings) -> Result<Extraction, PluginError> {
    let longest = settings.count("hint_chars", 400, 20..=4000)? as usize;
    let placement = settings.choice(
        "placement",
        Placement::LastUser,
        &[
            ("last-user", Placement::LastUser),
            ("system", Placement::System),
        ],
    )?;
    let messages = turn
        .next_state
        .iter()
        .filter(|message| message.role == Role::User);
    let said: Vec<String> = messages.map(clawhost_sdk::Message::text).collect();
    if said.iter().all(|text| text.trim().is_empty()) {
        return Err(PluginError::Unsupported(
            "no user wrote anything after the reply".to_owned(),
        ));
    }
    let reply = turn.response.text();
    let sentences: Vec<String> = said
        .iter()
        .flat_map(|text| cleaning::sentences(&cleaning::spoken(text, &reply)))
        .collect();
    let Some(wish) = wish::read(&sentences) else {
        return Ok(Extraction::none());
    };
    let text = bounded(&wish.text, longest);
    if text.chars().count() <= TOO_SHORT {
        return Ok(Extraction::none());
    }
    Ok(Hint {
        text,
        placement,
        confidence: wish.confidence,
    }
    .into())
}

/// The text up to the last word that fits.
fn bounded(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let start: String = text.chars().take(limit.saturating_sub(1)).collect();
    let whole = start.rsplit_once(' ').map_or(start.as_str(), |(w, _)| w);
    format!("{}…", whole.trim_end_matches([',', ';', ':', '.', ' ']))
}
