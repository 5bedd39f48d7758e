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

/// A field type that stands for a duration in some unit.
trait InDuration: Sized {
    fn to_duration(&self, unit: Duration) -> Duration;
    fn from_duration(duration: Duration, unit: Duration) -> Result<Self, String>;
}

impl InDuration for f64 {
    fn to_duration(&self, unit: Duration) -> Duration {
        // A value that is no duration is reported by the validation of its section.
        Duration::try_from_secs_f64(self * unit.as_secs_f64()).unwrap_or(Duration::MAX)
    }

    fn from_duration(duration: Duration, unit: Duration) -> Result<Self, String> {
        Ok(duration.as_secs_f64() / unit.as_secs_f64())
    }
}

impl InDuration for u64 {
    fn to_duration(&self, unit: Duration) -> Duration {
        let micros = u64::try_from(unit.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.saturating_mul(micros))
    }

    fn from_duration(duration: Duration, unit: Duration) -> Result<Self, String> {
        let (micros, unit_micros) = (duration.as_micros(), unit.as_micros());
        if !micros.is_multiple_of(unit_micros) {
            return Err(format!(
                "\"{}\" must be a multiple of {}",
                duration_text(duration),
                duration_text(unit)
            ));
        }
        u64::try_from(micros / unit_micros)
            .map_err(|_| format!("\"{}\" is too long", duration_text(duration)))
    }
}

impl<T: InDuration> InDuration for Option<T> {
    fn to_duration(&self, unit: Duration) -> Duration {
        self.as_ref()
            .map_or(Duration::ZERO, |value| value.to_duration(unit))
    }

    fn from_duration(duration: Duration, unit: Duration) -> Result<Self, String> {
        T::from_duration(duration, unit).map(Some)
    }
}

/// Declares a type for `#[serde(with)]` on a field that counts durations in this unit.
macro_rules! duration_in {
    ($(#[$doc:meta])* $name:ident, $unit:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name;

        impl $name {
            /// Writes the value as text.
            ///
            /// # Errors
            /// Those of the serializer.
            #[allow(private_bounds, reason = "the field types are a closed set")]
            pub fn serialize<T: InDuration, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&duration_text(value.to_duration($unit)))
            }

            /// Reads the value from text.
            ///
            /// # Errors
            /// The value is not a duration.
            #[allow(private_bounds, reason = "the field types are a closed set")]
            pub fn deserialize<'de, T: InDuration, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
                let text = Text::deserialize(from)?;
                let duration = parse_duration(&text.0).map_err(D::Error::custom)?;
                T::from_duration(duration, $unit).map_err(D::Error::custom)
            }
        }

        impl JsonSchema for $name {
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
    };
}

duration_in!(
    /// A field in seconds.
    Seconds,
    Duration::from_secs(1)
);
duration_in!(
    /// A field in minutes.
    Minutes,
    Duration::from_secs(60)
);
duration_in!(
    /// A field in milliseconds.
    Millis,
    Duration::from_millis(1)
);
duration_in!(
    /// A field in ticks of 10 ms, the unit of the CPU limit of plugins.
    Ticks,
    Duration::from_millis(10)
);

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
