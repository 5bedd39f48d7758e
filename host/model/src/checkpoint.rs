//! A checkpoint whose tensors are read in pieces, in any order and by several threads, so that a backend fills the memory of
//! its device without a copy of the model in host memory.
//!
//! Every name and shape is checked against the configuration before a value is read, and an unexpected tensor is an error,
//! because ignoring it would change the model's outputs without notice.

use std::collections::BTreeMap;
use std::ops::Range;

use sha2::{Digest as _, Sha256};

use crate::config::ModelConfig;
use crate::digest;
use crate::error::LoadError;
use crate::files::ModelFiles;
use crate::stored::{ReadBuffer, StoredTensor};
use crate::tensors::TensorFile;
use crate::weights::{TensorEntry, push_le_bytes, tensor_entries};

/// Buffers in old checkpoints that follow from the configuration.
const IGNORED_SUFFIX: &str = "rotary_emb.inv_freq";

pub(crate) const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

/// Values that are compared at a time.
const PIECE_VALUES: usize = 1 << 20;
/// Values that a thread hashes at a time: its buffers stay in the cache of its processor.
const HASHED_VALUES: usize = 1 << 16;

/// An opened checkpoint that fits its configuration.
#[derive(Debug)]
pub struct Checkpoint {
    config: ModelConfig,
    files: Vec<TensorFile>,
    /// In the order of [`crate::Model::parameters`].
    tensors: Vec<CheckpointTensor>,
    /// A head that repeats the embedding.
    tied_head: Option<CheckpointTensor>,
}

/// A tensor of a checkpoint.
#[derive(Debug)]
pub(crate) struct CheckpointTensor {
    pub(crate) name: String,
    /// Index of its file.
    file: usize,
    pub(crate) stored: StoredTensor,
}

/// Consecutive values of a tensor that are read at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Index of the tensor, as in [`crate::Model::parameters`].
    pub tensor: usize,
    rows: Range<usize>,
    /// The values in the tensor.
    pub values: Range<usize>,
}

