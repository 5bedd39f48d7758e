//! What can go wrong before and during a forward pass, with the fact a person needs to mend it.

use std::path::PathBuf;

/// Why a checkpoint or adapter could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}; is this a Hugging Face model directory?")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that the layout requires is not there.
    #[error("{dir} has no {file}; {}", what_to_do(.file))]
    MissingFile {
        /// The directory.
        dir: PathBuf,
        /// The missing file.
        file: &'static str,
    },
    /// A file is there but does not parse.
    #[error("{file} is malformed: {reason}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The architecture is not one this engine implements.
    #[error("config.json: architecture {found} is not supported; this build serves {supported}")]
    Architecture {
        /// What the configuration names.
        found: String,
        /// What would have been accepted.
        supported: &'static str,
    },
    /// A configuration value cannot describe a model.
    #[error("config.json: {key} = {value} {problem}")]
    Config {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Why it cannot be.
        problem: String,
    },
    /// The weights are in a format that runs code when it is opened.
    #[error(
        "{dir} has its weights in {file}, a pickle, which is not opened because it can run code; write them as safetensors with \
         python3 -c \"import transformers as t; t.AutoModelForCausalLM.from_pretrained('{dir}', dtype='auto').save_pretrained('{dir}')\""
    )]
    Pickle {
        /// The directory.
        dir: PathBuf,
        /// The file.
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
    /// A tensor would change the result and has no place in the model.
    #[error("{file}: tensor {name} {problem}")]
    ForeignTensor {
        /// The file.
        file: String,
        /// The tensor's name.
        name: String,
        /// Why it cannot be passed over.
        problem: String,
    },
    /// A tensor has another shape than the configuration implies.
    #[error("{file}: tensor {name} has shape {found:?}, the configuration implies {expected:?}")]
    Shape {
        /// The file.
        file: String,
        /// The tensor's name.
        name: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// The shape that was expected.
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
    /// The adapter belongs to another model.
    #[error("the adapter does not fit the model: {reason}")]
    AdapterMismatch {
        /// What differs.
        reason: String,
    },
    /// Writing a checkpoint failed.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What mends a model directory without this file.
fn what_to_do(file: &str) -> &'static str {
    match file {
        "tokenizer.json" => {
            "write it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        }
        "chat_template.jinja" => {
            "a base model has none and cannot be talked to: take the instruct model, or put the template of its chat format there"
        }
        _ => "a model directory holds config.json, tokenizer.json and *.safetensors",
    }
}

/// Why a forward or backward pass was refused. The model is unchanged afterwards.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// A token id is outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A row or sequence has no new token.
    #[error("a row without new tokens cannot be run")]
    Empty,
    /// `Sequence::start` is zero or past the end.
    #[error("first scored position {start} is outside 1..{len}")]
    Start {
        /// The position asked for.
        start: usize,
        /// Number of tokens.
        len: usize,
    },
    /// The temperature is not a positive finite number.
    #[error("temperature {0} must be positive and finite")]
    Temperature(String),
    /// A vector handed back by a loss has the wrong length.
    #[error("{what}: {found} values for {expected} scored tokens")]
    Length {
        /// Which vector.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length it must have.
        expected: usize,
    },
    /// The adapter was made for a model of another shape.
    #[error("the adapter was made for a model of another shape")]
    Adapter,
    /// The pool of attention memory has too few blocks for the rows.
    #[error(
        "the attention memory is used up; give it more blocks (engine.cache_megabytes) or run fewer rows"
    )]
    Memory,
}
