//! Translates a constraint to an llguidance Lark grammar with embedded JSON schemas.

use serde_json::{Value, json};

use super::constraint_error::ConstraintError;
use super::schema::{MAX_BYTES, SchemaError, validate};
use clawhost_chat::{
    ArgumentFormat, Constraint, ResponseFormat, ToolCallConstraint, ToolCallFormat,
};

/// Whitespace between JSON tokens: none, a space, or a line break with indentation. Bounded, because a model may
/// otherwise generate whitespace forever.
const WHITESPACE: &str = r"\x20|\x0A\x20{0,32}";

/// Maximum number of texts of a choice.
const MAX_CHOICES: usize = 1_000;

/// Maximum size of a regular expression in bytes.
const MAX_REGEX: usize = 8 << 10;

/// Maximum number of calls in one reply.
const MAX_CALLS: u32 = 32;

/// The Lark grammar of a constraint, for a model with the tool-call format `calls`.
pub(super) fn to_lark(
    constraint: &Constraint,
    calls: ToolCallFormat,
) -> Result<String, ConstraintError> {
    let mut rules = String::new();
    let mut alternatives = Vec::new();
    if let Some(answer) = &constraint.answer {
        let rule = response_format_rule(answer)?;
        rules.push_str(&format!("answer: {rule}\n"));
        alternatives.push("answer");
    }
    if let Some(constraint_calls) = &constraint.calls {
        rules.push_str(&tool_call_rules(constraint_calls, calls)?);
        alternatives.push("calls");
    }
    if alternatives.is_empty() {
        return Err(ConstraintError::Invalid(
            "it allows neither text nor tool calls".to_owned(),
        ));
    }
    let start = alternatives.join(" | ");
    Ok(if constraint.after_reasoning {
        // The model generates the end of the block itself, in any tokens; line breaks after it belong to the format.
        format!(
            "start: thought gap? form\nthought[suffix=\"</think>\"]: /(?s:.*)/\ngap: /[\\n ]{{1,4}}/\nform: {start}\n{rules}"
        )
    } else {
        format!("start: {start}\n{rules}")
    })
}

fn response_format_rule(format: &ResponseFormat) -> Result<String, ConstraintError> {
    match format {
        ResponseFormat::JsonSchema(schema) => json_schema(schema),
        ResponseFormat::Regex(regex) => {
            if regex.len() > MAX_REGEX {
                let bytes = regex.len();
                return Err(ConstraintError::Invalid(format!(
                    "the regular expression has {bytes} bytes; the maximum is {MAX_REGEX}"
                )));
            }
            if regex.is_empty() {
                return Err(ConstraintError::Invalid(
                    "the regular expression is empty".to_owned(),
                ));
            }
            Ok(format!("/{}/", llguidance::regex_to_lark(regex, "")))
        }
        ResponseFormat::Choice(texts) => {
            let bytes: usize = texts.iter().map(String::len).sum();
            let fits = (1..=MAX_CHOICES).contains(&texts.len()) && bytes <= MAX_BYTES;
            if !fits || texts.iter().any(String::is_empty) {
                return Err(ConstraintError::Invalid(format!(
                    "a choice must have 1 to {MAX_CHOICES} non-empty texts of at most {MAX_BYTES} bytes in total"
                )));
            }
            let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
            Ok(texts.join(" | "))
        }
    }
}

