//! Weights from the files of a checkpoint: every name and shape is checked against the configuration before a value is
//! read, and a tensor that has no place in the model is refused, because what is left out in silence is served wrong.

use std::collections::BTreeMap;

use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::files::ModelFiles;
use crate::tensors::TensorFile;
use crate::weights::{Entry, Weights, entries};

/// Buffers that old checkpoints carry and that follow from their configuration.
const DERIVED: &str = "rotary_emb.inv_freq";

const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

/// Reads a checkpoint, converting to f32, tensor by tensor.
pub(super) fn load(config: &ModelConfig, files: &ModelFiles) -> Result<Weights, LoadError> {
    let entries = entries(config);
    let opened = files.open_weights()?;
    let sources = plan(&entries, &opened, files)?;
    let foreign = |name: &String| !entries.iter().any(|entry| entry.name == *name);
    let mut tied_head = None;
    for file in &opened {
        for name in file.tensors.keys().filter(|name| foreign(name)) {
            if config.tie_word_embeddings && name == HEAD {
                tied_head = Some(file);
            } else if !name.ends_with(DERIVED) {
                return Err(LoadError::ForeignTensor {
                    file: file.name(),
                    name: name.clone(),
                    problem: why_foreign(name, config),
                });
            }
        }
    }
    let mut weights = Weights::blank(config);
    let slots = weights.tensors_mut(config).into_iter().zip(&sources);
    for ((_, mut rest), (file, entry)) in slots {
        file.read(&entry.name, |values| {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(values.len());
            piece.copy_from_slice(values);
            rest = after;
        })?;
    }
    if let Some(file) = tied_head {
        same_as_embedding(file, &weights)?;
    }
    Ok(weights)
}

/// The file of each tensor, in the order of the entries. Of several faults always the same one is told, by name.
fn plan<'a>(
    entries: &'a [Entry],
    opened: &'a [TensorFile],
    files: &ModelFiles,
) -> Result<Vec<(&'a TensorFile, &'a Entry)>, LoadError> {
    let mut missing: BTreeMap<&str, &Entry> =
        entries.iter().map(|e| (e.name.as_str(), e)).collect();
    let mut holders = BTreeMap::new();
    for file in opened {
        for (name, described) in &file.tensors {
            let Some(entry) = missing.remove(name.as_str()) else {
                continue;
            };
            if described.shape != entry.shape {
                return Err(LoadError::Shape {
                    file: file.name(),
                    name: name.clone(),
                    found: described.shape.clone(),
                    expected: entry.shape.clone(),
                });
            }
            holders.insert(name.as_str(), file);
        }
    }
    let find = |entry: &'a Entry| Some((*holders.get(entry.name.as_str())?, entry));
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

fn why_foreign(name: &str, config: &ModelConfig) -> String {
    let family = config.architectures.first().map_or("", String::as_str);
    let part = if name.ends_with(".bias") {
        "is a bias that config.json does not announce"
    } else if name.contains("_scale") || name.contains("qweight") || name.contains("absmax") {
        "belongs to quantized weights, which are not supported"
    } else {
        "has no place in the model that config.json describes"
    };
    format!("{part}; {family} served without it would answer otherwise")
}

/// A head in the file of a model whose head is the embedding must be that: versions of transformers differ in which they take.
fn same_as_embedding(file: &TensorFile, weights: &Weights) -> Result<(), LoadError> {
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
            "differs from {EMBEDDING}, although config.json says that they are one; set tie_word_embeddings to false there, or leave the tensor out"
        ),
    })
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
