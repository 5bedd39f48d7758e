//! Deserializes request bodies; an error names the field by its path in `param`.
//!
//! A request type states what serde can check: types, presence and bounds. What depends on several fields is checked by
//! the dialect. Two rules keep errors precise and clients working:
//!
//! - An optional field is an `Option` without `#[serde(default)]`, so that `null`, which many clients send for "default",
//!   is the same as absent.
//! - No flattened, untagged or internally tagged types: they lose the path. Fields that several dialects share are types
//!   of their own, deserialized from the same body.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::error::ApiError;

/// Largest part of a client's value in an error, in characters.
const MAX_SHOWN: usize = 40;

/// Deserializes a body, which is an object.
pub(crate) fn parse<'de, T: Deserialize<'de>>(body: &'de Value) -> Result<T, ApiError> {
    // Serde also reads a struct from an array of its fields.
    if !body.is_object() {
        return Err(wrong_type("", "an object", body));
    }
    parse_at(body, "")
}

/// Deserializes the value at `path` of a body.
pub(crate) fn parse_at<'de, T: Deserialize<'de>>(
    value: &'de Value,
    path: &str,
) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, found) = locate(value, path, error.path());
        describe(&path, found, &error.inner().to_string())
    })
}

/// The value of a field that this kind of object needs.
pub(crate) fn required<T>(value: Option<T>, path: &str, name: &str) -> Result<T, ApiError> {
    value.ok_or_else(|| missing(&join(path, name)))
}

/// 400 for a missing field.
pub(crate) fn missing(path: &str) -> ApiError {
    ApiError::bad_request(format!("`{path}` is missing"))
        .param(path)
        .code("missing_required_parameter")
}

/// The path of a field of the object at `path`.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// The beginning of a client's text, for an error.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

/// 400 that names the expected and the actual type.
pub(crate) fn wrong_type(path: &str, expected: &str, found: &Value) -> ApiError {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    let place = if path.is_empty() { "the body" } else { path };
    let error = ApiError::bad_request(format!("`{place}` must be {expected}, not {found}"))
        .code("invalid_type");
    if path.is_empty() {
        error
    } else {
        error.param(path)
    }
}

/// Path and value of the field at `inner` of the value at `path`.
fn locate<'a>(mut value: &'a Value, path: &str, inner: &Path) -> (String, &'a Value) {
    let mut place = path.to_owned();
    for segment in inner {
        let next = match segment {
            Segment::Seq { index } => {
                write!(place, "[{index}]").expect("writing to a string cannot fail");
                value.get(index)
            }
            Segment::Map { key } => {
                place = join(&place, &shown(key));
                value.get(key)
            }
            Segment::Enum { .. } | Segment::Unknown => continue,
        };
        value = next.unwrap_or(&Value::Null);
    }
    (place, value)
}

/// Converts serde's error text about the value `found` at `path`.
fn describe(path: &str, found: &Value, text: &str) -> ApiError {
    let field = text.strip_prefix("missing field `");
    if let Some(name) = field.and_then(|rest| rest.strip_suffix('`')) {
        return missing(&join(path, name));
    }
    let (problem, expected) = text.rsplit_once(", expected ").unwrap_or((text, ""));
    let value = match found {
        Value::String(text) => shown(text),
        other => shown(&other.to_string()),
    };
    if problem.starts_with("invalid type") || problem.starts_with("invalid length") {
        // A required field that is `null`.
        if found.is_null() && !path.is_empty() {
            return missing(path);
        }
        return wrong_type(path, json_type(expected), found);
    }
    let message = if problem.starts_with("invalid value") || problem.starts_with("unknown variant")
    {
        format!("`{path}` is `{value}`; it must be {expected}")
    } else {
        format!("`{path}`: {text}")
    };
    ApiError::invalid(path, message)
}

