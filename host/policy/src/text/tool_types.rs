//! Which types the parameters of the offered tools have, for forms of calls that write values without
//! quotes: there, only the schema tells the text `12` from the number.

use std::collections::HashMap;

use serde_json::Value;

/// References to other parts of a schema that are followed, one inside the other.
const DEEPEST: usize = 8;

/// The tools that a prompt offers, as far as reading their calls needs them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolTypes {
    tools: HashMap<String, HashMap<String, Kinds>>,
}

/// JSON types that a value may have; none set means that the schema does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Kinds {
    string: bool,
    /// A number, a boolean: what can be mistaken for text.
    scalar: bool,
    container: bool,
    null: bool,
}

impl ToolTypes {
    /// Of tool definitions in the form of OpenAI's API. What is no definition is passed over.
    pub fn of(definitions: &[Value]) -> Self {
        let tools = definitions.iter().filter_map(|definition| {
            let function = definition.get("function").unwrap_or(definition);
            let name = function.get("name")?.as_str()?;
            let schema = function.get("parameters").unwrap_or(&Value::Null);
            let properties = schema.get("properties").and_then(Value::as_object);
            let kinds = properties.into_iter().flatten().map(|(key, property)| {
                let mut kinds = Kinds::default();
                kinds.add(property, schema, 0);
                (key.clone(), kinds)
            });
            Some((name.to_owned(), kinds.collect()))
        });
        Self {
            tools: tools.collect(),
        }
    }

    /// Whether a tool of this name is offered.
    pub(super) fn knows(&self, tool: &str) -> bool {
        self.tools.contains_key(tool)
    }

    /// Whether the tool has a parameter of this name.
    pub(super) fn has(&self, tool: &str, parameter: &str) -> bool {
        self.tools
            .get(tool)
            .is_some_and(|parameters| parameters.contains_key(parameter))
    }

    /// Whether a value of this parameter is text whatever it says, so that it is known before it is whole.
    pub(super) fn is_text(&self, tool: &str, parameter: &str) -> bool {
        let kinds = self.tools.get(tool).and_then(|keys| keys.get(parameter));
        let kinds = kinds.copied().unwrap_or_default();
        !kinds.container && !kinds.null && (kinds.string || !kinds.scalar)
    }

    /// JSON of a value that the model wrote without quotes. Text that is not of the type which the schema asks for
    /// stays text: the tool's own check can tell the model what is wrong with it.
    pub(super) fn json(&self, tool: &str, parameter: &str, written: &str) -> String {
        let kinds = self.tools.get(tool).and_then(|keys| keys.get(parameter));
        let bare = written.trim();
        kinds
            .copied()
            .unwrap_or_default()
            .json(bare)
            .unwrap_or_else(|| Value::from(written).to_string())
    }
}

impl Kinds {
    /// What a schema allows; `root` is what its references point into.
    fn add(&mut self, schema: &Value, root: &Value, depth: usize) {
        let Some(fields) = schema.as_object().filter(|_| depth < DEEPEST) else {
            return;
        };
        match fields.get("type") {
            Some(Value::String(name)) => self.name(name),
            Some(Value::Array(names)) => {
                for name in names.iter().filter_map(Value::as_str) {
                    self.name(name);
                }
            }
            _ => {}
        }
        let listed = fields.get("enum").and_then(Value::as_array);
        if fields.get("type").is_none() {
            for value in listed.into_iter().flatten().chain(fields.get("const")) {
                self.name(match value {
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

    fn name(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "integer" | "number" | "boolean" => self.scalar = true,
            "array" | "object" => self.container = true,
            "null" => self.null = true,
            _ => {}
        }
    }

    /// The text as JSON of another type than text; none when it is text.
    fn json(self, text: &str) -> Option<String> {
        let literal = match text {
            // As Python writes them.
            "True" => "true",
            "False" => "false",
            "None" => "null",
            text => text,
        };
        let value: Value = serde_json::from_str(literal).ok()?;
        let fits = match value {
            Value::Null => self.null && (literal == text || !self.string),
            // Where text is allowed as well, `12` is text: braces are unmistakable, digits are not.
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
    fn the_schema_decides_what_a_value_is() {
        let types = ToolTypes::of(&[
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
        ]);
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
                types.json("f", parameter, written),
                expected,
                "{parameter}: {written}"
            );
        }
        assert_eq!(types.json("g", "text", "1"), "\"1\"");
        assert!(
            types.knows("f") && !types.knows("g") && types.has("f", "any") && !types.has("f", "x")
        );
    }

    #[test]
    fn what_is_no_definition_is_passed_over() {
        let types = ToolTypes::of(&[
            json!(3),
            json!({"name": "g", "parameters": {"properties": 5}}),
        ]);
        assert!(types.knows("g"));
    }
}
