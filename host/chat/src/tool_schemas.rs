//! Parameter types of the offered tools, for tool-call formats that write values without quotes: there, only the schema
//! distinguishes the string `12` from the number.

use std::collections::HashMap;

use serde_json::Value;

use super::Tool;

/// Maximum depth of nested references that are followed.
const MAX_REF_DEPTH: usize = 8;

/// The tools that a prompt offers, with the parameter types needed to parse their calls.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolSchemas {
    tools: HashMap<String, HashMap<String, JsonTypes>>,
}

/// JSON types that a value may have; none set means that the schema does not restrict it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JsonTypes {
    string: bool,
    /// A number or boolean, which can be confused with a string.
    scalar: bool,
    container: bool,
    null: bool,
}

impl ToolSchemas {
    /// Reads the parameter types of tools.
    pub fn from_definitions(definitions: &[Tool]) -> Self {
        let tools = definitions.iter().map(|Tool { function, .. }| {
            let schema = function.parameters.as_ref().unwrap_or(&Value::Null);
            let properties = schema.get("properties").and_then(Value::as_object);
            let types = properties.into_iter().flatten().map(|(key, property)| {
                let mut types = JsonTypes::default();
                types.add(property, schema, 0);
                (key.clone(), types)
            });
            (function.name.clone(), types.collect())
        });
        Self {
            tools: tools.collect(),
        }
    }

    /// Whether a tool of this name is offered.
    pub(crate) fn has_tool(&self, tool: &str) -> bool {
        self.tools.contains_key(tool)
    }

    /// Whether the tool has a parameter of this name.
    pub(crate) fn has_parameter(&self, tool: &str, parameter: &str) -> bool {
        self.tools
            .get(tool)
            .is_some_and(|parameters| parameters.contains_key(parameter))
    }

    /// Whether a value of this parameter is always a string, so that it can be streamed before it is complete.
    pub(crate) fn is_string(&self, tool: &str, parameter: &str) -> bool {
        let types = self.tools.get(tool).and_then(|keys| keys.get(parameter));
        let types = types.copied().unwrap_or_default();
        !types.container && !types.null && (types.string || !types.scalar)
    }

    /// JSON of a value that the model wrote without quotes. Text that does not match the schema's type becomes a
    /// string: the tool's own validation can report the error to the model.
    pub(crate) fn value_to_json(&self, tool: &str, parameter: &str, written: &str) -> String {
        let types = self.tools.get(tool).and_then(|keys| keys.get(parameter));
        let bare = written.trim();
        types
            .copied()
            .unwrap_or_default()
            .parse_value(bare)
            .unwrap_or_else(|| Value::from(written).to_string())
    }
}

impl JsonTypes {
    /// Adds the types that a schema allows; references are resolved in `root`.
    fn add(&mut self, schema: &Value, root: &Value, depth: usize) {
        let Some(fields) = schema.as_object().filter(|_| depth < MAX_REF_DEPTH) else {
            return;
        };
        match fields.get("type") {
            Some(Value::String(name)) => self.add_type(name),
            Some(Value::Array(names)) => {
                for name in names.iter().filter_map(Value::as_str) {
                    self.add_type(name);
                }
            }
            _ => {}
        }
        let listed = fields.get("enum").and_then(Value::as_array);
        if fields.get("type").is_none() {
            for value in listed.into_iter().flatten().chain(fields.get("const")) {
                self.add_type(match value {
                    Value::String(_) => "string",
                    Value::Null => "null",
                    Value::Array(_) | Value::Object(_) => "object",
                    Value::Bool(_) | Value::Number(_) => "number",
                });
            }
        }
        for choice in ["anyOf", "oneOf", "allOf"] {
            let branches = fields.get(choice).and_then(Value::as_array);
            for branch in branches.into_iter().flatten() {
                self.add(branch, root, depth + 1);
            }
        }
        let pointer = fields.get("$ref").and_then(Value::as_str);
        let target = pointer
            .and_then(|pointer| pointer.strip_prefix('#'))
            .and_then(|pointer| root.pointer(pointer));
        if let Some(target) = target {
            self.add(target, root, depth + 1);
        }
    }

    fn add_type(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "integer" | "number" | "boolean" => self.scalar = true,
            "array" | "object" => self.container = true,
            "null" => self.null = true,
            _ => {}
        }
    }

    /// The text as JSON of a type other than string, or `None` if it is a string.
    fn parse_value(self, text: &str) -> Option<String> {
        let literal = match text {
            // Python literals.
            "True" => "true",
            "False" => "false",
            "None" => "null",
            text => text,
        };
        let value: Value = serde_json::from_str(literal).ok()?;
        let fits = match value {
            Value::Null => self.null && (literal == text || !self.string),
            // If a string is allowed as well, `12` is a string: digits are ambiguous, braces are not.
            Value::Bool(_) | Value::Number(_) => self.scalar && !self.string,
            Value::Array(_) | Value::Object(_) => self.container,
            Value::String(_) => false,
        };
        fits.then(|| literal.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schema_determines_the_type_of_a_value() {
        let types = ToolSchemas::from_definitions(&[serde_json::from_value(
            json!({"type": "function", "function": {"name": "f", "parameters": {
                "type": "object",
                "$defs": {"point": {"type": "object"}},
                "properties": {
                    "text": {"type": "string"},
                    "count": {"type": "integer"},
                    "ratio": {"type": ["number", "null"]},
                    "yes": {"type": "boolean"},
                    "list": {"type": "array"},
                    "point": {"$ref": "#/$defs/point"},
                    "loop": {"$ref": "#/properties/loop"},
                    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "either": {"oneOf": [{"type": "string"}, {"type": "array"}, {"type": "integer"}]},
                    "level": {"enum": [1, 2, 3]},
                    "any": {},
                },
            }}}),
        )
        .unwrap()]);
        for (parameter, written, expected) in [
            ("text", "12", "\"12\""),
            ("text", " a\n<b>\"c\"", "\" a\\n<b>\\\"c\\\"\""),
            ("text", "null", "\"null\""),
            ("count", " 12 ", "12"),
            ("count", "twelve", "\"twelve\""),
            ("ratio", "1.50", "1.50"),
            ("ratio", "None", "null"),
            ("yes", "True", "true"),
            ("yes", "yes", "\"yes\""),
            ("list", "[1, \"a\"]", "[1, \"a\"]"),
            ("list", "[1,", "\"[1,\""),
            ("point", "{\"x\": 1}", "{\"x\": 1}"),
            ("loop", "1", "\"1\""),
            ("maybe", "null", "null"),
            ("maybe", "None", "\"None\""),
            ("maybe", "true", "\"true\""),
            ("either", "[1]", "[1]"),
            ("either", "7", "\"7\""),
            ("level", "2", "2"),
            ("any", "2", "\"2\""),
            ("unknown", "{}", "\"{}\""),
        ] {
            assert_eq!(
                types.value_to_json("f", parameter, written),
                expected,
                "{parameter}: {written}"
            );
        }
        assert_eq!(types.value_to_json("g", "text", "1"), "\"1\"");
        assert!(
            types.has_tool("f")
                && !types.has_tool("g")
                && types.has_parameter("f", "any")
                && !types.has_parameter("f", "x")
        );
    }
}
