//! Looks through a JSON schema before it is compiled, so that what is wrong is named by its place.
//!
//! A keyword that restricts and cannot be enforced is refused: a reply that satisfies half a schema looks
//! like one that satisfies it. What only describes is left alone, and so is a `format` that is not known,
//! which JSON Schema calls an annotation.

use serde_json::{Map, Value};

/// Deepest nesting.
const MAX_DEPTH: usize = 64;

/// Most subschemas.
const MAX_SCHEMAS: usize = 5_000;

/// Most bytes of a schema as compact JSON.
pub(super) const MAX_BYTES: usize = 256 << 10;

/// Most items or properties that a schema may ask for at least.
const MAX_LEAST: u64 = 1_000;

/// Largest bound of a length or a count; a larger one is as good as none in any context.
const MAX_BOUND: u64 = 100_000;

/// Keywords that restrict and cannot be enforced while a reply is written.
const UNENFORCED: [&str; 18] = [
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

/// Formats of strings that are enforced.
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

/// Why a schema is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", if path.is_empty() { String::new() } else { format!("`{path}`: ") })]
pub struct SchemaError {
    /// Where in the schema, as `properties.a.items`; empty for the whole of it.
    pub path: String,
    /// What is wrong and what to do.
    pub reason: String,
}

/// Checks that a schema can be enforced.
///
/// # Errors
/// The first place that cannot, and why.
pub fn check_schema(schema: &Value) -> Result<(), SchemaError> {
    enforceable(schema).map(|_| ())
}

/// The schema without what does not restrict and would be refused all the same.
pub(super) fn enforceable(schema: &Value) -> Result<Value, SchemaError> {
    let bytes = schema.to_string().len();
    let mut walk = Walk {
        root: schema,
        path: String::new(),
        depth: 0,
        schemas: 0,
    };
    if bytes > MAX_BYTES {
        return Err(walk.refuse(format!(
            "the schema has {bytes} bytes; {MAX_BYTES} are allowed"
        )));
    }
    if !schema.is_object() {
        return Err(walk.refuse("a schema is a JSON object".to_owned()));
    }
    let mut out = schema.clone();
    walk.schema(&mut out)?;
    Ok(out)
}

struct Walk<'a> {
    root: &'a Value,
    path: String,
    depth: usize,
    schemas: usize,
}

