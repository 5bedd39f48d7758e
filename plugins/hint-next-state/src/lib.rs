//! Extracts the user's wish for a change as a hint, with rules and without a model.
//!
//! If the user's next message asks for a redo, a correction or another form, the hint is that wish in the user's own words.
//! Quotations of the response, code, greetings, thanks and text that programs add are removed, and so are sentences without
//! a wish. A wish of ten characters or fewer ("shorter!") is not specific enough to be a hint, but may be part of one.
//!
//! Settings, as JSON in the configuration:
//!
//! | name | meaning | default |
//! |---|---|---|
//! | `hint_chars` | maximum length of a hint, 20 to 4,000; longer ones are truncated at a word | 400 |
//! | `placement` | `"last-user"` or `"system"` | `"last-user"` |
//!
//! The hint only contains words that the user wrote. Only English is supported. In doubt there is no hint: praise, new tasks
//! and small talk give none. Instructions in the text are not obeyed.

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

/// A hint must have more characters than this.
const TOO_SHORT: usize = 10;

/// Extracts the wish from the user's message after the response.
///
/// # Errors
/// [`PluginError::Unsupported`] when there is no user message.
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

/// Truncates the text at a word.
fn bounded(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let start: String = text.chars().take(limit.saturating_sub(1)).collect();
    let whole = start.rsplit_once(' ').map_or(start.as_str(), |(w, _)| w);
    format!("{}…", whole.trim_end_matches([',', ';', ':', '.', ' ']))
}
