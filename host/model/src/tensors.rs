//! A file of weights, safetensors or GGUF, that is read lazily: the header says where each tensor is, and a tensor is
//! read and converted in pieces, so that no second copy of a model is ever in memory.
//!
//! The file is untrusted: its header is bounded, and every range is checked against the file's length before anything
//! is read. This module does not interpret the tensors.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, View};
use serde::Deserialize;

use crate::error::LoadError;
use crate::gguf;
use crate::gguf::blocks::GgmlType;
use crate::stored::{FileData, StoredTensor};
use crate::weights::push_le_bytes;

/// Longest header, in bytes; the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

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

    fn failed(&self, source: std::io::Error) -> LoadError {
        LoadError::Read {
            path: PathBuf::from(self.name()),
            source,
        }
    }

    fn open(&self) -> Result<FileData, LoadError> {
        match self {
            Self::Embedded(bytes) => Ok(FileData::Embedded(bytes)),
            Self::File(path) | Self::Gguf(path) => File::open(path)
                .map(FileData::Disk)
                .map_err(|source| self.failed(source)),
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
    Gguf(StoredTensor),
}

impl TensorInfo {
    pub(crate) fn is_in_bf16(&self) -> bool {
        match &self.place {
            Place::Safetensors(entry) => entry.dtype == "BF16",
            Place::Gguf(tensor) => tensor.kind == GgmlType::BF16,
        }
    }
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
    pub(crate) data: FileData,
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
        let data = source.open()?;
        let TensorSource::Gguf(path) = &source else {
            return Self::open_safetensors(source, data);
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
            data,
            start: 0,
            tensors,
        })
    }

    fn open_safetensors(source: TensorSource, data: FileData) -> Result<Self, LoadError> {
        let failed = |error| source.failed(error);
        let malformed = |reason: String| LoadError::Malformed {
            file: source.name(),
            reason,
        };
        let length = data.len().map_err(failed)?;
        let mut size = [0; 8];
        let truncated = || {
            malformed(format!(
                "it ends after {length} bytes, inside its header; it is truncated or not a safetensors file"
            ))
        };
        data.read_at(0, &mut size).map_err(|_| truncated())?;
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
        let mut header = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        data.read_at(8, &mut header).map_err(failed)?;
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
            data,
            start,
            tensors,
        })
    }

    /// The name used in error messages.
    pub(crate) fn name(&self) -> String {
        self.source.name()
    }

    /// The error of a failed read.
    pub(crate) fn failed(&self, source: std::io::Error) -> LoadError {
        self.source.failed(source)
    }

    /// Where a tensor is.
    ///
    /// # Errors
    /// There is none of this name, an unsupported dtype, or a size that does not match the shape.
    pub(crate) fn stored(&self, name: &str) -> Result<StoredTensor, LoadError> {
        let tensor = self.tensors.get(name);
        let tensor = tensor.ok_or_else(|| LoadError::MissingTensor {
            file: self.name(),
            name: name.to_owned(),
        })?;
        match &tensor.place {
            Place::Safetensors(entry) => self.stored_safetensors(name, entry),
            Place::Gguf(tensor) => Ok(tensor.clone()),
        }
    }

    fn stored_safetensors(
        &self,
        name: &str,
        tensor: &SafetensorsEntry,
    ) -> Result<StoredTensor, LoadError> {
        let malformed = |reason: String| LoadError::Malformed {
            file: self.name(),
            reason,
        };
        let kind = match tensor.dtype.as_str() {
            "F32" => GgmlType::F32,
            "F16" => GgmlType::F16,
            "BF16" => GgmlType::BF16,
            "F64" => GgmlType::F64,
            other => {
                return Err(malformed(format!(
                    "tensor {name} has dtype {other}; supported are bf16, f16 and f32, not quantized weights"
                )));
            }
        };
        let (start, end) = tensor.data_offsets;
        let values = tensor
            .shape
            .iter()
            .try_fold(1u64, |n, dim| n.checked_mul(u64::try_from(*dim).ok()?));
        let expected = values.and_then(|n| n.checked_mul(kind.block_bytes() as u64));
        if expected != Some(end - start) {
            return Err(malformed(format!(
                "tensor {name} has {} bytes, but its shape is {:?} of {}",
                end - start,
                tensor.shape,
                tensor.dtype
            )));
        }
        let row = tensor.shape.last().copied().unwrap_or(1);
        Ok(StoredTensor {
            kind,
            interleaved: None,
            start: self.start + start,
            rows: tensor.shape.iter().product::<usize>() / row.max(1),
            row_bytes: row * kind.block_bytes(),
        })
    }
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
    let views = tensors.map(|(name, shape, values)| (name, F32Tensor { shape, values }));
    safetensors::serialize_to_file(views, None, path).map_err(|e| failed(e.to_string()))
}

/// A tensor to be written.
struct F32Tensor<'a> {
    shape: &'a [usize],
    values: &'a [f32],
}

impl View for F32Tensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = Vec::with_capacity(self.data_len());
        push_le_bytes(self.values, &mut bytes);
        bytes.into()
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}
