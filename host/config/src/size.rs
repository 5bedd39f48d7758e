//! Sizes as text: "8MiB", "1GiB".

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserializer, Serializer};

/// Units with their size in bytes, largest first. Decimal units are read, not written.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
];

/// Parses a size: a whole number of bytes with a unit.
///
/// # Errors
/// The text is not a size.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" must be a size such as \"512KiB\", \"8MiB\" or \"1GiB\"");
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = unit.trim_start();
    if unit.is_empty() && number == 0 {
        return Ok(0);
    }
    let bytes = UNITS.iter().find(|(name, _)| *name == unit);
    let (_, bytes) = bytes.ok_or_else(wrong)?;
    number.checked_mul(*bytes).ok_or_else(wrong)
}

/// A size in the largest binary unit that divides it.
pub fn size_text(bytes: u64) -> String {
    let unit = UNITS
        .iter()
        .take(5)
        .find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    match unit {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

/// For `#[serde(with)]` on a field that counts bytes, or an optional one.
#[derive(Debug)]
pub struct SizeText;

impl SizeText {
    /// Writes the bytes as text.
    ///
    /// # Errors
    /// Those of the serializer.
    #[allow(private_bounds, reason = "the field types are a closed set")]
    pub fn serialize<T: SizeField, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        match value.bytes() {
            Some(bytes) => to.serialize_str(&size_text(bytes)),
            None => to.serialize_none(),
        }
    }

    /// Reads the bytes from text.
    ///
    /// # Errors
    /// The value is not a size.
    #[allow(private_bounds, reason = "as above")]
    pub fn deserialize<'de, T: SizeField, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = u64;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a size such as \"512KiB\", \"8MiB\" or \"1GiB\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
                parse_size(text).map_err(E::custom)
            }
        }
        let bytes = from.deserialize_str(Visitor)?;
        T::of(bytes)
            .ok_or_else(|| D::Error::custom(format!("\"{}\" is too large", size_text(bytes))))
    }
}

/// A field type of [`SizeText`].
trait SizeField: Sized {
    fn bytes(&self) -> Option<u64>;
    /// `None` if it does not fit.
    fn of(bytes: u64) -> Option<Self>;
}

impl SizeField for u64 {
    fn bytes(&self) -> Option<u64> {
        Some(*self)
    }

    fn of(bytes: u64) -> Option<Self> {
        Some(bytes)
    }
}

impl SizeField for usize {
    fn bytes(&self) -> Option<u64> {
        Some(*self as u64)
    }

    fn of(bytes: u64) -> Option<Self> {
        bytes.try_into().ok()
    }
}

impl<T: SizeField> SizeField for Option<T> {
    fn bytes(&self) -> Option<u64> {
        self.as_ref().and_then(T::bytes)
    }

    fn of(bytes: u64) -> Option<Self> {
        T::of(bytes).map(Some)
    }
}

impl JsonSchema for SizeText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "size" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes, written) in [
            ("8MiB", 8 << 20, "8MiB"),
            ("1024 KiB", 1 << 20, "1MiB"),
            ("100B", 100, "100B"),
            ("1MB", 1_000_000, "1000000B"),
            ("0", 0, "0B"),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
            assert_eq!(size_text(bytes), written);
            assert_eq!(parse_size(written).unwrap(), bytes);
        }
        for wrong in ["", "8", "MiB", "-1B", "1.5GiB", "1mib"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
