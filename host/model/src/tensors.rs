//! A file of weights, safetensors or GGUF, that is read lazily: the header says where each tensor is, and a tensor is
//! read and converted to f32 chunk by chunk, so that no second copy of a model is ever in memory.
//!
//! The file is untrusted: its header is bounded, and every range is checked against the file's length before anything
//! is read. This module does not interpret the tensors.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use serde::Deserialize;

use crate::error::LoadError;
use crate::gguf::{self, GgufTensor};
use crate::quantized::QuantizedWeight;

/// Longest header, in bytes; the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

/// Bytes read and converted at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// Where the bytes of a file come from.
#[derive(Debug, Clone)]
pub(crate) enum TensorSource {
    Embedded(&'static [u8]),
    File(PathBuf),
    Gguf(PathBuf),
}

impl TensorSource {
    /// The name used in error messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Embedded(_) => "model.safetensors".to_owned(),
            Self::File(path) | Self::Gguf(path) => path.display().to_string(),
        }
    }

    /// The file's path; empty for an embedded file.
    fn path(&self) -> &Path {
        match self {
            Self::Embedded(_) => Path::new(""),
            Self::File(path) | Self::Gguf(path) => path,
        }
    }

    fn failed(&self, source: std::io::Error) -> LoadError {
        LoadError::Read {
            path: PathBuf::from(self.name()),
            source,
        }
    }

    fn open(&self) -> Result<SourceReader, LoadError> {
        match self {
            Self::Embedded(bytes) => Ok(SourceReader::Memory(Cursor::new(bytes))),
            Self::File(path) | Self::Gguf(path) => File::open(path)
                .map(SourceReader::Disk)
                .map_err(|source| self.failed(source)),
        }
    }
}

enum SourceReader {
    Memory(Cursor<&'static [u8]>),
    Disk(File),
}

impl Read for SourceReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Memory(bytes) => bytes.read(buffer),
            Self::Disk(file) => file.read(buffer),
        }
    }
}

impl Seek for SourceReader {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        match self {
            Self::Memory(bytes) => bytes.seek(to),
            Self::Disk(file) => file.seek(to),
        }
    }
}

/// A tensor in a file.
#[derive(Debug, Clone)]
pub(crate) struct TensorInfo {
    pub(crate) shape: Vec<usize>,
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    Safetensors(SafetensorsEntry),
    Gguf(GgufTensor),
}

/// A tensor's entry in the header of a safetensors file.
#[derive(Debug, Clone, Deserialize)]
struct SafetensorsEntry {
    dtype: String,
    shape: Vec<usize>,
    /// Byte range, relative to the end of the header.
    data_offsets: (u64, u64),
}

/// An opened file.
#[derive(Debug)]
pub(crate) struct TensorFile {
    source: TensorSource,
    /// Offset of the data.
    start: u64,
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
}

impl TensorFile {
    /// Reads the header.
    ///
    /// # Errors
    /// A file that cannot be read, is not a safetensors file or is shorter than its header says.
    pub(crate) fn open(source: TensorSource) -> Result<Self, LoadError> {
        let TensorSource::Gguf(path) = &source else {
            return Self::open_safetensors(source);
        };
        let tensors = gguf::tensors(path)?
            .into_iter()
            .map(|(name, (tensor, shape))| {
                let place = Place::Gguf(tensor);
                (name, TensorInfo { shape, place })
            });
        let tensors = tensors.collect();
        Ok(Self {
            source,
            start: 0,
            tensors,
        })
    }

