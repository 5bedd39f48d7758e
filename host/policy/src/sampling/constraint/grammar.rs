//! A constraint in the language of llguidance: rules of lexemes, with schemas written into them.

use serde_json::{Value, json};

use super::compiler::ConstraintError;
use super::form::{Answer, Calls, Constraint};
use super::schema::{MAX_BYTES, SchemaError, enforceable};
use crate::text::{ArgumentForm, CallForm};

/// White space between the parts of a JSON text: none, a space, or a line break with its indentation. A bound,
/// because a model that has nothing to say writes white space for ever where it is allowed to.
const WHITE: &str = r"\x20|\x0A\x20{0,32}";

/// Most texts of a choice.
const MAX_CHOICES: usize = 1_000;

/// Most bytes of a regular expression.
const MAX_REGEX: usize = 8 << 10;

/// Most calls of one reply.
const MAX_CALLS: u32 = 32;

/// The grammar of a constraint, for a model that writes calls in the form `calls`.
pub(super) fn write(constraint: &Constraint, calls: CallForm) -> Result<String, ConstraintError> {
    let mut rules = String::new();
    let mut ways = Vec::new();
    if let Some(answer) = &constraint.answer {
        let form = self::answer(answer)?;
        rules.push_str(&format!("answer: {form}\n"));
        ways.push("answer");
    }
    if let Some(wanted) = &constraint.calls {
        rules.push_str(&self::calls(wanted, calls)?);
        ways.push("calls");
    }
    if ways.is_empty() {
        return Err(ConstraintError::Refused(
            "it allows neither text nor calls".to_owned(),
        ));
    }
    let start = ways.join(" | ");
    Ok(if constraint.after_reasoning {
        // The block's end is part of what the model writes, in whatever tokens; line breaks behind it are
        // the format's.
        format!(
            "start: thought gap? form\nthought[suffix=\"</think>\"]: /(?s:.*)/\ngap: /[\\n ]{{1,4}}/\nform: {start}\n{rules}"
        )
    } else {
        format!("start: {start}\n{rules}")
    })
}

fn answer(answer: &Answer) -> Result<String, ConstraintError> {
    match answer {
        Answer::JsonSchema(schema) => json_schema(schema),
        Answer::Regex(regex) => {
            if regex.len() > MAX_REGEX {
                let bytes = regex.len();
                return Err(ConstraintError::Refused(format!(
                    "the regular expression has {bytes} bytes; {MAX_REGEX} are allowed"
                )));
            }
            if regex.is_empty() {
                return Err(ConstraintError::Refused(
                    "the regular expression is empty".to_owned(),
                ));
            }
            Ok(format!("/{}/", llguidance::regex_to_lark(regex, "")))
        }
        Answer::Choice(texts) => {
            let bytes: usize = texts.iter().map(String::len).sum();
            let fits = (1..=MAX_CHOICES).contains(&texts.len()) && bytes <= MAX_BYTES;
            if !fits || texts.iter().any(String::is_empty) {
                return Err(ConstraintError::Refused(format!(
                    "a choice has 1 to {MAX_CHOICES} texts, none of them empty, with {MAX_BYTES} bytes at most"
                )));
            }
            let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
            Ok(texts.join(" | "))
        }
    }
}

/// The calls, written as the model was taught to and as the parser of replies reads them.
fn calls(calls: &Calls, form: CallForm) -> Result<String, ConstraintError> {
    if calls.tools.is_empty() || calls.most == 0 {
        return Err(ConstraintError::Refused(
            "there is no tool to call".to_owned(),
        ));
    }
    let parts = form.parts();
    let further = calls.most.min(MAX_CALLS) - 1;
    let mut rules = if further == 0 {
        "calls: call\n".to_owned()
    } else {
        let between = literal(parts.between);
        format!("calls: call further{{0,{further}}}\nfurther: {between} call\n")
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
        let named = format!("{}{}{}", parts.open, tool.name, parts.middle);
        let (before, after) = (literal(&named), literal(parts.close));
        let arguments = match parts.arguments {
            ArgumentForm::Json => {
                let form = json_schema(&schema).map_err(|error| error.of_tool(&tool.name))?;
                rules.push_str(&format!("arguments_{index}: {form}\n"));
                format!("arguments_{index}")
            }
            ArgumentForm::Each {
                open,
                middle,
                close,
            } => {
                let parts = [open, middle, close];
                let (list, more) = each(&schema, parts, &format!("argument_{index}_"))
                    .map_err(|error| error.of_tool(&tool.name))?;
                rules.push_str(&more);
                list
            }
        };
        rules.push_str(&format!("call_{index}: {before} {arguments} {after}\n"));
    }
    Ok(rules)
}

/// Arguments that are written one by one, in the order of the schema; those that are not required may be left out.
/// A value that may be a string is free text up to its closing tag, unless the schema lists the texts; any other is
/// JSON after its schema. Bounds of free texts are not enforced.
fn each(
    schema: &Value,
    [open, middle, close]: [&str; 3],
    prefix: &str,
) -> Result<(String, String), ConstraintError> {
    let whole = enforceable(schema)?;
    let required = |name: &str| {
        let names = whole.get("required").and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|required| required == name))
    };
    let (mut list, mut rules) = (Vec::new(), String::new());
    let properties = whole.get("properties").and_then(Value::as_object);
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
        } else if may_be_text(schema) {
            let after = literal(close);
            rules.push_str(&format!(
                "{rule}: {before} {rule}_value\n{rule}_value[suffix={after}]: /(?s:.*)/\n"
            ));
        } else {
            // References lead from the root of the whole schema.
            let mut own = schema.clone();
            for shared in ["$defs", "definitions"] {
                if let (Some(own), Some(definitions)) = (own.as_object_mut(), whole.get(shared)) {
                    own.entry(shared).or_insert_with(|| definitions.clone());
                }
            }
            let (form, after) = (json_schema(&own)?, literal(close));
            rules.push_str(&format!(
                "{rule}: {before} {rule}_value {after}\n{rule}_value: {form}\n"
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
fn may_be_text(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        _ => {
            let any = |key: &str| {
                let options = schema.get(key).and_then(Value::as_array);
                options.is_some_and(|options| options.iter().any(may_be_text))
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
    let mut schema = enforceable(schema)?;
    let Value::Object(map) = &mut schema else {
        return Err(SchemaError {
            path: String::new(),
            reason: "a schema is a JSON object".to_owned(),
        }
        .into());
    };
    map.insert(
        "x-guidance".to_owned(),
        json!({"whitespace_pattern": WHITE}),
    );
    Ok(format!("%json {schema}"))
}

/// A text as a literal of the grammar, which has the escapes of JSON.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