impl Walk<'_> {
    fn refuse(&self, reason: String) -> SchemaError {
        SchemaError {
            path: self.path.clone(),
            reason,
        }
    }

    fn refuse_at(&self, key: &str, reason: impl Into<String>) -> SchemaError {
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

    /// Goes on below `step`.
    fn below(&mut self, step: &str, schema: &mut Value) -> Result<(), SchemaError> {
        let length = self.path.len();
        if length > 0 && !step.starts_with('[') {
            self.path.push('.');
        }
        self.path.push_str(step);
        self.depth += 1;
        self.schema(schema)?;
        self.depth -= 1;
        self.path.truncate(length);
        Ok(())
    }

    fn schema(&mut self, schema: &mut Value) -> Result<(), SchemaError> {
        self.schemas += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.refuse(format!("nested deeper than {MAX_DEPTH}")));
        }
        if self.schemas > MAX_SCHEMAS {
            return Err(self.refuse(format!("more than {MAX_SCHEMAS} subschemas")));
        }
        let map = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(map) => map,
            _ => return Err(self.refuse("a schema is an object or a boolean".to_owned())),
        };
        if map.get("uniqueItems") == Some(&Value::Bool(false)) {
            map.shift_remove("uniqueItems");
        }
        if let Some(key) = map.keys().find(|key| UNENFORCED.contains(&key.as_str())) {
            return Err(self.refuse_at(
                key,
                "this keyword cannot be enforced while a reply is written; leave it out",
            ));
        }
        self.types(map)?;
        self.reference(map)?;
        self.bounds(map)?;
        let unknown = map
            .get("format")
            .and_then(Value::as_str)
            .is_some_and(|format| !FORMATS.contains(&format));
        if unknown {
            map.shift_remove("format");
        }
        self.children(map)
    }

    fn types(&self, map: &Map<String, Value>) -> Result<(), SchemaError> {
        let known = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
        let fits = match map.get("type") {
            None => true,
            Some(Value::Array(kinds)) => !kinds.is_empty() && kinds.iter().all(known),
            Some(kind) => known(kind),
        };
        if !fits {
            let allowed = TYPES.join(", ");
            return Err(self.refuse_at("type", format!("the type must be one of {allowed}")));
        }
        match map.get("enum") {
            Some(Value::Array(values)) if !values.is_empty() => Ok(()),
            None => Ok(()),
            Some(_) => Err(self.refuse_at("enum", "it must be an array of at least one value")),
        }
    }

    /// A reference that is followed must lead somewhere inside this schema.
    fn reference(&self, map: &Map<String, Value>) -> Result<(), SchemaError> {
        let Some(reference) = map.get("$ref") else {
            return Ok(());
        };
        let target = reference.as_str().and_then(|text| {
            let rest = text.strip_prefix('#')?;
            let steps = rest.strip_prefix('/').unwrap_or(rest);
            let plain = !rest.contains(['~', '%']);
            let found = if steps.is_empty() {
                Some(self.root)
            } else {
                self.root.pointer(rest)
            };
            found.filter(|target| plain && (target.is_object() || target.is_boolean()))
        });
        if target.is_none() {
            let reason =
                "a reference must lead to a place in this same schema, such as `#/$defs/name`";
            return Err(self.refuse_at("$ref", reason));
        }
        Ok(())
    }

    fn bounds(&self, map: &mut Map<String, Value>) -> Result<(), SchemaError> {
        for (least, most) in [
            ("minItems", "maxItems"),
            ("minProperties", "maxProperties"),
            ("minLength", "maxLength"),
        ] {
            for key in [least, most] {
                let Some(bound) = map.get(key) else { continue };
                let whole = bound.as_u64().or_else(|| {
                    bound
                        .as_f64()
                        .filter(|x| x.fract() == 0.0 && *x >= 0.0)
                        .map(|x| x as u64)
                });
                let Some(bound) = whole else {
                    return Err(self.refuse_at(key, "it must be a whole number, not below 0"));
                };
                if key == least && bound > MAX_LEAST {
                    return Err(self.refuse_at(key, format!("at most {MAX_LEAST} are supported")));
                }
                if key == most && bound > MAX_BOUND {
                    map.shift_remove(key);
                }
            }
        }
        Ok(())
    }

    fn children(&mut self, map: &mut Map<String, Value>) -> Result<(), SchemaError> {
        for (key, value) in map.iter_mut() {
            match key.as_str() {
                "properties" | "patternProperties" | "$defs" | "definitions" => {
                    let Value::Object(entries) = value else {
                        return Err(self.refuse_at(key, "it must be an object of schemas"));
                    };
                    for (name, schema) in entries.iter_mut() {
                        self.below(&format!("{key}.{name}"), schema)?;
                    }
                }
                "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
                    let Value::Array(entries) = value else {
                        return Err(self.refuse_at(key, "it must be an array of schemas"));
                    };
                    if entries.is_empty() {
                        return Err(self.refuse_at(key, "it must have at least one schema"));
                    }
                    for (index, schema) in entries.iter_mut().enumerate() {
                        self.below(&format!("{key}[{index}]"), schema)?;
                    }
                }
                "items" if value.is_array() => {
                    let entries = value.as_array_mut().into_iter().flatten();
                    for (index, schema) in entries.enumerate() {
                        self.below(&format!("{key}[{index}]"), schema)?;
                    }
                }
                "items" | "additionalItems" | "additionalProperties" => self.below(key, value)?,
                "required" => {
                    let names = value.as_array();
                    if names.is_none_or(|names| !names.iter().all(Value::is_string)) {
                        return Err(self.refuse_at(key, "it must be an array of strings"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
