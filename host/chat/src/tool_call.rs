//! Parsing of a tool call from the JSON object that most model families write: `name` and `arguments` (or
//! `parameters`).

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::FunctionCall;

#[derive(Deserialize)]
struct RawCall<'a> {
    name: String,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

impl FunctionCall {
    /// Parses an object with a tool name and arguments, or returns why it is not a call.
    pub(crate) fn parse(object: &str) -> Result<Self, String> {
        let raw: RawCall<'_> =
            serde_json::from_str(object).map_err(|error| format!("not a call: {error}"))?;
        if raw.name.trim().is_empty() {
            return Err("the name is empty".to_owned());
        }
        let arguments = match raw.arguments.map(RawValue::get) {
            None | Some("null") => "{}".to_owned(),
            Some(object) if object.starts_with('{') => object.to_owned(),
            Some(text) if text.starts_with('"') => double_encoded_arguments(text)?,
            Some(_) => return Err("the arguments are not an object".to_owned()),
        };
        Ok(Self {
            name: raw.name,
            arguments,
        })
    }

    /// A call whose name is outside its arguments object.
    pub(crate) fn with_arguments(name: String, object: &str) -> Result<Self, String> {
        let arguments: &RawValue =
            serde_json::from_str(object).map_err(|error| format!("not arguments: {error}"))?;
        Ok(Self {
            name,
            arguments: arguments.get().to_owned(),
        })
    }
}

/// Arguments encoded as a JSON string that contains a JSON object.
fn double_encoded_arguments(text: &str) -> Result<String, String> {
    serde_json::from_str::<String>(text)
        .ok()
        .filter(|inner| {
            serde_json::from_str::<serde_json::Value>(inner).is_ok_and(|value| value.is_object())
        })
        .ok_or_else(|| "the arguments are not an object".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_kept_verbatim() {
        let call =
            FunctionCall::parse("{\"name\": \"f\", \"arguments\": {\"x\": 1.10, \"y\":  [1e400]}}");
        let expected = "{\"x\": 1.10, \"y\":  [1e400]}".to_owned();
        assert_eq!(
            call,
            Ok(FunctionCall {
                name: "f".into(),
                arguments: expected
            })
        );
    }

    #[test]
    fn common_variations_are_parsed_or_rejected() {
        for (body, arguments) in [
            (r#"{"name": "f"}"#, Some("{}")),
            (r#"{"name": "f", "arguments": null}"#, Some("{}")),
            (
                r#"{"arguments": {"a": 1}, "name": "f"}"#,
                Some(r#"{"a": 1}"#),
            ),
            (
                r#"{"name": "f", "parameters": {"a": 1}}"#,
                Some(r#"{"a": 1}"#),
            ),
            (
                r#"{"name": "f", "arguments": "{\"a\": 1}"}"#,
                Some(r#"{"a": 1}"#),
            ),
            (r#"{"name": "f", "arguments": [1]}"#, None),
            (r#"{"name": "f", "arguments": "x"}"#, None),
            (r#"{"name": "", "arguments": {}}"#, None),
            (r#"{"arguments": {}}"#, None),
            (r#"f(a=1)"#, None),
            (r#"{"name": "f"} trailing"#, None),
            ("", None),
        ] {
            match (FunctionCall::parse(body), arguments) {
                (Ok(call), Some(expected)) => assert_eq!(call.arguments, expected, "{body}"),
                (Err(_), None) => {}
                (got, _) => panic!("{body}: {got:?}"),
            }
        }
    }
}
