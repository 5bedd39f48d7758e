//! The header of a GGUF file: metadata and the places of the tensors.
//!
//! The file is untrusted. Every length is bounded before anything is allocated for it, nothing is read beyond the
//! header's limit, and every tensor lies inside the file. Formats: GGUF version 2 and 3, little-endian.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::blocks::GgmlType;
use crate::error::LoadError;

const MAGIC: [u8; 4] = *b"GGUF";

/// Maximum size of the header in bytes. That of a vocabulary of 256 thousand tokens takes 15 MB.
const MAX_HEADER: u64 = 256 << 20;

/// Maximum number of metadata entries and of tensors.
const MAX_ENTRIES: u64 = 1 << 16;

/// Maximum number of elements of an array: tokens, merges.
const MAX_ARRAY: u64 = 1 << 22;

/// Maximum number of elements of a tensor.
const MAX_ELEMENTS: u64 = 1 << 40;

/// Maximum number of dimensions of a tensor; ggml's own limit.
const MAX_DIMENSIONS: u32 = 4;

/// Alignment of the data when the metadata does not give it.
const DEFAULT_ALIGNMENT: u64 = 32;

/// A metadata value. Integers and floats of all widths are widened.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Strings(Vec<String>),
    /// An array of numbers or booleans.
    Numbers(Vec<f64>),
}

/// A tensor's entry.
#[derive(Debug, Clone)]
pub(super) struct TensorEntry {
    pub(super) kind: GgmlType,
    /// Outermost dimension first, unlike in the file.
    pub(super) shape: Vec<usize>,
    /// Byte range, relative to the start of the data.
    pub(super) range: (u64, u64),
}

/// A parsed header.
#[derive(Debug)]
pub(super) struct Header {
    file: String,
    metadata: BTreeMap<String, Value>,
    pub(super) tensors: BTreeMap<String, TensorEntry>,
    /// Offset of the data in the file.
    pub(super) data: u64,
}

impl Header {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// A file that cannot be read, is not GGUF, or is damaged.
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        Self::parse(BufReader::new(file), length, path.display().to_string())
    }

    /// Parses a header. `length` is the length of the whole file, `file` its name in errors.
    pub(super) fn parse(bytes: impl Read, length: u64, file: String) -> Result<Self, LoadError> {
        let mut reader = HeaderReader {
            bytes,
            at: 0,
            limit: length.min(MAX_HEADER),
        };
        reader
            .header(length, &file)
            .map_err(|reason| LoadError::Malformed { file, reason })
    }

    /// An error about the metadata.
    pub(super) fn error(&self, reason: impl Into<String>) -> LoadError {
        LoadError::Malformed {
            file: self.file.clone(),
            reason: reason.into(),
        }
    }

    fn of_type<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.metadata.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.error(format!("its metadata {key} is not {expected}"))),
        }
    }

    /// A text, if the key is there.
    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        self.of_type(key, "text", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A non-negative integer, if the key is there.
    pub(super) fn integer(&self, key: &str) -> Result<Option<u64>, LoadError> {
        self.of_type(key, "a non-negative integer", |value| match value {
            Value::Unsigned(number) => Some(*number),
            Value::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        })
    }

    /// A finite number, if the key is there.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, LoadError> {
        self.of_type(key, "a finite number", |value| match value {
            Value::Float(number) => Some(*number).filter(|number| number.is_finite()),
            Value::Unsigned(number) => Some(*number as f64),
            Value::Signed(number) => Some(*number as f64),
            _ => None,
        })
    }

    /// A boolean, if the key is there.
    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.of_type(key, "a boolean", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// An array of texts, if the key is there.
    pub(super) fn texts(&self, key: &str) -> Result<Option<&[String]>, LoadError> {
        self.of_type(key, "an array of texts", |value| match value {
            Value::Strings(texts) => Some(texts.as_slice()),
            // An empty array may have any type.
            Value::Numbers(numbers) if numbers.is_empty() => Some([].as_slice()),
            _ => None,
        })
    }

    /// An array of numbers, if the key is there.
    pub(super) fn numbers(&self, key: &str) -> Result<Option<&[f64]>, LoadError> {
        self.of_type(key, "an array of numbers", |value| match value {
            Value::Numbers(numbers) => Some(numbers.as_slice()),
            _ => None,
        })
    }
}

/// Reads the header's fields in order and never beyond its limit.
struct HeaderReader<R> {
    bytes: R,
    at: u64,
    limit: u64,
}

type Parsed<T> = Result<T, String>;