/// JSON's name of a type that serde expected.
fn json_type(expected: &str) -> &str {
    match expected {
        "a sequence" => "an array",
        "a boolean" => "true or false",
        "f64" | "a JSON number" => "a number",
        "unit variant" | "string or map" => "a string",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

/// An integer from `MIN` to `MAX`. A number such as 5.0 is an integer too, because some clients have a single number type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Int<const MIN: i64, const MAX: i64>(i64);

/// Largest `u32`.
const MAX_U32: i64 = u32::MAX as i64;

/// A number of something, at least `MIN`.
pub(crate) type Count<const MIN: i64> = Int<MIN, MAX_U32>;

impl<const MIN: i64, const MAX: i64> Int<MIN, MAX> {
    pub(crate) fn get(self) -> i64 {
        self.0
    }
}

impl<const MIN: i64> Count<MIN> {
    /// The value of a count that has no negative values.
    pub(crate) fn count(self) -> u32 {
        const { assert!(MIN >= 0) };
        u32::try_from(self.0).expect("its bounds are those of `u32`")
    }
}

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Int<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = serde_json::Number::deserialize(deserializer)?;
        let integer = number.as_i64().or_else(|| {
            let whole = number.as_f64();
            let whole = whole.filter(|number| number.fract() == 0.0 && number.abs() < 9e15);
            whole.map(|number| number as i64)
        });
        match integer {
            Some(integer) if (MIN..=MAX).contains(&integer) => Ok(Self(integer)),
            Some(integer) => Err(D::Error::invalid_value(
                Unexpected::Signed(integer),
                &format!("from {MIN} to {MAX}").as_str(),
            )),
            None => Err(D::Error::invalid_type(
                Unexpected::Other("number"),
                &"an integer",
            )),
        }
    }
}

impl<const MIN: i64, const MAX: i64> JsonSchema for Int<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Int_{MIN}_{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = json_schema!({"type": "integer"});
        if MIN != i64::MIN {
            schema.insert("minimum".into(), MIN.into());
        }
        if MAX < MAX_U32 {
            schema.insert("maximum".into(), MAX.into());
        }
        schema
    }
}

/// A number between two bounds, which are in hundredths, because a const parameter cannot be a float.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Number<const MIN: i32, const MAX: i32>(f64);

impl<const MIN: i32, const MAX: i32> Number<MIN, MAX> {
    pub(crate) fn get(self) -> f64 {
        self.0
    }

    fn bounds() -> (f64, f64) {
        (f64::from(MIN) / 100.0, f64::from(MAX) / 100.0)
    }
}

impl<'de, const MIN: i32, const MAX: i32> Deserialize<'de> for Number<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        let (min, max) = Self::bounds();
        if (min..=max).contains(&number) {
            return Ok(Self(number));
        }
        Err(D::Error::invalid_value(
            Unexpected::Float(number),
            &format!("from {min} to {max}").as_str(),
        ))
    }
}

impl<const MIN: i32, const MAX: i32> JsonSchema for Number<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Number_{MIN}_{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let (min, max) = Self::bounds();
        json_schema!({"type": "number", "minimum": min, "maximum": max})
    }
}

/// A JSON schema: an object or a boolean.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AnySchema(pub(crate) Value);

impl<'de> Deserialize<'de> for AnySchema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if value.is_object() || value.is_boolean() {
            return Ok(Self(value));
        }
        Err(D::Error::invalid_type(
            Unexpected::Other("value"),
            &"a JSON schema",
        ))
    }
}

impl JsonSchema for AnySchema {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "AnySchema".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["object", "boolean"]})
    }
}

/// A string, or something else that is not a string: a list or an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TextOr<T> {
    Text(String),
    Other(T),
}

/// The JSON type of the alternative to a string.
pub(crate) trait Alternative {
    const EXPECTED: &'static str;
}

impl<T> Alternative for Vec<T> {
    const EXPECTED: &'static str = "a string or an array";
}

impl Alternative for serde_json::Map<String, Value> {
    const EXPECTED: &'static str = "a string or an object";
}