    fn open_safetensors(source: TensorSource) -> Result<Self, LoadError> {
        let mut bytes = source.open()?;
        let failed = |error| source.failed(error);
        let malformed = |reason: String| LoadError::Malformed {
            file: source.name(),
            reason,
        };
        let length = bytes.seek(SeekFrom::End(0)).map_err(failed)?;
        bytes.rewind().map_err(failed)?;
        let mut size = [0; 8];
        let truncated = || {
            malformed(format!(
                "it ends after {length} bytes, inside its header; it is truncated or not a safetensors file"
            ))
        };
        bytes.read_exact(&mut size).map_err(|_| truncated())?;
        let size = u64::from_le_bytes(size);
        if size > MAX_HEADER {
            return Err(malformed(format!(
                "its header would have {size} bytes; it is not a safetensors file"
            )));
        }
        let start = 8 + size;
        if start > length {
            return Err(truncated());
        }
        let mut header = Vec::new();
        bytes.take(size).read_to_end(&mut header).map_err(failed)?;
        let mut fields: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&header)
            .map_err(|e| malformed(format!("its header is not JSON: {e}")))?;
        fields.remove("__metadata__");
        let mut tensors = BTreeMap::new();
        for (name, value) in fields {
            let entry: SafetensorsEntry = serde_json::from_value(value)
                .map_err(|e| malformed(format!("its header has no valid entry for {name}: {e}")))?;
            let (from, to) = entry.data_offsets;
            if from > to {
                return Err(malformed(format!("tensor {name} ends before it begins")));
            }
            if to > length - start {
                return Err(malformed(format!(
                    "it has {length} bytes, but tensor {name} would end at {}; the file is truncated: download it again",
                    start.saturating_add(to)
                )));
            }
            let shape = entry.shape.clone();
            let place = Place::Safetensors(entry);
            tensors.insert(name, TensorInfo { shape, place });
        }
        Ok(Self {
            source,
            start,
            tensors,
        })
    }

    /// The name used in error messages.
    pub(crate) fn name(&self) -> String {
        self.source.name()
    }

    /// Passes the values of a tensor to `each`, chunk by chunk and in order.
    ///
    /// # Errors
    /// An unsupported dtype, a size that does not match the shape, a value that is not finite, or a read error.
    pub(crate) fn read(&self, name: &str, mut each: impl FnMut(&[f32])) -> Result<(), LoadError> {
        let mut finite = true;
        let checked = |values: &[f32]| {
            finite &= values.iter().all(|value| value.is_finite());
            if finite {
                each(values);
            }
        };
        match &self.tensor(name)?.place {
            Place::Safetensors(entry) => self.read_safetensors(name, entry, checked)?,
            Place::Gguf(tensor) => tensor
                .read(self.source.path(), checked)
                .map_err(|error| self.source.failed(error))?,
        }
        if finite {
            return Ok(());
        }
        Err(self.not_finite(name))
    }

    /// Appends the rows of a tensor to a quantized weight. Blocks of its own format are kept as they are.
    ///
    /// # Errors
    /// As [`TensorFile::read`].
    pub(crate) fn read_quantized(
        &self,
        name: &str,
        weight: &mut QuantizedWeight,
    ) -> Result<(), LoadError> {
        if let Place::Gguf(tensor) = &self.tensor(name)?.place
            && weight.takes_blocks(tensor.kind)
        {
            tensor
                .read_rows(self.source.path(), |bytes| {
                    weight.push_blocks(tensor.kind, bytes)
                })
                .map_err(|error| self.source.failed(error))?;
        } else {
            // Chunks of the file may end inside a row.
            let (inputs, mut pending) = (weight.shape().1.max(1), Vec::new());
            self.read(name, |values| {
                pending.extend_from_slice(values);
                let whole = pending.len() / inputs * inputs;
                weight.push_rows(&pending[..whole]);
                pending.drain(..whole);
            })?;
        }
        if weight.is_finite() {
            return Ok(());
        }
        Err(self.not_finite(name))
    }

    fn tensor(&self, name: &str) -> Result<&TensorInfo, LoadError> {
        self.tensors
            .get(name)
            .ok_or_else(|| LoadError::MissingTensor {
                file: self.name(),
                name: name.to_owned(),
            })
    }

    fn not_finite(&self, name: &str) -> LoadError {
        LoadError::NotFinite {
            file: self.name(),
            name: name.to_owned(),
        }
    }

    fn read_safetensors(
        &self,
        name: &str,
        tensor: &SafetensorsEntry,
        mut each: impl FnMut(&[f32]),
    ) -> Result<(), LoadError> {
        let malformed = |reason: String| LoadError::Malformed {
            file: self.name(),
            reason,
        };
        let dtype = match tensor.dtype.as_str() {
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::BF16,
            "F64" => DType::F64,
            other => {
                return Err(malformed(format!(
                    "tensor {name} has dtype {other}; supported are bf16, f16 and f32, not quantized weights"
                )));
            }
        };
        let Range { start, end } = tensor.data_offsets.0..tensor.data_offsets.1;
        let values = tensor
            .shape
            .iter()
            .try_fold(1u64, |n, dim| n.checked_mul(u64::try_from(*dim).ok()?));
        let expected = values.and_then(|n| n.checked_mul(dtype.size_in_bytes() as u64));
        if expected != Some(end - start) {
            return Err(malformed(format!(
                "tensor {name} has {} bytes, but its shape is {:?} of {}",
                end - start,
                tensor.shape,
                tensor.dtype
            )));
        }
        let mut bytes = self.source.open()?;
        let failed = |error| self.source.failed(error);
        bytes
            .seek(SeekFrom::Start(self.start + start))
            .map_err(failed)?;
        let mut left = end - start;
        let mut chunk = Vec::new();
        while left > 0 {
            let take = usize::try_from(left)
                .unwrap_or(CHUNK_BYTES)
                .min(CHUNK_BYTES);
            chunk.resize(take, 0);
            bytes.read_exact(&mut chunk).map_err(failed)?;
            let values = to_f32(&chunk, dtype).map_err(|e| malformed(e.to_string()))?;
            each(&values);
            left -= take as u64;
        }
        Ok(())
    }
}

fn to_f32(bytes: &[u8], dtype: DType) -> candle_core::Result<Vec<f32>> {
    let count = bytes.len() / dtype.size_in_bytes();
    let raw = Tensor::from_raw_buffer(bytes, dtype, &[count], &Device::Cpu)?;
    raw.to_dtype(DType::F32)?.to_vec1()
}

/// Writes named f32 tensors as one safetensors file.
pub(crate) fn write_safetensors<'a>(
    path: &Path,
    tensors: impl Iterator<Item = (&'a str, &'a [usize], &'a [f32])>,
) -> Result<(), LoadError> {
    let failed = |reason: String| LoadError::Write {
        path: path.to_owned(),
        source: std::io::Error::other(reason),
    };
    let mut map = HashMap::new();
    for (name, shape, values) in tensors {
        let tensor =
            Tensor::from_slice(values, shape, &Device::Cpu).map_err(|e| failed(e.to_string()))?;
        map.insert(name.to_owned(), tensor);
    }
    candle_core::safetensors::save(&map, path).map_err(|e| failed(e.to_string()))
}