/// Rules of the tool calls, in the format of the chat template, which the reply parser also reads.
fn tool_call_rules(
    calls: &ToolCallConstraint,
    format: ToolCallFormat,
) -> Result<String, ConstraintError> {
    if calls.tools.is_empty() || calls.most == 0 {
        return Err(ConstraintError::Invalid(
            "it has no tool to call".to_owned(),
        ));
    }
    let syntax = format.syntax();
    let max_further = calls.most.min(MAX_CALLS) - 1;
    let mut rules = if max_further == 0 {
        "calls: call\n".to_owned()
    } else {
        let between = literal(syntax.between);
        format!("calls: call further{{0,{max_further}}}\nfurther: {between} call\n")
    };
    let names: Vec<String> = (0..calls.tools.len())
        .map(|i| format!("call_{i}"))
        .collect();
    rules.push_str(&format!("call: {}\n", names.join(" | ")));
    for (index, tool) in calls.tools.iter().enumerate() {
        let mut schema = tool.parameters.clone().unwrap_or_else(|| json!({}));
        if let Value::Object(schema) = &mut schema {
            schema.entry("type").or_insert_with(|| "object".into());
        }
        let named = format!("{}{}{}", syntax.open, tool.name, syntax.middle);
        let (before, after) = (literal(&named), literal(syntax.close));
        let arguments = match syntax.arguments {
            ArgumentFormat::Json => {
                let rule = json_schema(&schema).map_err(|error| error.with_tool(&tool.name))?;
                rules.push_str(&format!("arguments_{index}: {rule}\n"));
                format!("arguments_{index}")
            }
            ArgumentFormat::PerArgument {
                open,
                middle,
                close,
            } => {
                let parts = [open, middle, close];
                let (sequence, more) =
                    argument_rules(&schema, parts, &format!("argument_{index}_"))
                        .map_err(|error| error.with_tool(&tool.name))?;
                rules.push_str(&more);
                sequence
            }
        };
        rules.push_str(&format!("call_{index}: {before} {arguments} {after}\n"));
    }
    Ok(rules)
}

/// Rules of arguments that are written one by one, in the order of the schema; optional ones may be missing. A value
/// that may be a string is free text up to its closing tag, unless the schema has an `enum` of strings; any other value
/// is JSON that follows its schema. Length bounds of free text are not enforced. Returns the sequence of rules and the
/// rules.
fn argument_rules(
    schema: &Value,
    [open, middle, close]: [&str; 3],
    prefix: &str,
) -> Result<(String, String), ConstraintError> {
    let root = validate(schema)?;
    let required = |name: &str| {
        let names = root.get("required").and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|required| required == name))
    };
    let (mut list, mut rules) = (Vec::new(), String::new());
    let properties = root.get("properties").and_then(Value::as_object);
    for (index, (name, schema)) in properties.into_iter().flatten().enumerate() {
        let rule = format!("{prefix}{index}");
        let before = literal(&format!("{open}{name}{middle}"));
        let listed = schema.get("enum").and_then(Value::as_array);
        let texts =
            listed.map(|values| values.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        if let Some(Some(texts)) = texts {
            let texts: Vec<String> = texts.into_iter().map(literal).collect();
            let after = literal(close);
            rules.push_str(&format!(
                "{rule}: {before} ({}) {after}\n",
                texts.join(" | ")
            ));
        } else if may_be_string(schema) {
            let after = literal(close);
            rules.push_str(&format!(
                "{rule}: {before} {rule}_value\n{rule}_value[suffix={after}]: /(?s:.*)/\n"
            ));
        } else {
            // References are resolved from the root of the schema.
            let mut schema_with_defs = schema.clone();
            for shared in ["$defs", "definitions"] {
                if let (Some(map), Some(definitions)) =
                    (schema_with_defs.as_object_mut(), root.get(shared))
                {
                    map.entry(shared).or_insert_with(|| definitions.clone());
                }
            }
            let (value, after) = (json_schema(&schema_with_defs)?, literal(close));
            rules.push_str(&format!(
                "{rule}: {before} {rule}_value {after}\n{rule}_value: {value}\n"
            ));
        }
        list.push(if required(name) {
            rule
        } else {
            format!("{rule}?")
        });
    }
    Ok((list.join(" "), rules))
}

/// Whether a value of this schema may be a string.
fn may_be_string(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        _ => {
            let any = |key: &str| {
                let options = schema.get(key).and_then(Value::as_array);
                options.is_some_and(|options| options.iter().any(may_be_string))
            };
            let bare = [
                "anyOf",
                "oneOf",
                "allOf",
                "$ref",
                "const",
                "enum",
                "properties",
            ];
            any("anyOf")
                || any("oneOf")
                || schema.get("const").is_some_and(Value::is_string)
                || bare.iter().all(|key| schema.get(*key).is_none())
        }
    }
}

fn json_schema(schema: &Value) -> Result<String, ConstraintError> {
    let mut schema = validate(schema)?;
    let Value::Object(map) = &mut schema else {
        return Err(SchemaError {
            path: String::new(),
            reason: "a schema must be a JSON object".to_owned(),
        }
        .into());
    };
    map.insert(
        "x-guidance".to_owned(),
        json!({"whitespace_pattern": WHITESPACE}),
    );
    Ok(format!("%json {schema}"))
}

/// A text as a grammar literal, which uses JSON escapes.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
