//! Servers of the arms of an experiment: started in this process on free local ports, each with its own data directory.
//!
//! A demo and an evaluation compare servers that differ only in their configuration. This module holds what they share;
//! the conversations and the analysis are in `clawhost-evaluation`, which knows nothing of this process.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clawhost_evaluation::{Endpoint, Track};
use serde_json::Value;

use crate::config::Config;
use crate::serve::Server;

/// The base configuration of every arm: the file's, or the model's defaults, on a free local port without keys.
pub(crate) fn configuration(file: Option<&Path>, model: Option<&Path>) -> Result<Config> {
    let mut config = Config::load(file, model)?;
    config.server.host = "127.0.0.1".to_owned();
    config.server.port = 0;
    config.keys = Vec::new();
    Ok(config)
}

/// The HTTP endpoint of a server of this process.
pub(crate) fn endpoint(server: &Server) -> Endpoint {
    Endpoint {
        url: server.url().to_owned(),
        model: server.model().to_owned(),
        api_key: api_key(),
    }
}

/// API key from the environment; servers of this process accept it like any other server.
pub(crate) fn api_key() -> Option<String> {
    std::env::var("CLAWHOST_API_KEY")
        .ok()
        .filter(|key| !key.is_empty())
}

/// What a report says about a server that trains. `health` is its response to `/healthz`.
pub(crate) fn server_facts(
    server: &Server,
    config: &Config,
    health: &Value,
) -> Vec<(String, String)> {
    let plugins = health.get("plugins").and_then(Value::as_array);
    let plugin = |plugin: &Value| {
        let field = |name: &str| {
            plugin
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or("unknown")
        };
        format!("{} (sha256 {})", field("name"), field("digest"))
    };
    let plugins: Vec<String> = plugins.into_iter().flatten().map(plugin).collect();
    let training = &config.training;
    let method = serde_json::to_value(training.method).unwrap_or_default();
    [
        ("program", format!("clawhost {}", env!("CARGO_PKG_VERSION"))),
        ("model", server.model().to_owned()),
        (
            "weights sha256",
            server.engine().model().digest().to_owned(),
        ),
        ("plugins", plugins.join("\n")),
        (
            "training method",
            method.as_str().unwrap_or_default().to_owned(),
        ),
        (
            "training step",
            format!(
                "{} samples, {} epochs, learning rate {}, LoRA of rank {}",
                training.batch,
                training.epochs,
                training.optimizer.learning_rate,
                training.lora.rank
            ),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Parser of `--persona`.
pub(crate) fn persona_values() -> impl TypedValueParser<Value = Track> {
    let known = Track::ALL.map(|track| PossibleValue::new(track.name()).help(track.about()));
    PossibleValuesParser::new(known).try_map(|name| name.parse::<Track>())
}

/// The data directory of all arms; a temporary one is removed on drop.
pub(crate) struct DataDir {
    path: PathBuf,
    temporary: bool,
}

impl DataDir {
    /// Opens the directory `kept`, which must not contain data of any of `arms` yet, or creates a temporary one.
    pub(crate) fn open(kept: Option<&Path>, arms: &[String]) -> Result<DataDir> {
        let create = |path: &Path| {
            std::fs::create_dir_all(path)
                .with_context(|| format!("cannot create the data directory {}", path.display()))
        };
        if let Some(path) = kept {
            for arm in arms {
                anyhow::ensure!(
                    !path.join(arm).exists(),
                    "{} contains the data of an earlier run; pass a new directory with --data",
                    path.display()
                );
            }
            create(path)?;
            return Ok(DataDir {
                path: path.to_owned(),
                temporary: false,
            });
        }
        let started = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos());
        let name = format!("clawhost-arms-{}-{started}", std::process::id());
        let path = std::env::temp_dir().join(name);
        create(&path)?;
        Ok(DataDir {
            path,
            temporary: true,
        })
    }

    /// Data directory of one arm.
    pub(crate) fn arm_dir(&self, arm: &str) -> PathBuf {
        self.path.join(arm)
    }

    /// Removes the data of a finished arm unless it is to be kept.
    pub(crate) fn finish_arm(&self, arm: &str) {
        if self.temporary {
            remove(&self.arm_dir(arm));
        }
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if self.temporary {
            remove(&self.path);
        }
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_dir_all(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove temporary data");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_data_is_never_overwritten_and_temporary_data_is_removed() {
        let dir = tempfile::TempDir::new().unwrap();
        let arms = ["trained".to_owned()];
        let kept = DataDir::open(Some(dir.path()), &arms).unwrap();
        std::fs::create_dir(kept.arm_dir("trained")).unwrap();
        kept.finish_arm("trained");
        drop(kept);
        assert!(dir.path().join("trained").exists());
        let error = DataDir::open(Some(dir.path()), &arms)
            .err()
            .map(|e| e.to_string());
        assert!(
            error.as_deref().is_some_and(|e| e.contains("--data")),
            "{error:?}"
        );

        let temporary = DataDir::open(None, &arms).unwrap();
        let arm = temporary.arm_dir("trained");
        std::fs::create_dir(&arm).unwrap();
        temporary.finish_arm("trained");
        assert!(!arm.exists());
        drop(temporary);
        assert!(arm.parent().is_some_and(|folder| !folder.exists()));
    }
}
