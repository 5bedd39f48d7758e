//! How values lie in the database: token data as little-endian words, JSON as text.
//!
//! Every decoder refuses what no encoder wrote; the error becomes "damaged" at the boundary.

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use serde_json::Value;

use crate::error::Fault;

/// Bytes of one stored word.
const WORD: usize = 4;

/// How deep stored JSON may nest. A reader stops at 128, and forks wrap a value in three levels.
const DEEPEST: usize = 120;

/// A blob whose length is not a whole number of words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a blob of {bytes} bytes is no list of 4-byte words")]
pub(crate) struct Ragged {
    bytes: usize,
}

pub(crate) fn encode_u32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn encode_f32s(words: &[f32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn decode<T>(blob: &[u8], word: impl Fn([u8; WORD]) -> T) -> Result<Vec<T>, Ragged> {
    let (words, rest) = blob.as_chunks::<WORD>();
    if !rest.is_empty() {
        return Err(Ragged { bytes: blob.len() });
    }
    Ok(words.iter().map(|bytes| word(*bytes)).collect())
}

pub(crate) fn decode_u32s(blob: &[u8]) -> Result<Vec<u32>, Ragged> {
    decode(blob, u32::from_le_bytes)
}

pub(crate) fn decode_f32s(blob: &[u8]) -> Result<Vec<f32>, Ragged> {
    decode(blob, f32::from_le_bytes)
}

/// JSON as text, if a reader will be able to take it in again.
pub(crate) fn encode_json(value: &Value) -> Result<String, Fault> {
    if !shallower_than(value, DEEPEST) {
        return Err(Fault::invalid(format!(
            "a JSON value nests deeper than {DEEPEST} levels: send it flatter"
        )));
    }
    serde_json::to_string(value).map_err(|error| Fault::invalid(error.to_string()))
}

fn shallower_than(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else {
        return false;
    };
    match value {
        Value::Array(items) => items.iter().all(|item| shallower_than(item, below)),
        Value::Object(fields) => fields.values().all(|field| shallower_than(field, below)),
        _ => true,
    }
}

/// A count or version as SQLite holds it.
pub(crate) fn encode_u64(number: u64, what: &str) -> Result<i64, Fault> {
    i64::try_from(number).map_err(|_| Fault::invalid(format!("{what} {number} is too large")))
}

/// A number that may enter a mean or a tensor.
pub(crate) fn finite(number: f32, what: &str) -> Result<f64, Fault> {
    if number.is_finite() {
        Ok(f64::from(number))
    } else {
        Err(Fault::invalid(format!(
            "{what} is {number}, not a finite number"
        )))
    }
}

/// Column holding token ids.
pub(crate) struct Ids(pub(crate) Vec<u32>);
/// Column holding log-probs.
pub(crate) struct Floats(pub(crate) Vec<f32>);
/// Column holding JSON.
pub(crate) struct Json(pub(crate) Value);
/// Column holding a count or a version.
pub(crate) struct Natural(pub(crate) u64);
/// Column holding an f32 in SQLite's f64.
pub(crate) struct Single(pub(crate) f32);

impl FromSql for Ids {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Ids> {
        decode_u32s(value.as_blob()?)
            .map(Ids)
            .map_err(FromSqlError::other)
    }
}

impl FromSql for Floats {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Floats> {
        decode_f32s(value.as_blob()?)
            .map(Floats)
            .map_err(FromSqlError::other)
    }
}

impl FromSql for Json {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Json> {
        serde_json::from_str(value.as_str()?)
            .map(Json)
            .map_err(FromSqlError::other)
    }
}

impl FromSql for Natural {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Natural> {
        let number = value.as_i64()?;
        u64::try_from(number)
            .map(Natural)
            .map_err(|_| FromSqlError::OutOfRange(number))
    }
}

impl FromSql for Single {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the column was written from an f32, so the way back is exact"
    )]
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Single> {
        value.as_f64().map(|number| Single(number as f32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        #[test]
        fn ids_come_back(words in prop::collection::vec(any::<u32>(), 0..200)) {
            prop_assert_eq!(decode_u32s(&encode_u32s(&words)).unwrap(), words);
        }

        #[test]
        fn floats_come_back_bit_for_bit(bits in prop::collection::vec(any::<u32>(), 0..200)) {
            let words: Vec<f32> = bits.iter().map(|word| f32::from_bits(*word)).collect();
            let back = decode_f32s(&encode_f32s(&words)).unwrap();
            let back: Vec<u32> = back.iter().map(|word| word.to_bits()).collect();
            prop_assert_eq!(back, bits);
        }

        #[test]
        fn singles_survive_the_database(bits in any::<u32>()) {
            let number = f32::from_bits(bits);
            prop_assume!(number.is_finite());
            let wide = finite(number, "x").unwrap();
            let back = Single::column_result(ValueRef::Real(wide)).unwrap();
            prop_assert_eq!(back.0.to_bits(), bits);
        }

        #[test]
        fn ragged_blobs_are_refused(blob in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(decode_u32s(&blob).is_ok(), blob.len() % 4 == 0);
        }
    }

    #[test]
    fn words_are_little_endian() {
        assert_eq!(encode_u32s(&[1, 0x0102_0304]), [1, 0, 0, 0, 4, 3, 2, 1]);
        assert_eq!(encode_f32s(&[1.0]), [0, 0, 0x80, 0x3f]);
    }

    #[test]
    fn json_that_could_not_be_read_back_is_refused() {
        let nested = |levels: usize| (1..levels).fold(json!(1), |inner, _| json!([inner]));
        assert!(encode_json(&nested(DEEPEST)).is_ok());
        let error = encode_json(&nested(DEEPEST + 1)).unwrap_err();
        assert!(format!("{error:?}").contains("deeper"), "{error:?}");
        assert!(finite(f32::NAN, "reward").is_err());
        assert!(encode_u64(u64::MAX, "version").is_err());
    }
}
