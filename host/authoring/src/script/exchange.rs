//! Calls of models and HTTP by a plugin in a test, with their answers.

use std::collections::BTreeMap;

use clawhost_plugins::{
    InboundResponse, Message, ModelChoice, ModelError, ModelFinish, ModelResponse, NetworkError,
    Role,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// One call of a plugin into the host, with its answer.
///
/// ```json
/// {"call": "model.complete", "request": {"model": "judge", "n": 3}, "answer": {"choices": ["1", "1", "-1"]}}
/// {"call": "http.send", "request": {"url": "https://api.example/v1"}, "answer": {"status": 200, "body": "ok"}}
/// {"call": "http.send", "request": {"url": "https://api.example/v2"}, "error": "timeout"}
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "call")]
pub enum Exchange {
    /// Completions: `model`, `messages` and `tools` as OpenAI's API has them, `n`, `temperature`, `top_p`,
    /// `max_tokens`, `stop`, `seed`, `schema`.
    #[serde(rename = "model.complete")]
    Complete(ScriptedCall<Completion, ModelError>),
    /// Log-probabilities: `model`, `messages`, `completion`.
    #[serde(rename = "model.score")]
    Score(ScriptedCall<Scores, ModelError>),
    /// An HTTP exchange: `method`, `url`, `headers` by name in lower case, `body` as text or, where JSON is expected, as
    /// JSON.
    #[serde(rename = "http.send")]
    Send(ScriptedCall<Response, NetworkError>),
}

/// A request, and either an answer or an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall<A, E> {
    /// Fields of the request to compare. Default none.
    #[serde(default)]
    pub request: Value,
    /// The answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<A>,
    /// Why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<E>,
}

/// The answer of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Completion {
    /// The choices.
    pub choices: Vec<Choice>,
    /// Tokens of the prompt, for the budget. Default 0.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Tokens of all choices, for the budget. Default 0.
    #[serde(default)]
    pub completion_tokens: u64,
}

/// One completion.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Choice {
    /// A message of this text that ended by itself.
    Text(String),
    /// Anything else.
    Full(FullChoice),
}

/// A completion with its message, reason and log-probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FullChoice {
    /// The message as OpenAI's API has it.
    pub message: clawhost_chat::Message,
    /// Why it ended. Default `stop`.
    #[serde(default)]
    pub finish: ModelFinish,
    /// Sum of its tokens' log-probabilities. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f64>,
}

impl<'de> Deserialize<'de> for Choice {
    /// By the form of the value, so that an error names what is wrong in the message; an untagged enum would not.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self::Text(text)),
            other => serde_json::from_value(other)
                .map(Self::Full)
                .map_err(D::Error::custom),
        }
    }
}

/// Log-probabilities of a completion's tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scores {
    /// One for each token.
    pub logprobs: Vec<f32>,
}

/// The answer to an HTTP request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Headers. Default none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body: a string as it is, anything else as JSON text. Default empty.
    #[serde(default)]
    pub body: Value,
}

impl Exchange {
    /// The function of the host that is called.
    pub(super) fn call(&self) -> &'static str {
        match self {
            Exchange::Complete(_) => "model.complete",
            Exchange::Score(_) => "model.score",
            Exchange::Send(_) => "http.send",
        }
    }

    /// What is asked.
    pub(super) fn request(&self) -> &Value {
        match self {
            Exchange::Complete(one) => &one.request,
            Exchange::Score(one) => &one.request,
            Exchange::Send(one) => &one.request,
        }
    }

    /// Checks what the types do not: that there is one answer or one error.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Exchange::Complete(one) => one.check(),
            Exchange::Score(one) => one.check(),
            Exchange::Send(one) => one.check(),
        }
    }
}

impl<A, E> ScriptedCall<A, E> {
    fn check(&self) -> Result<(), String> {
        match (&self.answer, &self.error) {
            (Some(_), None) | (None, Some(_)) => Ok(()),
            (Some(_), Some(_)) => Err("has an \"answer\" and an \"error\"".to_owned()),
            (None, None) => Err("has no \"answer\" and no \"error\"".to_owned()),
        }
    }
}

impl Completion {
    /// The response that the host is given.
    pub(super) fn response(&self) -> ModelResponse {
        ModelResponse {
            choices: self.choices.iter().map(Choice::read).collect(),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
        }
    }

    /// A response as a transcript has it.
    pub(super) fn from_response(response: &ModelResponse) -> Completion {
        Completion {
            choices: response.choices.iter().map(Choice::from_model).collect(),
            prompt_tokens: response.prompt_tokens,
            completion_tokens: response.completion_tokens,
        }
    }
}

impl Choice {
    fn read(&self) -> ModelChoice {
        match self {
            Choice::Text(text) => ModelChoice {
                message: Message::text(Role::Assistant, text.clone()),
                finish: ModelFinish::Stop,
                logprob: None,
            },
            Choice::Full(full) => ModelChoice {
                message: (&full.message).into(),
                finish: full.finish,
                logprob: full.logprob,
            },
        }
    }

    fn from_model(choice: &ModelChoice) -> Choice {
        Choice::Full(FullChoice {
            message: (&choice.message).into(),
            finish: choice.finish,
            logprob: choice.logprob,
        })
    }
}

impl From<Response> for InboundResponse {
    fn from(response: Response) -> InboundResponse {
        InboundResponse {
            status: response.status,
            headers: response.headers.into_iter().collect(),
            body: match response.body {
                Value::Null => Vec::new(),
                Value::String(text) => text.into_bytes(),
                json => json.to_string().into_bytes(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Result<Exchange, String> {
        let exchange: Exchange =
            serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
        exchange.check().map(|()| exchange)
    }

    #[test]
    fn exchanges_round_trip() {
        for value in [
            json!({"call": "model.complete", "request": {"n": 2}, "answer": {"choices": ["a", {"message":
                {"role": "assistant", "content": "b"}, "finish": "tool-calls", "logprob": -1.5}], "prompt_tokens": 3}}),
            json!({"call": "model.score", "request": null, "answer": {"logprobs": [-0.5, -1.0]}}),
            json!({"call": "model.score", "error": {"unavailable": "down"}}),
            json!({"call": "http.send", "answer": {"status": 204, "headers": {"a": "b"}}}),
            json!({"call": "http.send", "error": "too-large"}),
        ] {
            let exchange = read(&value).unwrap();
            let written = serde_json::to_value(&exchange).unwrap();
            assert_eq!(read(&written).unwrap(), exchange, "{written}");
        }
    }

    #[test]
    fn invalid_exchanges_are_rejected() {
        for (value, part) in [
            (json!({"call": "http.send"}), "no \"answer\""),
            (
                json!({"call": "http.send", "answer": {"status": 200}, "error": "timeout"}),
                "and an \"error\"",
            ),
            (
                json!({"call": "model.complete", "answer": {"choices": [{"message": {"role": "robot"}}]}}),
                "robot",
            ),
            (
                json!({"call": "state.get", "error": "timeout"}),
                "state.get",
            ),
            (json!({"call": "http.send", "error": "tired"}), "tired"),
        ] {
            let error = read(&value).unwrap_err();
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
