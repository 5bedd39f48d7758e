//! The request fields that a response repeats. They are stored with the turn, so that the response can be retrieved.

use clawhost_journal::TurnRecord;
use serde_json::{Map, Value, json};

use crate::reply::{InferenceRequest, ReplyContext};

/// Request fields that the response repeats.
pub(super) struct RequestEcho(Map<String, Value>);

impl RequestEcho {
    /// The fields of a validated request.
    pub(super) fn new(body: &Value, request: &InferenceRequest) -> Self {
        let mut echo = Map::new();
        let mut insert = |name: &str, default: Value| {
            let value = body.get(name).filter(|value| !value.is_null());
            let value = value.cloned().unwrap_or(default);
            echo.insert(name.to_owned(), value);
        };
        insert("instructions", Value::Null);
        insert("max_output_tokens", Value::Null);
        insert("metadata", json!({}));
        insert("parallel_tool_calls", true.into());
        insert("previous_response_id", Value::Null);
        insert("reasoning", json!({"effort": null, "summary": null}));
        insert("store", true.into());
        insert("temperature", decimal(request.sampling.temperature));
        insert("text", json!({"format": {"type": "text"}}));
        insert("tool_choice", "auto".into());
        insert("tools", json!([]));
        insert("top_p", decimal(request.sampling.top_p));
        insert("truncation", "disabled".into());
        insert("user", Value::Null);
        Self(echo)
    }

    /// The fields of a reply in progress.
    pub(super) fn from_context(context: &ReplyContext) -> Self {
        let fields = context.request.echoed_fields.clone();
        Self(fields.expect("a request of this dialect stores them"))
    }

    /// The fields of a recorded turn, if it was requested in this dialect.
    pub(super) fn from_turn(turn: &TurnRecord) -> Option<Self> {
        turn.sampling.response.clone().map(Self)
    }

    /// Whether the response can be retrieved and continued (`store`). The turn is recorded in any case.
    pub(super) fn is_stored(&self) -> bool {
        self.0.get("store") != Some(&Value::Bool(false))
    }

    /// Whether the first message of the turn holds the instructions.
    pub(super) fn has_instructions(&self) -> bool {
        self.0.get("instructions").is_some_and(Value::is_string)
    }

    /// The fields.
    pub(super) fn into_fields(self) -> Map<String, Value> {
        self.0
    }
}

/// An `f32` as its shortest decimal: 0.7 and not 0.699999988079071.
fn decimal(setting: f32) -> Value {
    setting
        .to_string()
        .parse::<f64>()
        .map_or(Value::Null, Value::from)
}