impl<'de, T: Deserialize<'de> + Alternative> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Alternative> Visitor<'de> for TextOrVisitor<T> {
            type Value = TextOr<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(T::EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOr::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                T::deserialize(SeqAccessDeserializer::new(list)).map(TextOr::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(TextOr::Other)
            }
        }

        deserializer.deserialize_any(TextOrVisitor(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for TextOr<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("TextOr_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string"}, generator.subschema_for::<T>()]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, serde::Deserialize)]
    struct Outer {
        kind: Kind,
        n: Option<Int<0, 9>>,
        t: Option<Number<0, 200>>,
        list: Option<TextOr<Vec<Inner>>>,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Inner {
        #[serde(rename = "name")]
        _name: String,
        #[serde(rename = "deep")]
        _deep: Option<bool>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        A,
        B,
    }

    fn rejected(body: Value) -> (String, String, String) {
        let error = parse::<Outer>(&body).unwrap_err();
        assert_eq!(error.status().as_u16(), 400);
        let json = error.to_json();
        let text = |name: &str| json["error"][name].as_str().unwrap_or("").to_owned();
        (text("param"), text("code"), text("message"))
    }

    #[test]
    fn null_is_treated_as_absent() {
        let body = json!({"kind": "b", "n": null, "list": null, "other": 1});
        let outer: Outer = parse(&body).unwrap();
        assert_eq!((outer.kind, outer.n, outer.t), (Kind::B, None, None));
        assert!(outer.list.is_none());
    }

    #[test]
    fn errors_name_path_and_problem() {
        let rows = [
            (
                json!({"kind": "a", "list": [{"name": "x", "deep": "yes"}]}),
                ("list[0].deep", "invalid_type"),
                "`list[0].deep` must be true or false, not a string",
            ),
            (
                json!({"kind": "a", "list": [{"name": "x"}, {}]}),
                ("list[1].name", "missing_required_parameter"),
                "`list[1].name` is missing",
            ),
            (
                json!({"kind": "a", "list": ["x"]}),
                ("list[0]", "invalid_type"),
                "`list[0]` must be an object, not a string",
            ),
            (
                json!({"kind": "a", "list": [[]]}),
                ("list[0]", "invalid_type"),
                "`list[0]` must be an object, not an array",
            ),
            (
                json!({"kind": "a", "list": {}}),
                ("list", "invalid_type"),
                "`list` must be an array, not an object",
            ),
            (
                json!({"kind": "a", "list": 3}),
                ("list", "invalid_type"),
                "`list` must be a string or an array, not a number",
            ),
            (
                json!({"kind": null}),
                ("kind", "missing_required_parameter"),
                "`kind` is missing",
            ),
            (
                json!({"kind": 1}),
                ("kind", "invalid_type"),
                "`kind` must be a string, not a number",
            ),
            (
                json!({"kind": "c".repeat(99)}),
                ("kind", "invalid_value"),
                &format!("`kind` is `{}`; it must be `a` or `b`", "c".repeat(40)),
            ),
            (
                json!({"kind": "a", "n": "3"}),
                ("n", "invalid_type"),
                "`n` must be a number, not a string",
            ),
            (
                json!({"kind": "a", "n": 4.5}),
                ("n", "invalid_type"),
                "`n` must be an integer, not a number",
            ),
            (
                json!([1]),
                ("", "invalid_type"),
                "`the body` must be an object, not an array",
            ),
        ];
        for (body, (param, code), message) in rows {
            let expected = (param.to_owned(), code.to_owned(), message.to_owned());
            assert_eq!(rejected(body.clone()), expected, "{body}");
        }
    }

    #[test]
    fn bounds_are_inclusive_and_reported() {
        let n = |value: Value| parse_at::<Int<0, 9>>(&value, "n").map(Int::get);
        assert_eq!(n(json!(9)), Ok(9));
        assert_eq!(n(json!(4.0)), Ok(4));
        assert!(n(json!(10)).is_err() && n(json!(1e300)).is_err());
        let t = |value: Value| parse_at::<Number<0, 200>>(&value, "t").map(Number::get);
        assert_eq!(t(json!(2)), Ok(2.0));
        let (param, code, message) = rejected(json!({"kind": "a", "t": 2.5}));
        assert_eq!((&*param, &*code), ("t", "invalid_value"));
        assert_eq!(message, "`t` is `2.5`; it must be from 0 to 2");
        assert!(t(json!(-0.01)).is_err());
    }

    #[test]
    fn error_does_not_repeat_a_long_value() {
        let long = "x".repeat(10_000);
        let (_, _, message) = rejected(json!({"kind": "a", "t": long}));
        assert!(message.len() < 100, "{message}");
    }
}