impl Checkpoint {
    /// Opens the weight files and checks the names and shapes of their tensors.
    ///
    /// # Errors
    /// A tensor that is missing, unexpected or of another shape or dtype, by name.
    pub fn open(files: &ModelFiles) -> Result<Self, LoadError> {
        let config = ModelConfig::parse(files.config())?;
        let entries = tensor_entries(&config);
        let opened = files.open_weights()?;
        let places = map_tensors(&entries, &opened, files)?;
        let tied_head = find_tied_head(&config, &entries, &opened)?;
        let tensor = |(name, file): (String, usize)| -> Result<_, LoadError> {
            let stored = opened[file].stored(&name)?;
            Ok(CheckpointTensor { name, file, stored })
        };
        let names = entries.into_iter().map(|entry| entry.name);
        let tensors = names.zip(places).map(tensor).collect::<Result<_, _>>()?;
        let tied_head = tied_head.map(|file| tensor((HEAD.to_owned(), file)));
        Ok(Self {
            tied_head: tied_head.transpose()?,
            config,
            tensors,
            files: opened,
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub(crate) fn into_config(self) -> ModelConfig {
        self.config
    }

    pub(crate) fn tensor(&self, index: usize) -> &CheckpointTensor {
        &self.tensors[index]
    }

    /// All tensors in pieces of at most about this many values, in order.
    pub fn pieces(&self, values: usize) -> impl Iterator<Item = Piece> {
        (0..self.tensors.len()).flat_map(move |tensor| self.tensor_pieces(tensor, values))
    }

    /// The pieces of one tensor.
    pub(crate) fn tensor_pieces(
        &self,
        tensor: usize,
        values: usize,
    ) -> impl Iterator<Item = Piece> + use<> {
        let stored = &self.tensors[tensor].stored;
        let width = stored.row_values();
        stored.pieces(values).map(move |rows| Piece {
            tensor,
            values: rows.start * width..rows.end * width,
            rows,
        })
    }

    /// Reads a piece as f32.
    ///
    /// # Errors
    /// A value that is not finite, by the name of its tensor, or a read error.
    ///
    /// # Panics
    /// When `values` has another length than the piece.
    pub fn read_f32(
        &self,
        piece: &Piece,
        buffer: &mut ReadBuffer,
        values: &mut [f32],
    ) -> Result<(), LoadError> {
        self.read_tensor_f32(&self.tensors[piece.tensor], &piece.rows, buffer, values)
    }

    fn read_tensor_f32(
        &self,
        tensor: &CheckpointTensor,
        rows: &Range<usize>,
        buffer: &mut ReadBuffer,
        values: &mut [f32],
    ) -> Result<(), LoadError> {
        let data = &self.files[tensor.file].data;
        let finite = tensor.stored.read_f32(data, rows.clone(), buffer, values);
        self.check_finite(tensor, finite)
    }

    /// Reads a piece as bf16, rounded to nearest even. A tensor in bf16 is copied as it is.
    ///
    /// # Errors
    /// As [`Checkpoint::read_f32`].
    ///
    /// # Panics
    /// When `bytes` is not two bytes for every value.
    pub fn read_bf16(
        &self,
        piece: &Piece,
        buffer: &mut ReadBuffer,
        bytes: &mut [u8],
    ) -> Result<(), LoadError> {
        assert_eq!(bytes.len(), 2 * piece.values.len());
        let tensor = &self.tensors[piece.tensor];
        let data = &self.files[tensor.file].data;
        let rows = piece.rows.clone();
        let finite = tensor.stored.read_bf16(data, rows, buffer, bytes);
        self.check_finite(tensor, finite)
    }

    /// Reads the rows of a piece as they are.
    ///
    /// # Errors
    /// A read error.
    pub(crate) fn read_rows<'b>(
        &self,
        piece: &Piece,
        buffer: &'b mut ReadBuffer,
    ) -> Result<&'b [u8], LoadError> {
        let tensor = &self.tensors[piece.tensor];
        let file = &self.files[tensor.file];
        let rows = tensor
            .stored
            .read_rows(&file.data, piece.rows.clone(), buffer);
        rows.map_err(|error| file.failed(error))
    }

    fn check_finite(
        &self,
        tensor: &CheckpointTensor,
        finite: std::io::Result<bool>,
    ) -> Result<(), LoadError> {
        match finite {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.not_finite(tensor)),
            Err(error) => Err(self.files[tensor.file].failed(error)),
        }
    }

    pub(crate) fn not_finite(&self, tensor: &CheckpointTensor) -> LoadError {
        LoadError::NotFinite {
            file: self.files[tensor.file].name(),
            name: tensor.name.clone(),
        }
    }

    /// The digest of the weights in f32, as [`crate::Model::digest`] of the loaded model. Reads and hashes with all
    /// processors.
    ///
    /// # Errors
    /// As [`Checkpoint::read_f32`].
    pub fn digest(&self) -> Result<String, LoadError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let entries = tensor_entries(&self.config);
        let tensors: Vec<_> = entries.iter().map(TensorEntry::named_len).collect();
        digest::of_tensors(&tensors, threads, |tensor| {
            let mut hash = Sha256::new();
            self.hash_tensor(tensor, &mut hash)?;
            Ok(hash)
        })
    }

    /// sha256 over names and values in f32, hex: the digest in old records.
    pub(crate) fn unversioned_digest(&self) -> Result<String, LoadError> {
        let mut hash = Sha256::new();
        for (index, tensor) in self.tensors.iter().enumerate() {
            hash.update(tensor.name.as_bytes());
            self.hash_tensor(index, &mut hash)?;
        }
        Ok(digest::hex(&hash.finalize()))
    }

    fn hash_tensor(&self, tensor: usize, hash: &mut Sha256) -> Result<(), LoadError> {
        let (mut buffer, mut values, mut bytes) = (ReadBuffer::default(), Vec::new(), Vec::new());
        for piece in self.tensor_pieces(tensor, HASHED_VALUES) {
            values.resize(piece.values.len(), 0.0);
            self.read_f32(&piece, &mut buffer, &mut values)?;
            bytes.clear();
            push_le_bytes(&values, &mut bytes);
            hash.update(&bytes);
        }
        Ok(())
    }

    /// Checks that the head of a checkpoint with tied embeddings equals the embedding: versions of transformers differ in
    /// which of them they use.
    ///
    /// # Errors
    /// They differ, or as [`Checkpoint::read_f32`].
    pub fn check_tied_head(&self) -> Result<(), LoadError> {
        let Some(head) = &self.tied_head else {
            return Ok(());
        };
        let (mut buffer, mut embedding, mut repeated) =
            (ReadBuffer::default(), Vec::new(), Vec::new());
        for piece in self.tensor_pieces(0, PIECE_VALUES) {
            embedding.resize(piece.values.len(), 0.0);
            repeated.resize(piece.values.len(), 0.0);
            self.read_f32(&piece, &mut buffer, &mut embedding)?;
            self.read_tensor_f32(head, &piece.rows, &mut buffer, &mut repeated)?;
            if embedding != repeated {
                return Err(LoadError::ForeignTensor {
                    file: self.files[head.file].name(),
                    name: HEAD.to_owned(),
                    problem: format!(
                        "differs from {EMBEDDING}, although config.json sets tie_word_embeddings; set it to false or remove the tensor"
                    ),
                });
            }
        }
        Ok(())
    }
}

