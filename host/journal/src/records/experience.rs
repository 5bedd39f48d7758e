//! Experience: what the hints of a key's turns say, kept for its later conversations.

use clawhost_chat::{Tokenizer, TokenizerError, experience_text};
use serde::{Deserialize, Serialize};

use crate::ids::TurnId;
use crate::string_enum::string_enum;

string_enum! {
    /// State of an entry.
    ExperienceState {
        /// It is part of prompts.
        Active = "active",
        /// It is not, because the weights follow it, or because someone decided so. The same hint makes it active again.
        Retired = "retired",
        /// Its text is deleted.
        Forgotten = "forgotten",
    }
}

/// An entry that is not forgotten.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExperienceEntry {
    /// Its id, from 1.
    pub id: i64,
    /// Name of the API key that it belongs to; `None` if no keys are configured.
    pub key: Option<String>,
    /// Its text: that of its oldest hint, unless it was edited.
    pub text: String,
    /// Whether its text was edited.
    pub edited: bool,
    /// State; never forgotten.
    pub state: ExperienceState,
    /// Why it is retired.
    pub reason: Option<String>,
    /// The turns whose hints said it, oldest first.
    pub turns: Vec<TurnId>,
    /// Time of its first hint, unix milliseconds.
    pub created_ms: i64,
    /// Time of its last hint, unix milliseconds.
    pub last_ms: i64,
    /// How often it was distilled since its last hint.
    pub distilled: u32,
    /// Mean divergence of the policy from the teacher these times, in nats per token.
    pub gap: Option<f64>,
}

impl ExperienceEntry {
    /// Number of turns whose hints said it.
    pub fn seen(&self) -> usize {
        self.turns.len()
    }
}

/// What becomes of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExperienceEdit {
    /// New text; not blank.
    pub text: Option<String>,
    /// Whether it is active, or else retired.
    pub active: Option<bool>,
}

/// A hint to keep as experience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewExperience {
    /// Index of the hint among those of the judgement.
    pub hint: usize,
    /// Most entries of a key that are not forgotten.
    pub max_entries: usize,
}

/// The experience in a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptExperience {
    /// The text in the system message.
    pub text: String,
    /// The entries that it consists of.
    pub entries: Vec<i64>,
}

impl PromptExperience {
    /// The text of those of `entries`, with their ids and newest first, that fit into `max_tokens`; `None` if none does.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn new(
        entries: &[(i64, String)],
        tokenizer: &Tokenizer,
        max_tokens: usize,
    ) -> Result<Option<Self>, TokenizerError> {
        let texts = entries.iter().map(|(_, text)| text.as_str());
        let text = experience_text(texts, tokenizer, max_tokens)?;
        Ok(text.map(|(text, included)| Self {
            text,
            entries: included.into_iter().map(|at| entries[at].0).collect(),
        }))
    }
}

/// The distillation of experience in a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DistilledExperience {
    /// The turns that were distilled.
    pub turns: Vec<DistilledTurn>,
    /// An entry may retire after this many turns.
    pub retire_turns: usize,
    /// It retires if the mean of their divergences is at most this.
    pub retire_gap: f64,
}

/// A turn that was distilled from a teacher with experience in its prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DistilledTurn {
    /// The turn.
    pub turn: TurnId,
    /// The entries in the teacher's prompt.
    pub entries: Vec<i64>,
    /// Estimate of the KL divergence of the policy without them from the teacher, in nats per token.
    pub gap: f64,
}
