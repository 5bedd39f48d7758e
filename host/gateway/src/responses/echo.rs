//! What a response repeats of its request. It is kept with the turn, so that the response can be read back.

use clawhost_journal::TurnRecord;
use serde_json::{Map, Value, json};

use crate::fields::Fields;
use crate::reply::{Ask, Known};

/// The note under which a turn keeps it.
const NOTE: &str = "response";

/// Fields of a response that come from its request.
pub(super) struct Echo(Map<String, Value>);

impl Echo {
    /// From a checked request.
    pub(super) fn read(fields: Fields<'_, '_>, ask: &Ask) -> Self {
        let mut echo = Map::new();
        let mut put = |name: &str, default: Value| {
            let value = fields.value(name).cloned().unwrap_or(default);
            echo.insert(name.to_owned(), value);
        };
        put("instructions", Value::Null);
        put("max_output_tokens", Value::Null);
        put("metadata", json!({}));
        put("parallel_tool_calls", true.into());
        put("previous_response_id", Value::Null);
        put("reasoning", json!({"effort": null, "summary": null}));
        put("store", true.into());
        put("temperature", decimal(ask.sampling.temperature));
        put("text", json!({"format": {"type": "text"}}));
        put("tool_choice", "auto".into());
        put("tools", json!([]));
        put("top_p", decimal(ask.sampling.top_p));
        put("truncation", "disabled".into());
        put("user", Value::Null);
        Self(echo)
    }

    /// The notes to keep with the turn.
    pub(super) fn into_notes(self) -> Map<String, Value> {
        Map::from_iter([(NOTE.to_owned(), self.0.into())])
    }

    /// Of a reply in progress.
    pub(super) fn of_known(known: &Known) -> Self {
        Self(object(known.ask.notes.get(NOTE)).unwrap_or_default())
    }

    /// Of a recorded turn, if it was asked for in this dialect.
    pub(super) fn of(turn: &TurnRecord) -> Option<Self> {
        object(turn.sampling.get(NOTE)).map(Self)
    }

    /// Whether the response may be read back and continued. The turn is recorded in any case.
    pub(super) fn stored(&self) -> bool {
        self.0.get("store") != Some(&Value::Bool(false))
    }

    /// Whether the first message of the turn is the instructions.
    pub(super) fn instructed(&self) -> bool {
        self.0.get("instructions").is_some_and(Value::is_string)
    }

    /// The fields.
    pub(super) fn into_fields(self) -> Map<String, Value> {
        self.0
    }
}

fn object(value: Option<&Value>) -> Option<Map<String, Value>> {
    value.and_then(Value::as_object).cloned()
}

/// A setting as a person would write it: 0.7 and not 0.699999988079071.
fn decimal(setting: f32) -> Value {
    setting
        .to_string()
        .parse::<f64>()
        .map_or(Value::Null, Value::from)
}
