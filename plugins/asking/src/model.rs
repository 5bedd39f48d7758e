//! Calls a model. Tests replace the model with a fake.

use clawhost_sdk::model::{self, Choice, Finish, Request, Response, Sampling};
use clawhost_sdk::{Message, PluginError, Role, Settings};

/// A model that completes prompts.
pub trait Model {
    /// Samples the completions of the request.
    ///
    /// # Errors
    /// The host's error: not granted, out of budget, too long, not available.
    fn complete(&self, request: &Request) -> Result<Response, model::Error>;
}

/// The models granted by the operator. Works only in a component.
#[derive(Debug, Clone, Copy, Default)]
pub struct Granted;

impl Model for Granted {
    fn complete(&self, request: &Request) -> Result<Response, model::Error> {
        model::complete(request)
    }
}

/// A prompt with its sampling parameters.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Model alias.
    pub model: String,
    /// System prompt.
    pub system: String,
    /// The fenced material.
    pub user: String,
    /// Number of completions in one request.
    pub choices: u32,
    /// Sampling temperature.
    pub temperature: f32,
    /// Maximum tokens of one completion.
    pub max_tokens: u32,
    /// Sampling seed.
    pub seed: u64,
}

impl Prompt {
    /// Creates a prompt from the settings that all of these plugins share: `model` (an alias, default `"judge"`),
    /// `temperature` (0 to 2, default 0.7), `max_tokens` (per completion, 8 to 8,192, default 512).
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] with the name of the invalid setting.
    pub fn of(settings: &Settings) -> Result<Prompt, PluginError> {
        Ok(Prompt {
            model: settings.text("model", "judge")?,
            system: String::new(),
            user: String::new(),
            choices: 1,
            temperature: settings.number("temperature", 0.7, 0.0..=2.0)? as f32,
            max_tokens: settings.count("max_tokens", 512, 8..=8192)?,
            seed: 0,
        })
    }
}

/// Returns the texts of the model's completions. A completion that was cut off, filtered or turned into a tool call is
/// returned as an empty text, because it may end in the middle of a quotation.
///
/// # Errors
/// See [`fault`].
pub fn ask(model: &impl Model, prompt: Prompt) -> Result<Vec<String>, PluginError> {
    let request = Request {
        model: prompt.model,
        messages: vec![
            Message::new(Role::System, prompt.system),
            Message::new(Role::User, prompt.user),
        ],
        tools: Vec::new(),
        sampling: Sampling {
            n: prompt.choices,
            temperature: prompt.temperature,
            top_p: 1.0,
            max_tokens: prompt.max_tokens,
            stop: Vec::new(),
            seed: Some(prompt.seed),
        },
        schema: None,
    };
    let response = model
        .complete(&request)
        .map_err(|error| fault(&request.model, error))?;
    Ok(response.choices.iter().map(whole_text).collect())
}

fn whole_text(choice: &Choice) -> String {
    if choice.finish == Finish::Stop {
        choice.message.text()
    } else {
        String::new()
    }
}

/// Maps a model error to a plugin error: denied and out of budget stay so, a request that does not fit is `unsupported`,
/// and a temporary failure is `transient`.
pub fn fault(alias: &str, error: model::Error) -> PluginError {
    match error {
        model::Error::Denied(why) => PluginError::Denied(format!("model `{alias}`: {why}")),
        model::Error::BudgetExhausted => {
            PluginError::Denied(format!("model `{alias}`: the budget of this call is spent"))
        }
        model::Error::Rejected(why) => {
            PluginError::Unsupported(format!("model `{alias}` refused the request: {why}"))
        }
        model::Error::Timeout => {
            PluginError::Transient(format!("model `{alias}` gave no answer in time"))
        }
        model::Error::Unavailable(why) => {
            PluginError::Transient(format!("model `{alias}` is not available: {why}"))
        }
    }
}
