//! Errors of loading a checkpoint or adapter, each with what is needed to fix it.

use std::path::PathBuf;

/// Why a checkpoint or adapter could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}; is this a Hugging Face model directory or a GGUF file?")]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// A required file is missing.
    #[error("{dir} has no {file}; {}", fix_hint(.file))]
    MissingFile {
        /// The directory.
        dir: PathBuf,
        /// The missing file.
        file: &'static str,
    },
    /// A file does not parse.
    #[error("{file} is malformed: {reason}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The architecture is not supported.
    #[error("config.json: architecture {found} is not supported; this build supports {supported}")]
    Architecture {
        /// The architecture in the configuration.
        found: String,
        /// The supported architectures.
        supported: &'static str,
    },
    /// A configuration value is invalid.
    #[error("config.json: {key} = {value} {problem}")]
    Config {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Why it is invalid.
        problem: String,
    },
    /// The files of a model are no longer those that it was loaded from.
    #[error(
        "the weights of {name} have changed on disk since they were loaded; restart the program"
    )]
    Changed {
        /// The model.
        name: String,
    },
    /// The weights of a model that a device has could not be read again for their digest.
    #[error("cannot compute the digest of {name}: {reason}; restart the program")]
    Digest {
        /// The model.
        name: String,
        /// Why.
        reason: String,
    },
    /// The weights are in a format that can run code when loaded.
    #[error(
        "{dir} has its weights in {file}, a pickle file, which is not loaded because it can run code; convert them to safetensors with \
         python3 -c \"import transformers as t; t.AutoModelForCausalLM.from_pretrained('{dir}', dtype='auto').save_pretrained('{dir}')\""
    )]
    Pickle {
        /// The directory.
        dir: PathBuf,
        /// The file.
        file: String,
    },
    /// The device cannot run the model.
    #[error("{reason}")]
    Device {
        /// Why, with the device and what it was asked for.
        reason: String,
    },
    /// A directory that is no checkpoint and has a GGUF file.
    #[error("{dir} has no config.json but {file}; pass the file itself: {}", .dir.join(.file).display())]
    GgufInside {
        /// The directory.
        dir: PathBuf,
        /// The file in it.
        file: String,
    },
    /// A file lacks a tensor.
    #[error("{file} has no tensor {name}; it is incomplete or of another architecture")]
    MissingTensor {
        /// The file, or the directory when no file has it.
        file: String,
        /// The tensor's name.
        name: String,
    },
    /// A tensor that the model does not use but that would change its output.
    #[error("{file}: tensor {name} {problem}")]
    ForeignTensor {
        /// The file.
        file: String,
        /// The tensor's name.
        name: String,
        /// Why it cannot be ignored.
        problem: String,
    },
    /// A tensor's shape does not match the configuration.
    #[error(
        "{file}: tensor {name} has shape {found:?}, but the configuration implies {expected:?}"
    )]
    Shape {
        /// The file.
        file: String,
        /// The tensor's name.
        name: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// The expected shape.
        expected: Vec<usize>,
    },
    /// A tensor holds NaN or infinity.
    #[error("{file}: tensor {name} holds a value that is not finite; the checkpoint is damaged")]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor's name.
        name: String,
    },
    /// The adapter does not match the base model.
    #[error("the adapter does not fit the model: {reason}")]
    AdapterMismatch {
        /// What differs.
        reason: String,
    },
    /// A checkpoint file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
}

/// How to fix a model directory without this file.
fn fix_hint(file: &str) -> &'static str {
    match file {
        "tokenizer.json" => {
            "write it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        }
        "chat_template.jinja" => {
            "a base model has none and cannot chat: use the instruct model, or add the template of its chat format"
        }
        _ => "a model directory must contain config.json, tokenizer.json and *.safetensors",
    }
}

/// The error of a key of `config.json`.
pub(crate) fn invalid(
    key: &'static str,
    value: impl std::fmt::Display,
    problem: &str,
) -> LoadError {
    LoadError::Config {
        key,
        value: value.to_string(),
        problem: problem.to_owned(),
    }
}
