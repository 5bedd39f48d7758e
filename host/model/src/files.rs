//! The files of a checkpoint in Hugging Face layout, from a directory or embedded in the binary, or made from a GGUF
//! file. This module only locates and reads them; their users parse them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::LoadError;
use crate::gguf;
use crate::tensors::{TensorFile, TensorSource};

type Bytes = Cow<'static, [u8]>;

/// A checkpoint's files.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    name: String,
    config: Bytes,
    tokenizer: Option<Bytes>,
    tokenizer_config: Option<Bytes>,
    template: Option<Bytes>,
    /// Named templates, such as `tool_use`.
    templates: BTreeMap<String, Bytes>,
    generation: Option<Bytes>,
    weights: Vec<Shard>,
}

/// A weight file.
#[derive(Debug, Clone)]
struct Shard {
    source: TensorSource,
    /// The tensors to read from it; `None` = all.
    only: Option<BTreeSet<String>>,
}

impl ModelFiles {
    /// Locates the files of a model: a directory in Hugging Face layout, or a GGUF file.
    ///
    /// # Errors
    /// As [`ModelFiles::from_dir`], or a GGUF file that is damaged or not supported.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let gguf = |path: &Path| {
            path.extension()
                .is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
        };
        if path.is_file() || gguf(path) {
            return Self::from_gguf(path);
        }
        if path.is_dir() && !path.join("config.json").is_file() {
            let inside: Vec<_> = file_names(path)?
                .into_iter()
                .filter(|name| gguf(Path::new(name)))
                .collect();
            if let Some(file) = inside.first() {
                return Err(LoadError::GgufInside {
                    dir: path.to_owned(),
                    file: file.clone(),
                });
            }
        }
        Self::from_dir(path)
    }

    /// Makes the files of a checkpoint from a GGUF file of llama.cpp. The model's name is the file's.
    ///
    /// # Errors
    /// A file that cannot be read, is damaged, or has a model or tokenizer that is not supported.
    pub fn from_gguf(path: &Path) -> Result<Self, LoadError> {
        let files = gguf::read(path)?;
        let name = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned());
        let templates = files.templates.into_iter();
        Ok(Self {
            name: name.unwrap_or_else(|| "model".to_owned()),
            config: Cow::Owned(files.config),
            tokenizer: Some(Cow::Owned(files.tokenizer)),
            tokenizer_config: Some(Cow::Owned(files.tokenizer_config)),
            template: files.template.map(Cow::Owned),
            templates: templates
                .map(|(name, text)| (name, Cow::Owned(text)))
                .collect(),
            generation: Some(Cow::Owned(files.generation)),
            weights: vec![Shard {
                source: TensorSource::Gguf(path.to_owned()),
                only: None,
            }],
        })
    }

    /// Locates the files of a model directory: `config.json`; `model.safetensors`, or the files listed in
    /// `model.safetensors.index.json`, or else all other `*.safetensors`; and the optional files `tokenizer.json`,
    /// `tokenizer_config.json`, `chat_template.jinja` and `additional_chat_templates/*.jinja` (or `chat_template` in
    /// `tokenizer_config.json`) and `generation_config.json`.
    ///
    /// # Errors
    /// A missing or unreadable file, by name, or weights in a pickle file.
    pub fn from_dir(dir: &Path) -> Result<Self, LoadError> {
        let required = |file: &'static str| {
            let path = dir.join(file);
            if !path.is_file() {
                return Err(LoadError::MissingFile {
                    dir: dir.to_owned(),
                    file,
                });
            }
            read(&path)
        };
        let optional = |file: &str| {
            let path = dir.join(file);
            path.is_file().then(|| read(&path)).transpose()
        };
        let mut template = optional("chat_template.jinja")?;
        let tokenizer_config = optional("tokenizer_config.json")?;
        let mut templates = additional_templates(dir)?;
        if let (None, Some(config)) = (&template, &tokenizer_config) {
            for (name, text) in config_templates(config)? {
                templates.entry(name).or_insert(text);
            }
        }
        if template.is_none() {
            template = templates.remove(DEFAULT_TEMPLATE);
        }
        let name = dir
            .canonicalize()
            .ok()
            .as_deref()
            .and_then(Path::file_name)
            .map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned());
        Ok(Self {
            name,
            config: required("config.json")?,
            tokenizer: optional("tokenizer.json")?,
            tokenizer_config,
            template,
            templates,
            generation: optional("generation_config.json")?,
            weights: weight_files(dir)?,
        })
    }

    /// The small model embedded in the binary; its model card is next to its files.
    pub fn embedded() -> Self {
        Self {
            name: "clawhost-mini".to_owned(),
            config: Cow::Borrowed(include_bytes!("../embedded/config.json")),
            tokenizer: Some(Cow::Borrowed(include_bytes!("../embedded/tokenizer.json"))),
            tokenizer_config: Some(Cow::Borrowed(include_bytes!(
                "../embedded/tokenizer_config.json"
            ))),
            template: Some(Cow::Borrowed(include_bytes!(
                "../embedded/chat_template.jinja"
            ))),
            templates: BTreeMap::new(),
            generation: Some(Cow::Borrowed(include_bytes!(
                "../embedded/generation_config.json"
            ))),
            weights: vec![Shard {
                source: TensorSource::Embedded(include_bytes!("../embedded/model.safetensors")),
                only: None,
            }],
        }
    }

    /// The model's name: that of the directory, or of the embedded model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Text of `config.json`.
    pub fn config(&self) -> &[u8] {
        &self.config
    }

    /// Text of `tokenizer.json`.
    ///
    /// # Errors
    /// The checkpoint has none.
    pub fn tokenizer(&self) -> Result<&[u8], LoadError> {
        self.tokenizer
            .as_deref()
            .ok_or_else(|| LoadError::MissingFile {
                dir: PathBuf::from(&self.name),
                file: "tokenizer.json",
            })
    }

    /// Text of `tokenizer_config.json`, when there is one.
    pub fn tokenizer_config(&self) -> Option<&[u8]> {
        self.tokenizer_config.as_deref()
    }

    /// Text of the chat template.
    ///
    /// # Errors
    /// The checkpoint has none.
    pub fn template(&self) -> Result<&[u8], LoadError> {
        self.template
            .as_deref()
            .ok_or_else(|| LoadError::MissingFile {
                dir: PathBuf::from(&self.name),
                file: "chat_template.jinja",
            })
    }

    /// Text of the separate chat template for conversations with tools, if the checkpoint has one.
    pub fn tool_template(&self) -> Option<&[u8]> {
        self.templates.get("tool_use").map(AsRef::as_ref)
    }

    /// Text of `generation_config.json`, when there is one.
    pub fn generation_config(&self) -> Option<&[u8]> {
        self.generation.as_deref()
    }

    /// Writes the tokenizer, the chat templates and the generation configuration into `dir`, which must exist, so that
    /// other weights of the same architecture can be loaded from there.
    ///
    /// # Errors
    /// A write error, with the path.
    pub fn save_tokenizer_and_templates(&self, dir: &Path) -> Result<(), LoadError> {
        let files = [
            ("tokenizer.json", &self.tokenizer),
            ("tokenizer_config.json", &self.tokenizer_config),
            ("chat_template.jinja", &self.template),
            ("generation_config.json", &self.generation),
        ];
        for (name, bytes) in files {
            let Some(bytes) = bytes else { continue };
            let path = dir.join(name);
            write(path, bytes)?;
        }
        if !self.templates.is_empty() {
            let folder = dir.join(ADDITIONAL_TEMPLATES_DIR);
            std::fs::create_dir_all(&folder).map_err(|source| LoadError::Write {
                path: folder.clone(),
                source,
            })?;
            for (name, bytes) in &self.templates {
                write(folder.join(format!("{name}.jinja")), bytes)?;
            }
        }
        Ok(())
    }

    /// Whether all matrices of the weight files are in bf16, by their headers.
    ///
    /// # Errors
    /// A weight file that cannot be read, or whose header is damaged.
    pub fn is_in_bf16(&self) -> Result<bool, LoadError> {
        let files = self.open_weights()?;
        let mut tensors = files.iter().flat_map(|file| file.tensors.values());
        Ok(tensors.all(|tensor| tensor.shape.len() < 2 || tensor.is_in_bf16()))
    }

    /// Opens the weight files; tensors that the index does not list are ignored.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged, a tensor that the index lists but its file lacks, or one that is in
    /// two files.
    pub(crate) fn open_weights(&self) -> Result<Vec<TensorFile>, LoadError> {
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        let mut opened = Vec::with_capacity(self.weights.len());
        for shard in &self.weights {
            let mut file = TensorFile::open(shard.source.clone())?;
            if let Some(only) = &shard.only {
                if let Some(name) = only.iter().find(|name| !file.tensors.contains_key(*name)) {
                    return Err(LoadError::MissingTensor {
                        file: file.name(),
                        name: name.clone(),
                    });
                }
                file.tensors.retain(|name, _| only.contains(name));
            }
            for name in file.tensors.keys() {
                if let Some(other) = seen.insert(name.clone(), file.name()) {
                    return Err(LoadError::ForeignTensor {
                        file: file.name(),
                        name: name.clone(),
                        problem: format!("is also in {other}; remove one of the files"),
                    });
                }
            }
            opened.push(file);
        }
        Ok(opened)
    }
}

