//! The documented shapes of what commands print: `host/clawhost/schemas`.

use std::path::Path;

use serde_json::Value;

/// The schema of this name.
pub fn schema(name: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../host/clawhost/schemas")
        .join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Checks the part of JSON Schema that the schemas use. `place` is what a failure names.
pub fn fits(schema: &Value, value: &Value, place: &str) {
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
        other => panic!("{place}: the schema says {other}"),
    };
    assert!(
        allowed.contains(&kind) || (kind == "integer" && allowed.contains(&"number")),
        "{place} is {kind}, the schema says {allowed:?}"
    );
    if let Some(choices) = schema["enum"].as_array() {
        assert!(choices.contains(value), "{place} is {value}");
    }
    if let Some(items) = schema.get("items") {
        for (at, item) in value.as_array().into_iter().flatten().enumerate() {
            fits(items, item, &format!("{place}[{at}]"));
        }
    }
    if let Some(others) = schema.get("additionalProperties").filter(|s| s.is_object()) {
        for (key, value) in value.as_object().into_iter().flatten() {
            fits(others, value, &format!("{place}.{key}"));
        }
    }
    if let (Some(object), Some(properties)) = (value.as_object(), schema["properties"].as_object())
    {
        for key in schema["required"].as_array().into_iter().flatten() {
            assert!(
                object.contains_key(key.as_str().unwrap()),
                "{place} lacks {key}"
            );
        }
        for (key, value) in object {
            let property = properties
                .get(key)
                .unwrap_or_else(|| panic!("{place}.{key} is not in the schema"));
            fits(property, value, &format!("{place}.{key}"));
        }
    }
}
