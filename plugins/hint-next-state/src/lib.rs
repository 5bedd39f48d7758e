//! Extracts what a reaction wants changed as a hint, with rules and a small linear model.
//!
//! The crate `reactions` decides whether the reaction names something that a reply should contain, avoid or change: a
//! correction, a missed request, another form, a wish for all further replies, or an error of a tool that names its cause. The
//! hint is that in the words of the user or of the tool. Quotations of the response, code, greetings, thanks and text that
//! programs add are removed, and so are sentences without a wish.
//!
//! Settings, as JSON in the configuration:
//!
//! | name | meaning | default |
//! |---|---|---|
//! | `hint_chars` | maximum length of a hint, 20 to 4,000; longer ones are truncated at a word | 400 |
//! | `placement` | `"last-user"` or `"system"` | `"last-user"` |
//!
//! In doubt there is no hint: praise, questions, new tasks, bare complaints ("That's wrong.") and wishes for the same again
//! give none. Instructions in the text are not obeyed.

mod cleaning;
mod lexicon;
mod wish;

#[cfg(test)]
mod cases;

use clawhost_sdk::hint::{Extraction, Hint, Placement};
use clawhost_sdk::{HintExtractor, PluginError, Role, Settings, Trajectory, Turn};
use reactions::Kind;

use crate::wish::Wish;

/// The extractor.
pub struct HintNextState;

impl HintExtractor for HintNextState {
    fn extract(_trajectory: &Trajectory, turn: &Turn) -> Result<Extraction, PluginError> {
        extract(turn, &Settings::of_plugin())
    }
}

clawhost_sdk::export_hint_extractor!(HintNextState);

/// Extracts the wish from the messages after the response.
///
/// # Errors
/// [`PluginError::Unsupported`] when neither a user nor a tool message follows.
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
    let results = turn.tool_results();
    if results.is_empty() && said.iter().all(|text| text.trim().is_empty()) {
        return Err(PluginError::Unsupported(
            "neither a user nor a tool wrote anything after the reply".to_owned(),
        ));
    }
    let wish = of_user(turn, &said).or_else(|| of_tools(turn, &results));
    Ok(match wish {
        Some(wish) => Hint {
            text: bounded(&wish.text, longest),
            placement,
            confidence: wish.confidence,
        }
        .into(),
        None => Extraction::none(),
    })
}

/// The wish in the user's words.
fn of_user(turn: &Turn, said: &[String]) -> Option<Wish> {
    let reply = turn.response.text();
    let request = reactions::spoken(&turn.last_request(), "");
    let spoken: Vec<String> = said
        .iter()
        .map(|text| reactions::spoken(text, &reply))
        .collect();
    let read = reactions::of_user(&spoken.join("\n"), &request, &reply)?;
    let sentences: Vec<String> = said
        .iter()
        .flat_map(|text| cleaning::sentences(&cleaning::spoken(text, &reply)))
        .collect();
    if wish::leaves_alone(&sentences) {
        return None;
    }
    let wish = wish::read(&sentences);
    let explained = read.kind != Kind::Redo && wish.is_some();
    if !read.is_concrete && (read.score >= 0.0 || !explained) {
        return None;
    }
    wish.or_else(|| wish::whole(&sentences))
}

/// The error of a tool that names its cause.
fn of_tools(turn: &Turn, results: &[String]) -> Option<Wish> {
    let read = reactions::of_tools(results, &turn.response.text())?;
    read.is_concrete.then_some(Wish {
        text: read.reason,
        confidence: 0.6,
    })
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
