//! Durations as text: "10s", "500ms", "1h 30m".

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

/// Units with their length in microseconds, longest first.
const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

const EXPECTED: &str = "must be a duration such as \"10s\", \"500ms\" or \"1h 30m\"";

/// Parses a duration: numbers with a unit (d, h, m, s, ms, us), which are added up; 0 needs no unit.
///
/// # Errors
/// The text is not a duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" {EXPECTED}");
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(wrong)?;
        let (number, after) = rest.split_at(digits);
        let after = after.trim_start();
        let end = after
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let (_, micros) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(wrong)?;
        #[allow(
            clippy::cast_precision_loss,
            reason = "a unit has far fewer than 2^53 microseconds"
        )]
        let seconds = number * (*micros as f64) / 1e6;
        let part = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = after.trim_start();
    }
    Ok(total)
}

/// The shortest text of a duration, exact to a microsecond.
pub fn duration_text(duration: Duration) -> String {
    let mut rest = duration.as_micros();
    let mut parts = Vec::new();
    for (unit, micros) in UNITS {
        let count = rest / u128::from(micros);
        rest %= u128::from(micros);
        if count > 0 {
            parts.push(format!("{count}{unit}"));
        }
    }
    match parts.is_empty() {
        true => "0s".to_owned(),
        false => parts.join(" "),
    }
}

/// For `#[serde(with)]` on a field that is a [`Duration`], or an optional one.
#[derive(Debug)]
pub struct DurationText;

impl DurationText {
    /// Writes the duration as text.
    ///
    /// # Errors
    /// Those of the serializer.
    #[allow(private_bounds, reason = "the field types are a closed set")]
    pub fn serialize<T: DurationField, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        match value.duration() {
            Some(duration) => to.serialize_str(&duration_text(duration)),
            None => to.serialize_none(),
        }
    }

    /// Reads the duration from text.
    ///
    /// # Errors
    /// The value is not a duration.
    pub fn deserialize<'de, T: From<Duration>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        let text = Text::deserialize(from)?;
        parse_duration(&text.0)
            .map(T::from)
            .map_err(D::Error::custom)
    }
}

/// A field type of [`DurationText`].
trait DurationField {
    fn duration(&self) -> Option<Duration>;
}

impl DurationField for Duration {
    fn duration(&self) -> Option<Duration> {
        Some(*self)
    }
}

impl DurationField for Option<Duration> {
    fn duration(&self) -> Option<Duration> {
        *self
    }
}

impl JsonSchema for DurationText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "duration" })
    }
}

/// A text value; for a number the error says what is expected.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Text;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a duration such as \"10s\", \"500ms\" or \"1h 30m\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }
        }
        from.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, millis, written) in [
            ("10s", 10_000, "10s"),
            ("500ms", 500, "500ms"),
            ("1h 30m", 5_400_000, "1h 30m"),
            ("90m", 5_400_000, "1h 30m"),
            ("1.5s", 1_500, "1s 500ms"),
            ("0", 0, "0s"),
        ] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration, Duration::from_millis(millis), "{text}");
            assert_eq!(duration_text(duration), written);
            assert_eq!(parse_duration(written).unwrap(), duration);
        }
        for wrong in ["", "10", "s", "-1s", "1 fortnight", "1.2.3s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
