//! Column encodings: token data as little-endian 4-byte words, JSON as text.
//!
//! Decoders reject anything that no encoder writes; the public methods report this as [`JournalError::Corrupt`].
//!
//! [`JournalError::Corrupt`]: crate::JournalError::Corrupt

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::DbError;

/// Bytes of a stored word.
const WORD: usize = 4;

/// Maximum nesting of stored JSON. serde_json stops at 128 levels, and forks wrap a value in three.
const MAX_DEPTH: usize = 120;

/// A blob whose length is not a whole number of words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the length of a blob is {bytes} bytes, not a multiple of 4")]
pub(crate) struct MisalignedBlob {
    bytes: usize,
}

pub(crate) fn encode_u32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn encode_f32s(words: &[f32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn decode<T>(blob: &[u8], word: impl Fn([u8; WORD]) -> T) -> Result<Vec<T>, MisalignedBlob> {
    let (words, rest) = blob.as_chunks::<WORD>();
    if !rest.is_empty() {
        return Err(MisalignedBlob { bytes: blob.len() });
    }
    Ok(words.iter().map(|bytes| word(*bytes)).collect())
}

pub(crate) fn decode_u32s(blob: &[u8]) -> Result<Vec<u32>, MisalignedBlob> {
    decode(blob, u32::from_le_bytes)
}

pub(crate) fn decode_f32s(blob: &[u8]) -> Result<Vec<f32>, MisalignedBlob> {
    decode(blob, f32::from_le_bytes)
}

/// JSON as text; an error if it nests too deeply to be parsed again.
pub(crate) fn encode_json(value: &impl Serialize) -> Result<String, DbError> {
    let value = serde_json::to_value(value).map_err(|error| DbError::invalid(error.to_string()))?;
    if !is_within_depth(&value, MAX_DEPTH) {
        return Err(DbError::invalid(format!(
            "a JSON value is nested deeper than {MAX_DEPTH} levels"
        )));
    }
    Ok(value.to_string())
}

fn is_within_depth(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else {
        return false;
    };
    match value {
        Value::Array(items) => items.iter().all(|item| is_within_depth(item, below)),
        Value::Object(fields) => fields.values().all(|field| is_within_depth(field, below)),
        _ => true,
    }
}

/// A count or version as a SQLite integer.
pub(crate) fn encode_u64(number: u64, what: &str) -> Result<i64, DbError> {
    i64::try_from(number).map_err(|_| DbError::invalid(format!("{what} {number} is too large")))
}

/// Rejects NaN and infinities, which must not enter a mean or a tensor.
pub(crate) fn finite(number: f32, what: &str) -> Result<f64, DbError> {
    if number.is_finite() {
        Ok(f64::from(number))
    } else {
        Err(DbError::invalid(format!(
            "{what} is {number}, not a finite number"
        )))
    }
}

/// Column with token ids.
pub(crate) struct Ids(pub(crate) Vec<u32>);
/// Column with logprobs.
pub(crate) struct Floats(pub(crate) Vec<f32>);
/// Column with JSON.
pub(crate) struct Json<T>(pub(crate) T);
/// Column with a count or a version.
pub(crate) struct Unsigned(pub(crate) u64);
/// Column with an f32, stored as SQLite's f64.
pub(crate) struct Float(pub(crate) f32);

impl FromSql for Ids {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Ids> {
        let ids = decode_u32s(value.as_blob()?);
        ids.map(Ids).map_err(FromSqlError::other)
    }
}

impl FromSql for Floats {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Floats> {
        let floats = decode_f32s(value.as_blob()?);
        floats.map(Floats).map_err(FromSqlError::other)
    }
}

impl<T: DeserializeOwned> FromSql for Json<T> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Json<T>> {
        let json = serde_json::from_str(value.as_str()?);
        json.map(Json).map_err(FromSqlError::other)
    }
}

impl FromSql for Unsigned {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Unsigned> {
        let number = value.as_i64()?;
        u64::try_from(number)
            .map(Unsigned)
            .map_err(|_| FromSqlError::OutOfRange(number))
    }
}

impl FromSql for Float {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the column was written from an f32, so the way back is exact"
    )]
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Float> {
        value.as_f64().map(|number| Float(number as f32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        #[test]
        fn token_ids_round_trip(words in prop::collection::vec(any::<u32>(), 0..200)) {
            prop_assert_eq!(decode_u32s(&encode_u32s(&words)).unwrap(), words);
        }

        #[test]
        fn float_arrays_round_trip_bit_for_bit(bits in prop::collection::vec(any::<u32>(), 0..200)) {
            let words: Vec<f32> = bits.iter().map(|word| f32::from_bits(*word)).collect();
            let back = decode_f32s(&encode_f32s(&words)).unwrap();
            let back: Vec<u32> = back.iter().map(|word| word.to_bits()).collect();
            prop_assert_eq!(back, bits);
        }

        #[test]
        fn f32_columns_round_trip_bit_for_bit(bits in any::<u32>()) {
            let number = f32::from_bits(bits);
            prop_assume!(number.is_finite());
            let wide = finite(number, "x").unwrap();
            let back = Float::column_result(ValueRef::Real(wide)).unwrap();
            prop_assert_eq!(back.0.to_bits(), bits);
        }

        #[test]
        fn misaligned_blobs_are_rejected(blob in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(decode_u32s(&blob).is_ok(), blob.len() % 4 == 0);
        }
    }

    #[test]
    fn words_are_little_endian() {
        assert_eq!(encode_u32s(&[1, 0x0102_0304]), [1, 0, 0, 0, 4, 3, 2, 1]);
        assert_eq!(encode_f32s(&[1.0]), [0, 0, 0x80, 0x3f]);
    }

    #[test]
    fn json_that_is_nested_too_deeply_is_rejected() {
        let nested = |levels: usize| (1..levels).fold(json!(1), |inner, _| json!([inner]));
        assert!(encode_json(&nested(MAX_DEPTH)).is_ok());
        let error = encode_json(&nested(MAX_DEPTH + 1)).unwrap_err();
        assert!(format!("{error:?}").contains("deeper"), "{error:?}");
        assert!(finite(f32::NAN, "reward").is_err());
        assert!(encode_u64(u64::MAX, "version").is_err());
    }
}
