//! Validates a JSON schema before compilation, so that errors name their location.
//!
//! A restricting keyword that cannot be enforced is rejected: a reply that satisfies half a schema looks like one that
//! satisfies all of it. Annotations are ignored, and so is an unknown `format`, which JSON Schema defines as an
//! annotation.

use serde_json::{Map, Value};

/// Maximum nesting depth.
const MAX_DEPTH: usize = 64;

/// Maximum number of subschemas.
const MAX_SCHEMAS: usize = 5_000;

/// Maximum size of a schema in bytes, as compact JSON.
pub(super) const MAX_BYTES: usize = 256 << 10;

/// Maximum value of `minItems`, `minProperties` and `minLength`.
const MAX_MINIMUM: u64 = 1_000;

/// Upper bounds above this are dropped: no reply can exceed them.
const MAX_BOUND: u64 = 100_000;

/// Restricting keywords that cannot be enforced during generation.
const UNSUPPORTED_KEYWORDS: [&str; 18] = [
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
    "$dynamicRef",
    "$recursiveRef",
    "x-guidance",
];

/// String formats that are enforced.
const FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];

const TYPES: [&str; 7] = [
    "null", "boolean", "number", "integer", "string", "array", "object",
];

/// Why a schema is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", if path.is_empty() { String::new() } else { format!("`{path}`: ") })]
pub struct SchemaError {
    /// Location in the schema, as `properties.a.items`; empty for the root.
    pub path: String,
    /// What is wrong and how to fix it.
    pub reason: String,
}

/// Checks that a schema can be enforced.
///
/// # Errors
/// The first location that cannot, and why.
pub fn check_schema(schema: &Value) -> Result<(), SchemaError> {
    validate(schema).map(|_| ())
}

/// Validates a schema and returns it without keywords that have no effect but that the compiler would reject.
pub(super) fn validate(schema: &Value) -> Result<Value, SchemaError> {
    let bytes = schema.to_string().len();
    let mut validator = SchemaValidator {
        root: schema,
        path: String::new(),
        depth: 0,
        schemas: 0,
    };
    if bytes > MAX_BYTES {
        return Err(validator.error(format!(
            "the schema has {bytes} bytes; the maximum is {MAX_BYTES}"
        )));
    }
    if !schema.is_object() {
        return Err(validator.error("a schema must be a JSON object".to_owned()));
    }
    let mut out = schema.clone();
    validator.visit(&mut out)?;
    Ok(out)
}

struct SchemaValidator<'a> {
    root: &'a Value,
    path: String,
    depth: usize,
    schemas: usize,
}

