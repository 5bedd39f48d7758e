//! The files of a checkpoint in Hugging Face layout, from a directory or from the binary itself.
//! It only finds and reads them; their owners parse.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::error::LoadError;

type Bytes = Cow<'static, [u8]>;

/// A checkpoint's files.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    name: String,
    config: Bytes,
    tokenizer: Option<Bytes>,
    tokenizer_config: Option<Bytes>,
    template: Option<Bytes>,
    generation: Option<Bytes>,
    weights: Weights,
}

#[derive(Debug, Clone)]
enum Weights {
    Embedded(&'static [u8]),
    Files(Vec<PathBuf>),
}

impl ModelFiles {
    /// The files of a model directory: `config.json`, `*.safetensors`, and when there are any
    /// `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` (or `chat_template` in
    /// `tokenizer_config.json`) and `generation_config.json`.
    ///
    /// # Errors
    /// A missing or unreadable file, by name.
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
        if let (None, Some(config)) = (&template, &tokenizer_config) {
            template = template_in(config)?;
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
            generation: optional("generation_config.json")?,
            weights: Weights::Files(weight_files(dir)?),
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
            generation: Some(Cow::Borrowed(include_bytes!(
                "../embedded/generation_config.json"
            ))),
            weights: Weights::Embedded(include_bytes!("../embedded/model.safetensors")),
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
            std::fs::write(&path, bytes).map_err(|source| LoadError::Write { path, source })?;
        }
        Ok(())
    }

    /// Hands each weight file's bytes to `each`, one at a time.
    ///
    /// # Errors
    /// Reading, or what `each` returns.
    pub(crate) fn each_weight_file(
        &self,
        mut each: impl FnMut(&str, &[u8]) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        match &self.weights {
            Weights::Embedded(bytes) => each("model.safetensors", bytes),
            Weights::Files(paths) => {
                for path in paths {
                    each(&path.display().to_string(), &read(path)?)?;
                }
                Ok(())
            }
        }
    }
}

fn read(path: &Path) -> Result<Bytes, LoadError> {
    std::fs::read(path)
        .map(Cow::Owned)
        .map_err(|source| LoadError::Read {
            path: path.to_owned(),
            source,
        })
}

fn template_in(tokenizer_config: &[u8]) -> Result<Option<Bytes>, LoadError> {
    let value: serde_json::Value =
        serde_json::from_slice(tokenizer_config).map_err(|e| LoadError::Malformed {
            file: "tokenizer_config.json".to_owned(),
            reason: e.to_string(),
        })?;
    let template = match value.get("chat_template") {
        // Several by name: `default` is what transformers takes for a conversation without tools.
        Some(serde_json::Value::Array(named)) => named
            .iter()
            .find(|one| one.get("name").is_some_and(|name| name == "default"))
            .and_then(|one| one.get("template")),
        other => other,
    };
    let template = template.and_then(serde_json::Value::as_str);
    Ok(template.map(|t| Cow::Owned(t.as_bytes().to_vec())))
}

fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let entries = std::fs::read_dir(dir).map_err(|source| LoadError::Read {
        path: dir.to_owned(),
        source,
    })?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
        // What a trainer leaves beside a checkpoint is as large as the weights and none of them.
        .filter(|path| {
            path.file_name()
                .is_none_or(|name| name != "optimizer.safetensors")
        })
        .collect();
    paths.sort();
    if paths.is_empty() {
        return Err(LoadError::MissingFile {
            dir: dir.to_owned(),
            file: "*.safetensors",
        });
    }
    Ok(paths)
}
