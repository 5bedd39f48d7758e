//! Models in GGUF, the one-file format of llama.cpp: metadata and tensors become the files of a checkpoint in Hugging
//! Face layout, so that nothing else knows the format.
//!
//! - `header`: metadata and tensor list of an untrusted file.
//! - `config`, `tokenizer`: `config.json` and `tokenizer.json` from the metadata.
//! - `tensors`: names, order of rows. `blocks`: the values of quantized blocks.
//!
//! Files are only read; nothing here writes GGUF.

pub(crate) mod blocks;
mod config;
mod header;
mod tensors;
mod tokenizer;

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::LoadError;
use crate::stored::StoredTensor;
use header::Header;

/// The files of a checkpoint, made from a GGUF file.
pub(crate) struct CheckpointFiles {
    pub(crate) config: Vec<u8>,
    pub(crate) tokenizer: Vec<u8>,
    pub(crate) tokenizer_config: Vec<u8>,
    pub(crate) generation: Vec<u8>,
    /// `None` for a base model without a chat template.
    pub(crate) template: Option<Vec<u8>>,
    /// Templates for special uses, by name.
    pub(crate) templates: BTreeMap<String, Vec<u8>>,
}

/// Reads everything but the weights.
///
/// # Errors
/// A damaged file, or a model or tokenizer that is not supported, with the key that says so.
pub(crate) fn read(path: &Path) -> Result<CheckpointFiles, LoadError> {
    let header = open(path)?;
    let text = |value: serde_json::Value| value.to_string().into_bytes();
    let mut templates = BTreeMap::new();
    if let Some(template) = header.text("tokenizer.chat_template.tool_use")? {
        templates.insert("tool_use".to_owned(), template.as_bytes().to_vec());
    }
    Ok(CheckpointFiles {
        config: text(config::config(&header, path)?),
        tokenizer: tokenizer::tokenizer(&header)?,
        tokenizer_config: text(tokenizer::tokenizer_config(&header)?),
        generation: text(tokenizer::generation_config(&header)?),
        template: header
            .text("tokenizer.chat_template")?
            .map(|template| template.as_bytes().to_vec()),
        templates,
    })
}

/// The tensors by their names in a Hugging Face checkpoint, with their shapes.
///
/// # Errors
/// As [`read`].
pub(crate) fn tensors(
    path: &Path,
) -> Result<BTreeMap<String, (StoredTensor, Vec<usize>)>, LoadError> {
    let header = open(path)?;
    let fields = config::config(&header, path)?;
    config::checkpoint_tensors(&header, &config::parse(&header, &fields)?)
}

fn open(path: &Path) -> Result<Header, LoadError> {
    let header = Header::open(path)?;
    let parts = header.integer("split.count")?.unwrap_or(1);
    if parts > 1 {
        return Err(header.error(format!(
            "it is one of {parts} parts of a model; join them: llama-gguf-split --merge FIRST.gguf OUT.gguf"
        )));
    }
    Ok(header)
}

#[cfg(test)]
#[path = "gguf_tests.rs"]
mod tests;
