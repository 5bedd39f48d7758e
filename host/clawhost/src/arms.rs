//! Servers that are measured: started in this process on free ports of this machine, each with data of its own.
//!
//! A demonstration and an evaluation compare servers that differ in nothing but their configuration. Here is
//! what these have in common; what is said to the servers, and what is made of the answers, is in
//! `clawhost-evaluation`, which knows nothing of this process.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clawhost_evaluation::{Endpoint, Track};
use serde_json::Value;

use crate::config::Config;
use crate::serve::Server;

/// The configuration of every arm: the file's, or what suits the model that is served, on any free port and
/// for nobody else.
pub(crate) fn configuration(file: Option<&Path>, model: Option<&Path>) -> Result<Config> {
    let mut config = Config::load(file, model)?;
    config.server.host = "127.0.0.1".to_owned();
    config.server.port = 0;
    config.keys = Vec::new();
    Ok(config)
}

/// Where a server of this process is talked to.
pub(crate) fn endpoint(server: &Server) -> Endpoint {
    Endpoint {
        url: server.url().to_owned(),
        model: server.model().to_owned(),
        api_key: api_key(),
    }
}

/// The servers of this process take the same key from the environment as any other.
pub(crate) fn api_key() -> Option<String> {
    std::env::var("CLAWHOST_API_KEY")
        .ok()
        .filter(|key| !key.is_empty())
}

/// What a report says about a server that trains. `health` is what it answers to `/healthz`.
pub(crate) fn served(server: &Server, config: &Config, health: &Value) -> Vec<(String, String)> {
    let plugins = health.get("plugins").and_then(Value::as_array);
    let plugin = |plugin: &Value| {
        let of = |name: &str| {
            plugin
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or("unknown")
        };
        format!("{} (sha256 {})", of("name"), of("digest"))
    };
    let plugins: Vec<String> = plugins.into_iter().flatten().map(plugin).collect();
    let training = &config.training;
    let method = serde_json::to_value(training.method).unwrap_or_default();
    [
        ("program", format!("clawhost {}", env!("CARGO_PKG_VERSION"))),
        ("model", server.model().to_owned()),
        (
            "sha256 of its weights",
            server.engine().model().digest().to_owned(),
        ),
        ("plugins", plugins.join("\n")),
        ("learns by", method.as_str().unwrap_or_default().to_owned()),
        (
            "a step",
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

/// Reads `--persona`.
pub(crate) fn persona_values() -> impl TypedValueParser<Value = Track> {
    let known = Track::ALL.map(|track| PossibleValue::new(track.name()).help(track.about()));
    PossibleValuesParser::new(known).try_map(|name| name.parse::<Track>())
}

/// The folder of all servers' data; a temporary one goes when this value goes.
pub(crate) struct Data {
    path: PathBuf,
    temporary: bool,
}

impl Data {
    /// The folder `kept`, which must hold none of `arms` yet, or a temporary one.
    pub(crate) fn open(kept: Option<&Path>, arms: &[String]) -> Result<Data> {
        let made = |path: &Path| {
            std::fs::create_dir_all(path)
                .with_context(|| format!("cannot make the data folder {}", path.display()))
        };
        if let Some(path) = kept {
            for arm in arms {
                anyhow::ensure!(
                    !path.join(arm).exists(),
                    "{} holds the data of an earlier run; name a new folder with --data",
                    path.display()
                );
            }
            made(path)?;
            return Ok(Data {
                path: path.to_owned(),
                temporary: false,
            });
        }
        let begun = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos());
        let name = format!("clawhost-arms-{}-{begun}", std::process::id());
        let path = std::env::temp_dir().join(name);
        made(&path)?;
        Ok(Data {
            path,
            temporary: true,
        })
    }

    /// The data of one arm.
    pub(crate) fn of(&self, arm: &str) -> PathBuf {
        self.path.join(arm)
    }

    /// An arm is over: what nobody asked to keep is removed now, not when all are done.
    pub(crate) fn over(&self, arm: &str) {
        if self.temporary {
            remove(&self.of(arm));
        }
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if self.temporary {
            remove(&self.path);
        }
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_dir_all(path) {
        tracing::warn!(path = %path.display(), %error, "temporary data is left behind");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_never_written_over_and_what_is_not_goes() {
        let dir = tempfile::TempDir::new().unwrap();
        let arms = ["trained".to_owned()];
        let kept = Data::open(Some(dir.path()), &arms).unwrap();
        std::fs::create_dir(kept.of("trained")).unwrap();
        kept.over("trained");
        drop(kept);
        assert!(dir.path().join("trained").exists());
        let error = Data::open(Some(dir.path()), &arms)
            .err()
            .map(|e| e.to_string());
        assert!(
            error.as_deref().is_some_and(|e| e.contains("--data")),
            "{error:?}"
        );

        let temporary = Data::open(None, &arms).unwrap();
        let arm = temporary.of("trained");
        std::fs::create_dir(&arm).unwrap();
        temporary.over("trained");
        assert!(!arm.exists());
        drop(temporary);
        assert!(arm.parent().is_some_and(|folder| !folder.exists()));
    }
}
