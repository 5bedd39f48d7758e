//! The files of a checkpoint in Hugging Face layout, from a directory or from the binary itself.
//! It only finds and reads them; their owners parse.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::LoadError;
use crate::tensors::{Source, TensorFile};

type Bytes = Cow<'static, [u8]>;

/// A checkpoint's files.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    name: String,
    config: Bytes,
    tokenizer: Option<Bytes>,
    tokenizer_config: Option<Bytes>,
    template: Option<Bytes>,
    /// Further templates by their names, such as `tool_use`.
    templates: BTreeMap<String, Bytes>,
    generation: Option<Bytes>,
    weights: Vec<Shard>,
}

/// A file of weights.
#[derive(Debug, Clone)]
struct Shard {
    source: Source,
    /// The tensors that are to be taken from it; none = all that it has.
    only: Option<BTreeSet<String>>,
}

impl ModelFiles {
    /// The files of a model directory: `config.json`, `model.safetensors` (or what `model.safetensors.index.json` lists, or
    /// where there is neither all other `*.safetensors`), and when there are any `tokenizer.json`, `tokenizer_config.json`,
    /// `chat_template.jinja` and `additional_chat_templates/*.jinja` (or `chat_template` in `tokenizer_config.json`) and
    /// `generation_config.json`.
    ///
    /// # Errors
    /// A missing or unreadable file, by name, or weights that are a pickle.
    pub fn dir(dir: &Path) -> Result<Self, LoadError> {
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
            for (name, text) in templates_in(config)? {
                templates.entry(name).or_insert(text);
            }
        }
        if template.is_none() {
            template = templates.remove(DEFAULT);
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

    /// The small policy inside the binary; its model card stands beside its files.
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
                source: Source::Embedded(include_bytes!("../embedded/model.safetensors")),
                only: None,
            }],
        }
    }

    /// What people call the model: the directory's name, or that of the embedded policy.
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

    /// Text of the template for conversations with tools, where the checkpoint has one of its own for them.
    pub fn tool_template(&self) -> Option<&[u8]> {
        self.templates.get("tool_use").map(AsRef::as_ref)
    }

    /// Text of `generation_config.json`, when there is one.
    pub fn generation(&self) -> Option<&[u8]> {
        self.generation.as_deref()
    }

    /// Writes everything but configuration and weights into `dir`, which must exist, so that other weights of the
    /// same architecture can be used from there.
    ///
    /// # Errors
    /// Writing, with the path.
    pub fn save_text(&self, dir: &Path) -> Result<(), LoadError> {
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
            let folder = dir.join(ADDITIONAL);
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

    /// Opens the files of weights and hands over what they hold: tensors that the index does not list are left out.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged, a tensor that the index lists and its file lacks, one that stands in
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
                        problem: format!("stands in {other} as well; move one of the files away"),
                    });
                }
            }
            opened.push(file);
        }
        Ok(opened)
    }
}

/// Folder of templates that have names.
const ADDITIONAL: &str = "additional_chat_templates";

/// Name of the template of all conversations for which there is no other.
const DEFAULT: &str = "default";

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

/// Names in a directory, in their order; none where there is no directory.
fn names_in(dir: &Path) -> Result<Vec<String>, LoadError> {
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
    let folder = dir.join(ADDITIONAL);
    let mut templates = BTreeMap::new();
    for file in names_in(&folder)? {
        if let Some(name) = file.strip_suffix(".jinja") {
            templates.insert(name.to_owned(), read(&folder.join(&file))?);
        }
    }
    Ok(templates)
}

/// The templates in `tokenizer_config.json` by their names; a single one is the default.
fn templates_in(tokenizer_config: &[u8]) -> Result<Vec<(String, Bytes)>, LoadError> {
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
                // A name that is to be the name of a file must be nothing else.
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                let plain = !name.is_empty() && name.chars().all(plain);
                plain.then(|| Some((name.to_owned(), text(one.get("template")?)?)))?
            })
            .collect(),
        Some(one) => text(one)
            .map(|text| (DEFAULT.to_owned(), text))
            .into_iter()
            .collect(),
        None => Vec::new(),
    })
}

/// The files that hold the weights, in the order of precedence that transformers has.
fn weight_files(dir: &Path) -> Result<Vec<Shard>, LoadError> {
    let whole = |name: &str| Shard {
        source: Source::File(dir.join(name)),
        only: None,
    };
    if dir.join("model.safetensors").is_file() {
        return Ok(vec![whole("model.safetensors")]);
    }
    let index = dir.join("model.safetensors.index.json");
    if index.is_file() {
        return indexed(dir, &index);
    }
    let names = names_in(dir)?;
    let shards: Vec<Shard> = names
        .iter()
        .filter(|name| name.ends_with(".safetensors"))
        // What a trainer leaves beside a checkpoint is as large as the weights and none of them.
        .filter(|name| {
            !matches!(
                name.as_str(),
                "optimizer.safetensors" | "adapter_model.safetensors"
            )
        })
        .map(|name| whole(name))
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

/// The shards that an index lists, and which tensors each is to give.
fn indexed(dir: &Path, index: &Path) -> Result<Vec<Shard>, LoadError> {
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
                "it places tensor {tensor} in \"{file}\", which is not the name of a file beside it"
            )));
        }
        files.entry(file).or_default().insert(tensor.clone());
    }
    let mut shards = Vec::with_capacity(files.len());
    for (file, tensors) in files {
        let path = dir.join(file);
        if !path.is_file() {
            return Err(malformed(format!(
                "it lists {file}, which is not there; fetch the missing part of the checkpoint"
            )));
        }
        shards.push(Shard {
            source: Source::File(path),
            only: Some(tensors),
        });
    }
    Ok(shards)
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
