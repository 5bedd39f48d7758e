//! The JSON schemas of command output, in `host/clawhost/schemas`.

use std::path::Path;

use serde_json::Value;

/// Reads the schema with this name.
pub fn schema(name: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../host/clawhost/schemas")
        .join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Asserts that a value matches a schema, for the subset of JSON Schema that the schemas use. `path` is reported on
/// failure.
pub fn assert_matches_schema(schema: &Value, value: &Value, path: &str) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        other => panic!("{path}: the schema requires {other}"),
    };
    assert!(
        allowed.contains(&kind) || (kind == "integer" && allowed.contains(&"number")),
        "{path} is {kind}, the schema requires {allowed:?}"
    );
    if let Some(choices) = schema["enum"].as_array() {
        assert!(choices.contains(value), "{path} is {value}");
    }
    if let Some(items) = schema.get("items") {
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            assert_matches_schema(items, item, &format!("{path}[{index}]"));
        }
    }
    if let Some(others) = schema.get("additionalProperties").filter(|s| s.is_object()) {
        for (key, value) in value.as_object().into_iter().flatten() {
            assert_matches_schema(others, value, &format!("{path}.{key}"));
        }
    }
    if let (Some(object), Some(properties)) = (value.as_object(), schema["properties"].as_object())
    {
        for key in schema["required"].as_array().into_iter().flatten() {
            assert!(
                object.contains_key(key.as_str().unwrap()),
                "{path} lacks {key}"
            );
        }
        for (key, value) in object {
            let property = properties
                .get(key)
                .unwrap_or_else(|| panic!("{path}.{key} is not in the schema"));
            assert_matches_schema(property, value, &format!("{path}.{key}"));
        }
    }
}
