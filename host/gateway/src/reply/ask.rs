//! What a client asks for, checked and free of any dialect.

use clawhost_policy::Sampling;
use serde_json::{Map, Value, json};

use super::{Format, Session, Tools};

/// A checked request.
#[derive(Debug, Default)]
pub(crate) struct Ask {
    /// Default: the model that is served.
    pub(crate) model: Option<String>,
    /// The conversation in OpenAI's form: roles system, user, assistant and tool; content as one string.
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Tools,
    pub(crate) format: Format,
    pub(crate) sampling: Sampling,
    /// Choices, at least 1.
    pub(crate) n: u32,
    /// Whether the answer shows something of each token (ids, log-probs).
    pub(crate) shows_tokens: bool,
    /// Further variables for the chat template.
    pub(crate) template: Map<String, Value>,
    pub(crate) session: Session,
    pub(crate) user: Option<String>,
    /// What the dialect wants kept with the turn, beside the sampling settings.
    pub(crate) notes: Map<String, Value>,
}

impl Ask {
    /// The sampling settings as the journal keeps them, with the seeds that were really used.
    pub(crate) fn sampling_json(&self, seeds: impl Iterator<Item = u64>) -> Value {
        let mut settings = json!(self.sampling);
        if let Some(settings) = settings.as_object_mut() {
            settings.insert("n".into(), self.n.into());
            settings.insert("seeds".into(), seeds.collect::<Vec<_>>().into());
            settings.extend(self.notes.clone());
        }
        settings
    }
}