impl SchemaValidator<'_> {
    fn error(&self, reason: String) -> SchemaError {
        SchemaError {
            path: self.path.clone(),
            reason,
        }
    }

    fn error_at(&self, key: &str, reason: impl Into<String>) -> SchemaError {
        let path = if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        };
        SchemaError {
            path,
            reason: reason.into(),
        }
    }

    /// Visits the subschema at `step`.
    fn visit_child(&mut self, step: &str, schema: &mut Value) -> Result<(), SchemaError> {
        let length = self.path.len();
        if length > 0 && !step.starts_with('[') {
            self.path.push('.');
        }
        self.path.push_str(step);
        self.depth += 1;
        self.visit(schema)?;
        self.depth -= 1;
        self.path.truncate(length);
        Ok(())
    }

    fn visit(&mut self, schema: &mut Value) -> Result<(), SchemaError> {
        self.schemas += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(format!("nested deeper than {MAX_DEPTH}")));
        }
        if self.schemas > MAX_SCHEMAS {
            return Err(self.error(format!("more than {MAX_SCHEMAS} subschemas")));
        }
        let map = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(map) => map,
            _ => return Err(self.error("a schema must be an object or a boolean".to_owned())),
        };
        if map.get("uniqueItems") == Some(&Value::Bool(false)) {
            map.shift_remove("uniqueItems");
        }
        if let Some(key) = map
            .keys()
            .find(|key| UNSUPPORTED_KEYWORDS.contains(&key.as_str()))
        {
            return Err(self.error_at(
                key,
                "this keyword cannot be enforced during generation; remove it",
            ));
        }
        self.check_types(map)?;
        self.check_reference(map)?;
        self.check_bounds(map)?;
        let unknown = map
            .get("format")
            .and_then(Value::as_str)
            .is_some_and(|format| !FORMATS.contains(&format));
        if unknown {
            map.shift_remove("format");
        }
        self.visit_children(map)
    }

    fn check_types(&self, map: &Map<String, Value>) -> Result<(), SchemaError> {
        let known = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
        let fits = match map.get("type") {
            None => true,
            Some(Value::Array(kinds)) => !kinds.is_empty() && kinds.iter().all(known),
            Some(kind) => known(kind),
        };
        if !fits {
            let allowed = TYPES.join(", ");
            return Err(self.error_at("type", format!("the type must be one of {allowed}")));
        }
        match map.get("enum") {
            Some(Value::Array(values)) if !values.is_empty() => Ok(()),
            None => Ok(()),
            Some(_) => Err(self.error_at("enum", "it must be an array of at least one value")),
        }
    }

    /// Checks that a reference points into this schema.
    fn check_reference(&self, map: &Map<String, Value>) -> Result<(), SchemaError> {
        let Some(reference) = map.get("$ref") else {
            return Ok(());
        };
        let target = reference.as_str().and_then(|text| {
            let rest = text.strip_prefix('#')?;
            let steps = rest.strip_prefix('/').unwrap_or(rest);
            let plain = !rest.contains(['~', '%']);
            let target = if steps.is_empty() {
                Some(self.root)
            } else {
                self.root.pointer(rest)
            };
            target.filter(|target| plain && (target.is_object() || target.is_boolean()))
        });
        if target.is_none() {
            let reason = "a reference must point into this schema, such as `#/$defs/name`";
            return Err(self.error_at("$ref", reason));
        }
        Ok(())
    }

    fn check_bounds(&self, map: &mut Map<String, Value>) -> Result<(), SchemaError> {
        for (minimum, maximum) in [
            ("minItems", "maxItems"),
            ("minProperties", "maxProperties"),
            ("minLength", "maxLength"),
        ] {
            for key in [minimum, maximum] {
                let Some(bound) = map.get(key) else { continue };
                let whole = bound.as_u64().or_else(|| {
                    bound
                        .as_f64()
                        .filter(|x| x.fract() == 0.0 && *x >= 0.0)
                        .map(|x| x as u64)
                });
                let Some(bound) = whole else {
                    return Err(self.error_at(key, "it must be a whole number, not below 0"));
                };
                if key == minimum && bound > MAX_MINIMUM {
                    return Err(self.error_at(key, format!("at most {MAX_MINIMUM} are supported")));
                }
                if key == maximum && bound > MAX_BOUND {
                    map.shift_remove(key);
                }
            }
        }
        Ok(())
    }

    fn visit_children(&mut self, map: &mut Map<String, Value>) -> Result<(), SchemaError> {
        for (key, value) in map.iter_mut() {
            match key.as_str() {
                "properties" | "patternProperties" | "$defs" | "definitions" => {
                    let Value::Object(entries) = value else {
                        return Err(self.error_at(key, "it must be an object of schemas"));
                    };
                    for (name, schema) in entries.iter_mut() {
                        self.visit_child(&format!("{key}.{name}"), schema)?;
                    }
                }
                "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
                    let Value::Array(entries) = value else {
                        return Err(self.error_at(key, "it must be an array of schemas"));
                    };
                    if entries.is_empty() {
                        return Err(self.error_at(key, "it must have at least one schema"));
                    }
                    for (index, schema) in entries.iter_mut().enumerate() {
                        self.visit_child(&format!("{key}[{index}]"), schema)?;
                    }
                }
                "items" if value.is_array() => {
                    let entries = value.as_array_mut().into_iter().flatten();
                    for (index, schema) in entries.enumerate() {
                        self.visit_child(&format!("{key}[{index}]"), schema)?;
                    }
                }
                "items" | "additionalItems" | "additionalProperties" => {
                    self.visit_child(key, value)?
                }
                "required" => {
                    let names = value.as_array();
                    if names.is_none_or(|names| !names.iter().all(Value::is_string)) {
                        return Err(self.error_at(key, "it must be an array of strings"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
