//! Typed access to the fields of a JSON object; errors carry the path of the field in `param`.
//!
//! Derived deserialization would not set OpenAI's `param`, and would reject `null`, which many clients send for
//! "default". Here, absent and `null` are the same.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// A JSON object and its path in the body.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a, 'p> {
    map: &'a Map<String, Value>,
    path: &'p str,
}

impl<'a, 'p> Fields<'a, 'p> {
    /// The object at `path` (empty for the body itself).
    pub(crate) fn new(value: &'a Value, path: &'p str) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other => Err(wrong_type(path, "an object", other)),
        }
    }

    /// The path of a field, as it appears in `param`.
    pub(crate) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    pub(crate) fn value(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&self.path_of(name), "a string", other)),
        }
    }

    pub(crate) fn required_text(&self, name: &str) -> Result<&'a str, ApiError> {
        self.text(name)?.ok_or_else(|| self.missing(name))
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(wrong_type(&self.path_of(name), "true or false", other)),
        }
    }

    pub(crate) fn number(&self, name: &str, min: f64, max: f64) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.value(name) else {
            return Ok(None);
        };
        let Some(number) = value.as_f64() else {
            return Err(wrong_type(&self.path_of(name), "a number", value));
        };
        if !(min..=max).contains(&number) {
            return Err(ApiError::invalid(
                self.path_of(name),
                format!(
                    "`{}` is {number}; it must be from {min} to {max}",
                    self.path_of(name)
                ),
            ));
        }
        Ok(Some(number))
    }

    pub(crate) fn integer(&self, name: &str, min: i64, max: i64) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.value(name) else {
            return Ok(None);
        };
        // Clients with a single number type send integers as 5.0.
        let integer = value.as_i64().or_else(|| {
            value
                .as_f64()
                .filter(|number| number.fract() == 0.0 && number.abs() < 9e15)
                .map(|number| number as i64)
        });
        let Some(integer) = integer else {
            return Err(wrong_type(&self.path_of(name), "an integer", value));
        };
        if !(min..=max).contains(&integer) {
            return Err(ApiError::invalid(
                self.path_of(name),
                format!(
                    "`{}` is {integer}; it must be from {min} to {max}",
                    self.path_of(name)
                ),
            ));
        }
        Ok(Some(integer))
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(wrong_type(&self.path_of(name), "an array", other)),
        }
    }

    pub(crate) fn missing(&self, name: &str) -> ApiError {
        ApiError::bad_request(format!("`{}` is missing", self.path_of(name)))
            .param(self.path_of(name))
            .code("missing_required_parameter")
    }
}

/// 400 that names the expected and the actual type.
pub(crate) fn wrong_type(path: &str, expected: &str, got: &Value) -> ApiError {
    let got = match got {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    let shown = if path.is_empty() { "the body" } else { path };
    let error = ApiError::bad_request(format!("`{shown}` must be {expected}, not {got}"))
        .code("invalid_type");
    if path.is_empty() {
        error
    } else {
        error.param(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn null_is_treated_as_absent() {
        let body = json!({"a": null});
        let fields = Fields::new(&body, "").unwrap();
        assert_eq!(fields.text("a").unwrap(), None);
        assert_eq!(fields.integer("a", 0, 1).unwrap(), None);
        assert!(fields.list("b").unwrap().is_none());
    }

    #[test]
    fn type_error_names_path_and_both_types() {
        let body = json!({"n": "3"});
        let fields = Fields::new(&body, "tools[0]").unwrap();
        let error = fields.integer("n", 0, 9).unwrap_err();
        assert_eq!(error.to_json()["error"]["param"], "tools[0].n");
        assert_eq!(
            error.to_string(),
            "`tools[0].n` must be an integer, not a string"
        );
        assert!(Fields::new(&json!([1]), "").is_err());
    }

    #[test]
    fn bounds_are_inclusive_and_reported() {
        let body = json!({"n": 9, "t": 2.5, "whole": 4.0, "part": 4.5, "huge": 1e300});
        let fields = Fields::new(&body, "").unwrap();
        assert_eq!(fields.integer("n", 0, 9).unwrap(), Some(9));
        assert!(fields.integer("n", 0, 8).is_err());
        assert_eq!(fields.integer("whole", 0, 8).unwrap(), Some(4));
        assert!(fields.integer("part", 0, 8).is_err());
        assert!(fields.integer("huge", 0, i64::MAX).is_err());
        let error = fields.number("t", 0.0, 2.0).unwrap_err();
        assert!(error.to_string().contains("from 0 to 2"), "{error}");
    }
}