/// Directory of named templates.
const ADDITIONAL_TEMPLATES_DIR: &str = "additional_chat_templates";

/// Name of the default template.
const DEFAULT_TEMPLATE: &str = "default";

fn write(path: PathBuf, bytes: &[u8]) -> Result<(), LoadError> {
    std::fs::write(&path, bytes).map_err(|source| LoadError::Write { path, source })
}

fn read(path: &Path) -> Result<Bytes, LoadError> {
    std::fs::read(path)
        .map(Cow::Owned)
        .map_err(|source| LoadError::Read {
            path: path.to_owned(),
            source,
        })
}

/// Sorted file names in a directory; empty when it does not exist.
fn file_names(dir: &Path) -> Result<Vec<String>, LoadError> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(dir).map_err(|source| LoadError::Read {
        path: dir.to_owned(),
        source,
    })?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

fn additional_templates(dir: &Path) -> Result<BTreeMap<String, Bytes>, LoadError> {
    let folder = dir.join(ADDITIONAL_TEMPLATES_DIR);
    let mut templates = BTreeMap::new();
    for file in file_names(&folder)? {
        if let Some(name) = file.strip_suffix(".jinja") {
            templates.insert(name.to_owned(), read(&folder.join(&file))?);
        }
    }
    Ok(templates)
}

