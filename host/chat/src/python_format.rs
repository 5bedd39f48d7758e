//! Python-compatible formatting of values, because chat templates are written against Python: JSON as `json.dumps`
//! writes it in transformers (no HTML escapes, non-ASCII kept, `", "` and `": "` separators), and `str()` for printed
//! values.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Maximum nesting depth: deeper than any request, shallower than the stack allows.
const MAX_DEPTH: usize = 200;

/// JSON layout.
pub(crate) struct JsonStyle {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
}

/// The `tojson` filter of transformers: `tojson(ensure_ascii=false, indent=none, separators=none,
/// sort_keys=false)`.
pub(crate) fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let ascii = ensure_ascii
        .or(kwargs.get("ensure_ascii")?)
        .unwrap_or(false);
    let indent: Option<Value> = indent.or(kwargs.get("indent")?);
    let separators: Option<Value> = kwargs.get("separators")?;
    let sort = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let indent = match indent.filter(|value| !value.is_none()) {
        None => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(value)?.min(64)),
        }),
    };
    let (item, key) = match separators.filter(|value| !value.is_none()) {
        Some(pair) => (
            pair.get_item_by_index(0)?.to_string(),
            pair.get_item_by_index(1)?.to_string(),
        ),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let mut out = String::new();
    dump(
        value,
        &JsonStyle {
            ascii,
            indent,
            item,
            key,
            sort,
        },
        0,
        &mut out,
    )?;
    Ok(Value::from(out))
}

/// `json.dumps(value, ensure_ascii=False)`.
pub(crate) fn dumps(value: &Value) -> Result<String, Error> {
    let style = JsonStyle {
        ascii: false,
        indent: None,
        item: ", ".to_owned(),
        key: ": ".to_owned(),
        sort: false,
    };
    let mut out = String::new();
    dump(value, &style, 0, &mut out)?;
    Ok(out)
}

fn dump(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(tojson_error(format!(
            "nested deeper than {MAX_DEPTH} levels"
        )));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value, true)),
        ValueKind::String => quote(
            value.as_str().expect("a value of kind string"),
            style.ascii,
            out,
        ),
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort {
                keys.sort_by_key(json_key);
            }
            out.push('{');
            let empty = keys.is_empty();
            for (index, key) in keys.into_iter().enumerate() {
                separate(index, style, depth + 1, out);
                quote(&json_key(&key), style.ascii, out);
                out.push_str(&style.key);
                dump(&value.get_item(&key)?, style, depth + 1, out)?;
            }
            close(empty, style, depth, out);
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut empty = true;
            for (index, item) in value.try_iter()?.enumerate() {
                empty = false;
                separate(index, style, depth + 1, out);
                dump(&item, style, depth + 1, out)?;
            }
            close(empty, style, depth, out);
            out.push(']');
        }
        other => {
            return Err(tojson_error(format!(
                "a value of kind {other} has no JSON form"
            )));
        }
    }
    Ok(())
}

fn tojson_error(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {reason}"))
}

fn separate(index: usize, style: &JsonStyle, depth: usize, out: &mut String) {
    if index > 0 {
        out.push_str(&style.item);
    }
    new_line(style, depth, out);
}

fn close(empty: bool, style: &JsonStyle, depth: usize, out: &mut String) {
    if !empty {
        new_line(style, depth, out);
    }
}

fn new_line(style: &JsonStyle, depth: usize, out: &mut String) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        out.push_str(&indent.repeat(depth));
    }
}

/// A key as `json.dumps` writes it: scalars become strings.
fn json_key(key: &Value) -> String {
    match key.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number => number(key, true),
        _ => key.to_string(),
    }
}

fn quote(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || ascii && !c.is_ascii() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A number as Python's `repr` writes it; non-finite values as JSON or Python writes them.
fn number(value: &Value, json: bool) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(x) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    if !x.is_finite() {
        return match (json, x.is_nan(), x > 0.0) {
            (true, true, _) => "NaN",
            (true, false, true) => "Infinity",
            (true, false, false) => "-Infinity",
            (false, true, _) => "nan",
            (false, false, true) => "inf",
            (false, false, false) => "-inf",
        }
        .to_owned();
    }
    let shortest = format!("{x:e}");
    let (digits, exponent) = shortest
        .split_once('e')
        .expect("scientific notation has an exponent");
    match exponent.parse::<i32>().expect("an exponent is a number") {
        -4..16 => format!("{x:?}"),
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
    }
}

/// `str()` of a value: what `{{ value }}` prints in Jinja.
pub(crate) fn str_of(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().expect("a value of kind string").to_owned(),
        _ => {
            let mut out = String::new();
            repr(value, 0, &mut out);
            out
        }
    }
}

fn repr(value: &Value, depth: usize, out: &mut String) {
    if depth > MAX_DEPTH {
        out.push_str("...");
        return;
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value, false)),
        ValueKind::String => repr_str(value.as_str().expect("a value of kind string"), out),
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&key, depth + 1, out);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), depth + 1, out);
            }
            out.push('}');
        }
        ValueKind::Seq => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&item, depth + 1, out);
            }
            out.push_str(if tuple && value.len() == Some(1) {
                ","
            } else {
                ""
            });
            out.push(if tuple { ')' } else { ']' });
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

fn repr_str(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;
    use serde_json::json;

    fn dumps(value: serde_json::Value) -> String {
        let value = Value::from(Serde(&value));
        tojson(
            &value,
            None,
            None,
            Kwargs::from_iter([] as [(&str, Value); 0]),
        )
        .unwrap()
        .to_string()
    }

    #[test]
    fn tojson_matches_python_json_dumps() {
        for (value, expected) in [
            (
                json!({"b": [1, 2.0, -3], "a": null}),
                r#"{"b": [1, 2.0, -3], "a": null}"#,
            ),
            (
                json!("<a & 'b'> \"é🦀\" \u{1}\n"),
                r#""<a & 'b'> \"é🦀\" \u0001\n""#,
            ),
            (json!([]), "[]"),
            (json!({}), "{}"),
            (
                json!([true, 1e16, 1.5e-7, 123456789.125, 0.0001, 1e22]),
                "[true, 1e+16, 1.5e-07, 123456789.125, 0.0001, 1e+22]",
            ),
            (json!(18446744073709551615u64), "18446744073709551615"),
        ] {
            assert_eq!(dumps(value), expected);
        }
    }

    #[test]
    fn printing_matches_python_str() {
        let value = json!({"a": [true, null, "it's", 'x'], "b": 1.0});
        assert_eq!(
            str_of(&Value::from(Serde(&value))),
            r#"{'a': [True, None, "it's", 'x'], 'b': 1.0}"#
        );
        assert_eq!(str_of(&Value::UNDEFINED), "");
        assert_eq!(str_of(&Value::from("as it is\n")), "as it is\n");
    }

    #[test]
    fn value_without_json_form_is_an_error() {
        let none = || Kwargs::from_iter([] as [(&str, Value); 0]);
        assert!(tojson(&Value::UNDEFINED, None, None, none()).is_err());
        let mut deep = Value::from(1);
        for _ in 0..300 {
            deep = Value::from(vec![deep]);
        }
        assert!(
            tojson(&deep, None, None, none())
                .unwrap_err()
                .to_string()
                .contains("200 levels")
        );
    }
}