impl<R: Read> HeaderReader<R> {
    fn header(&mut self, length: u64, file: &str) -> Parsed<Header> {
        if self.take::<4>().ok() != Some(MAGIC) {
            return Err("it is not a GGUF file: it does not begin with \"GGUF\"".to_owned());
        }
        match self.u32()? {
            2 | 3 => {}
            1 => return Err(
                "it has GGUF version 1; convert the model again with a llama.cpp of September 2023 or newer"
                    .to_owned(),
            ),
            version if version.swap_bytes() <= 3 => {
                return Err("it is big-endian; convert it with gguf-py's gguf_convert_endian.py".to_owned());
            }
            version => return Err(format!("it has GGUF version {version}; supported are 2 and 3")),
        }
        let tensors = self.u64()?;
        let entries = self.u64()?;
        for (what, count) in [("tensors", tensors), ("metadata entries", entries)] {
            if count > MAX_ENTRIES {
                return Err(format!(
                    "it would have {count} {what}; the limit is {MAX_ENTRIES}"
                ));
            }
        }
        let mut metadata = BTreeMap::new();
        for _ in 0..entries {
            let key = self.string()?;
            let kind = self.u32()?;
            let value = self
                .value(kind)
                .map_err(|error| format!("metadata {key}: {error}"))?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(format!("it has the metadata {key} twice"));
            }
        }
        let alignment = match metadata.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(Value::Unsigned(bytes)) if bytes.is_power_of_two() && *bytes <= 1 << 20 => *bytes,
            Some(_) => {
                return Err("its general.alignment is not a power of two up to 1 MiB".to_owned());
            }
        };
        let mut listed = Vec::new();
        for _ in 0..tensors {
            let name = self.string()?;
            let entry = self
                .tensor()
                .map_err(|error| format!("tensor {name} {error}"))?;
            listed.push((name, entry));
        }
        let data = self.at.next_multiple_of(alignment);
        let mut tensors = BTreeMap::new();
        for (name, entry) in listed {
            let (start, end) = entry.range;
            if !start.is_multiple_of(alignment) {
                return Err(format!("tensor {name} is not aligned to {alignment} bytes"));
            }
            if end > length.saturating_sub(data) {
                return Err(format!(
                    "it has {length} bytes, but tensor {name} would end at {}; the file is truncated: download it again",
                    data.saturating_add(end)
                ));
            }
            if tensors.insert(name.clone(), entry).is_some() {
                return Err(format!("it has the tensor {name} twice"));
            }
        }
        Ok(Header {
            file: file.to_owned(),
            metadata,
            tensors,
            data,
        })
    }

    fn tensor(&mut self) -> Parsed<TensorEntry> {
        let dimensions = self.u32()?;
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            return Err(format!("has {dimensions} dimensions"));
        }
        let mut shape = Vec::new();
        let mut elements = 1u64;
        for _ in 0..dimensions {
            let size = self.u64()?;
            elements = elements
                .checked_mul(size)
                .filter(|elements| (1..=MAX_ELEMENTS).contains(elements))
                .ok_or("is empty or too large")?;
            shape.push(usize::try_from(size).map_err(|_| "is too large")?);
        }
        let kind = GgmlType::from_id(self.u32()?)?;
        let row = shape.first().copied().unwrap_or(0) as u64;
        if !row.is_multiple_of(kind.block_len() as u64) {
            return Err(format!(
                "has rows of {row} values, which {} cannot have",
                kind.name()
            ));
        }
        let bytes = elements / kind.block_len() as u64 * kind.block_bytes() as u64;
        let start = self.u64()?;
        let end = start.checked_add(bytes).ok_or("has an invalid offset")?;
        shape.reverse();
        Ok(TensorEntry {
            kind,
            shape,
            range: (start, end),
        })
    }

    fn value(&mut self, kind: u32) -> Parsed<Value> {
        Ok(match kind {
            0 => Value::Unsigned(u64::from(u8::from_le_bytes(self.take()?))),
            1 => Value::Signed(i64::from(i8::from_le_bytes(self.take()?))),
            2 => Value::Unsigned(u64::from(u16::from_le_bytes(self.take()?))),
            3 => Value::Signed(i64::from(i16::from_le_bytes(self.take()?))),
            4 => Value::Unsigned(u64::from(self.u32()?)),
            5 => Value::Signed(i64::from(i32::from_le_bytes(self.take()?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.take()?))),
            7 => match self.take()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(format!("{other} is not a boolean")),
            },
            8 => Value::String(self.string()?),
            9 => self.array()?,
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.take()?)),
            12 => Value::Float(f64::from_le_bytes(self.take()?)),
            other => return Err(format!("{other} is not a type of metadata")),
        })
    }

    fn array(&mut self) -> Parsed<Value> {
        let kind = self.u32()?;
        let count = self.u64()?;
        if count > MAX_ARRAY {
            return Err(format!(
                "an array of {count} elements; the limit is {MAX_ARRAY}"
            ));
        }
        match kind {
            8 => (0..count)
                .map(|_| self.string())
                .collect::<Parsed<_>>()
                .map(Value::Strings),
            9 => Err("arrays of arrays are not supported".to_owned()),
            kind => {
                let number = |value| match value {
                    Value::Unsigned(number) => number as f64,
                    Value::Signed(number) => number as f64,
                    Value::Float(number) => number,
                    Value::Bool(value) => f64::from(u8::from(value)),
                    Value::String(_) | Value::Strings(_) | Value::Numbers(_) => f64::NAN,
                };
                (0..count)
                    .map(|_| self.value(kind).map(number))
                    .collect::<Parsed<_>>()
                    .map(Value::Numbers)
            }
        }
    }

    fn string(&mut self) -> Parsed<String> {
        let length = self.u64()?;
        if length > self.limit - self.at {
            return Err(self.truncated());
        }
        let mut text = Vec::new();
        let read = (&mut self.bytes).take(length).read_to_end(&mut text);
        let read = read.map_err(|error| format!("it cannot be read: {error}"))?;
        self.at += read as u64;
        if read as u64 != length {
            return Err(self.truncated());
        }
        String::from_utf8(text).map_err(|_| "a text that is not UTF-8".to_owned())
    }

    fn u32(&mut self) -> Parsed<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Parsed<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn take<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        if N as u64 > self.limit - self.at {
            return Err(self.truncated());
        }
        let mut bytes = [0; N];
        self.bytes
            .read_exact(&mut bytes)
            .map_err(|error| format!("it cannot be read: {error}"))?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn truncated(&self) -> String {
        format!(
            "its header does not end within {} bytes; the file is truncated or damaged: download it again",
            self.limit
        )
    }
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