/// The templates in `tokenizer_config.json` by name; a single one is the default.
fn config_templates(tokenizer_config: &[u8]) -> Result<Vec<(String, Bytes)>, LoadError> {
    let value: Value =
        serde_json::from_slice(tokenizer_config).map_err(|e| LoadError::Malformed {
            file: "tokenizer_config.json".to_owned(),
            reason: e.to_string(),
        })?;
    let text = |value: &Value| value.as_str().map(|t| Cow::Owned(t.as_bytes().to_vec()));
    Ok(match value.get("chat_template") {
        Some(Value::Array(named)) => named
            .iter()
            .filter_map(|one| {
                let name = one.get("name")?.as_str()?;
                // The name becomes a file name, so it must not contain a path.
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                let plain = !name.is_empty() && name.chars().all(plain);
                plain.then(|| Some((name.to_owned(), text(one.get("template")?)?)))?
            })
            .collect(),
        Some(one) => text(one)
            .map(|text| (DEFAULT_TEMPLATE.to_owned(), text))
            .into_iter()
            .collect(),
        None => Vec::new(),
    })
}

/// Finds the weight files, with the precedence of transformers.
fn weight_files(dir: &Path) -> Result<Vec<Shard>, LoadError> {
    let all_tensors = |name: &str| Shard {
        source: TensorSource::File(dir.join(name)),
        only: None,
    };
    if dir.join("model.safetensors").is_file() {
        return Ok(vec![all_tensors("model.safetensors")]);
    }
    let index = dir.join("model.safetensors.index.json");
    if index.is_file() {
        return indexed_shards(dir, &index);
    }
    let names = file_names(dir)?;
    let shards: Vec<Shard> = names
        .iter()
        .filter(|name| name.ends_with(".safetensors"))
        // Files that trainers leave next to a checkpoint.
        .filter(|name| {
            !matches!(
                name.as_str(),
                "optimizer.safetensors" | "adapter_model.safetensors"
            )
        })
        .map(|name| all_tensors(name))
        .collect();
    if !shards.is_empty() {
        return Ok(shards);
    }
    let pickle = |name: &&String| {
        let endings = [".bin", ".pt", ".pth", ".bin.index.json"];
        endings.iter().any(|ending| name.ends_with(ending)) && !name.starts_with("training_args")
    };
    Err(match names.iter().find(pickle) {
        Some(file) => LoadError::Pickle {
            dir: dir.to_owned(),
            file: file.clone(),
        },
        None => LoadError::MissingFile {
            dir: dir.to_owned(),
            file: "*.safetensors",
        },
    })
}

/// The shards that an index lists, and the tensors to read from each.
fn indexed_shards(dir: &Path, index: &Path) -> Result<Vec<Shard>, LoadError> {
    let malformed = |reason: String| LoadError::Malformed {
        file: index.display().to_string(),
        reason,
    };
    let value: Value =
        serde_json::from_slice(&read(index)?).map_err(|e| malformed(e.to_string()))?;
    let map = value.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| malformed("it has no weight_map".to_owned()))?;
    let mut files: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in map {
        let file = file.as_str().unwrap_or_default();
        if file.is_empty() || file.contains(['/', '\\']) {
            return Err(malformed(format!(
                "it maps tensor {tensor} to \"{file}\", which is not a file name in the same directory"
            )));
        }
        files.entry(file).or_default().insert(tensor.clone());
    }
    let mut shards = Vec::with_capacity(files.len());
    for (file, tensors) in files {
        let path = dir.join(file);
        if !path.is_file() {
            return Err(malformed(format!(
                "it lists {file}, which does not exist; download the missing shard"
            )));
        }
        shards.push(Shard {
            source: TensorSource::File(path),
            only: Some(tensors),
        });
    }
    Ok(shards)
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