/// Finds the file of each tensor, in the order of the entries. Of several errors, always reports the same one.
fn map_tensors(
    entries: &[TensorEntry],
    opened: &[TensorFile],
    files: &ModelFiles,
) -> Result<Vec<usize>, LoadError> {
    let mut missing: BTreeMap<&str, &TensorEntry> =
        entries.iter().map(|e| (e.name.as_str(), e)).collect();
    let mut file_of = BTreeMap::new();
    for (index, file) in opened.iter().enumerate() {
        for (name, info) in &file.tensors {
            let Some(entry) = missing.remove(name.as_str()) else {
                continue;
            };
            if info.shape != entry.shape {
                return Err(LoadError::Shape {
                    file: file.name(),
                    name: name.clone(),
                    found: info.shape.clone(),
                    expected: entry.shape.clone(),
                });
            }
            file_of.insert(name.as_str(), index);
        }
    }
    match missing.into_keys().next() {
        None => Ok(entries
            .iter()
            .map(|entry| file_of[entry.name.as_str()])
            .collect()),
        Some(name) => {
            let one = opened.first().filter(|_| opened.len() == 1);
            Err(LoadError::MissingTensor {
                file: one.map_or_else(|| files.name().to_owned(), TensorFile::name),
                name: name.to_owned(),
            })
        }
    }
}

/// Rejects tensors that the model does not use, and returns the file with a head that repeats the embedding, if there is
/// one.
fn find_tied_head(
    config: &ModelConfig,
    entries: &[TensorEntry],
    opened: &[TensorFile],
) -> Result<Option<usize>, LoadError> {
    let embedding = &entries[0].shape;
    let foreign = |name: &String| !entries.iter().any(|entry| entry.name == *name);
    let mut tied_head = None;
    for (index, file) in opened.iter().enumerate() {
        for (name, info) in file.tensors.iter().filter(|(name, _)| foreign(name)) {
            if config.tie_word_embeddings && name == HEAD {
                if info.shape != *embedding {
                    return Err(LoadError::Shape {
                        file: file.name(),
                        name: name.clone(),
                        found: info.shape.clone(),
                        expected: embedding.clone(),
                    });
                }
                tied_head = Some(index);
            } else if !name.ends_with(IGNORED_SUFFIX) {
                return Err(LoadError::ForeignTensor {
                    file: file.name(),
                    name: name.clone(),
                    problem: foreign_tensor_problem(name, config),
                });
            }
        }
    }
    Ok(tied_head)
}

fn foreign_tensor_problem(name: &str, config: &ModelConfig) -> String {
    let family = config.architectures.first().map_or("", String::as_str);
    let part = if name.ends_with(".bias") {
        "is a bias that config.json does not declare"
    } else if name.contains("_scale") || name.contains("qweight") || name.contains("absmax") {
        "belongs to quantized weights, which are not supported"
    } else {
        "is not part of the model that config.json describes"
    };
    format!("{part}; ignoring it would change the outputs of {family}")
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
