//! Loads the weights of a checkpoint. Every name and shape is checked against the configuration before a value is read,
//! and an unexpected tensor is an error, because ignoring it would change the model's outputs without notice. Weights
//! that are to be quantized are quantized while they are read.

use std::collections::BTreeMap;

use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::files::ModelFiles;
use crate::quantized::Format;
use crate::tensors::TensorFile;
use crate::weights::{TensorEntry, Weights, tensor_entries};

/// Buffers in old checkpoints that follow from the configuration.
const IGNORED_SUFFIX: &str = "rotary_emb.inv_freq";

const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

/// Checks the names and shapes of a checkpoint's tensors without reading their values.
pub(crate) fn check(config: &ModelConfig, files: &ModelFiles) -> Result<(), LoadError> {
    let entries = tensor_entries(config);
    let opened = files.open_weights()?;
    map_tensors(&entries, &opened, files)?;
    find_tied_head(config, &entries, &opened)?;
    Ok(())
}

/// Reads a checkpoint tensor by tensor and converts it to f32, or the weights of its linear layers to `format`.
pub(crate) fn load(
    config: &ModelConfig,
    files: &ModelFiles,
    format: Option<Format>,
) -> Result<Weights, LoadError> {
    let entries = tensor_entries(config);
    let opened = files.open_weights()?;
    let sources = map_tensors(&entries, &opened, files)?;
    let tied_head = find_tied_head(config, &entries, &opened)?;
    let mut weights = match format {
        None => Weights::zeros(config),
        Some(format) => Weights::quantized(config, format),
    };
    // In the order of the entries, so that the parts of a fused weight are appended in order.
    for (file, entry) in &sources {
        if let Some(weight) = weights.quantized_mut(entry) {
            file.read_quantized(&entry.name, weight)?;
        }
    }
    let in_f32: BTreeMap<String, &TensorFile> = sources
        .iter()
        .map(|(file, entry)| (entry.name.clone(), *file))
        .collect();
    for (name, mut rest) in weights.tensors_mut(config) {
        let file = in_f32.get(&name).expect("every tensor has a file");
        file.read(&name, |values| {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(values.len());
            piece.copy_from_slice(values);
            rest = after;
        })?;
    }
    if let Some(file) = tied_head {
        check_tied_head(file, &weights)?;
    }
    Ok(weights)
}

/// Finds the file of each tensor, in the order of the entries. Of several errors, always reports the same one.
fn map_tensors<'a>(
    entries: &'a [TensorEntry],
    opened: &'a [TensorFile],
    files: &ModelFiles,
) -> Result<Vec<(&'a TensorFile, &'a TensorEntry)>, LoadError> {
    let mut missing: BTreeMap<&str, &TensorEntry> =
        entries.iter().map(|e| (e.name.as_str(), e)).collect();
    let mut file_of = BTreeMap::new();
    for file in opened {
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
            file_of.insert(name.as_str(), file);
        }
    }
    let find = |entry: &'a TensorEntry| Some((*file_of.get(entry.name.as_str())?, entry));
    let found: Vec<_> = entries.iter().filter_map(find).collect();
    match missing.into_keys().next() {
        None => Ok(found),
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
fn find_tied_head<'a>(
    config: &ModelConfig,
    entries: &[TensorEntry],
    opened: &'a [TensorFile],
) -> Result<Option<&'a TensorFile>, LoadError> {
    let foreign = |name: &String| !entries.iter().any(|entry| entry.name == *name);
    let mut tied_head = None;
    for file in opened {
        for name in file.tensors.keys().filter(|name| foreign(name)) {
            if config.tie_word_embeddings && name == HEAD {
                tied_head = Some(file);
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

/// Checks that the head of a checkpoint with tied embeddings equals the embedding: versions of transformers differ in
/// which of them they use.
fn check_tied_head(file: &TensorFile, weights: &Weights) -> Result<(), LoadError> {
    let mut left = weights.embed.as_slice();
    let mut same = true;
    file.read(HEAD, |values| {
        let own = left.get(..values.len());
        same &= own == Some(values);
        left = left.get(values.len()..).unwrap_or_default();
    })?;
    if same && left.is_empty() {
        return Ok(());
    }
    Err(LoadError::ForeignTensor {
        file: file.name(),
        name: HEAD.to_owned(),
        problem: format!(
            "differs from {EMBEDDING}, although config.json sets tie_word_embeddings; set it to false or remove the tensor"
        ),
    })
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
