//! The configuration file `clawhost.toml`.
//!
//! Precedence, lowest first: defaults, defaults of the embedded model (when it is served), the file, the environment
//! (`CLAWHOST_SECTION__KEY`), `--set section.key=value`, other flags. An unknown key is an error with file, line and the nearest known key.

mod engine;
mod error;
mod keys;
mod model;
mod overrides;
#[cfg(test)]
mod reference;
mod remote;
mod renamed;
mod server;
mod sessions;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clawhost_gateway::{ApiKey, Scope, check_key_names};
use clawhost_judging::JudgingOptions;
use clawhost_plugins::{HostOptions, Profile};
use clawhost_training::advantage::Estimator;
use clawhost_training::{TrainableParameters, TrainingOptions};
use serde::{Deserialize, Serialize};

use crate::capabilities::{ModelAlias, StateConfig};

pub use engine::EngineConfig;
pub use keys::KeyConfig;
pub use model::{ModelSection, Reasoning, ToolCalls};
use overrides::Overrides;
pub use remote::RemoteConfig;
pub use server::ServerConfig;
pub use sessions::SessionsConfig;

use server::LONGEST;

/// The whole configuration.
#[derive(Debug, Clone, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Plugin components to load in addition to those of `--plugin`. Default: the embedded `judge-next-state`.
    pub load: Vec<PathBuf>,
    /// The HTTP endpoint.
    pub server: ServerConfig,
    /// The served model.
    pub model: ModelSection,
    /// Batching and the KV cache.
    pub engine: EngineConfig,
    /// How requests are matched to conversations.
    pub sessions: SessionsConfig,
    /// Judging of turns.
    pub judging: JudgingOptions,
    /// Training.
    pub training: TrainingOptions,
    /// The plugin host.
    pub plugin_host: HostOptions,
    /// Models that plugins can call, by alias. `policy` is the served model; `judge` and `teacher` are its base model
    /// unless configured.
    pub models: BTreeMap<String, ModelAlias>,
    /// Per-plugin settings, by name.
    pub plugins: BTreeMap<String, PluginSection>,
    /// Limits of each plugin's stored state.
    pub plugin_state: StateConfig,
    /// File with the plugins' grants. Default `grants.toml` in the data directory.
    pub grants: Option<PathBuf>,
    /// API keys.
    #[serde(rename = "api_keys")]
    pub keys: Vec<KeyConfig>,
}

/// `[plugins.NAME]`. Capabilities are not configured here but granted to the plugin's digest.
#[derive(Debug, Clone, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PluginSection {
    /// Required sha256 of the file. Default any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Compilation and limits. Default "deterministic".
    pub profile: Profile,
}

/// Defaults for the embedded model. It is a thousand times smaller than the models the general defaults are made for,
/// so it takes a higher learning rate and smaller batches, and a demo is quick. At twice this rate it learns a style
/// within a dozen conversations but soon loses its arithmetic. The KL penalty is k2: k3 grows with the exponential of a
/// token's lost log-prob, so one such token would outweigh the whole batch.
const EMBEDDED_DEFAULTS: &str = r#"
[training]
method = "hybrid-topk"
batch = 4
min_batch = 4
max_wait_seconds = 20.0
epochs = 3
baseline_rate = 0.3
[training.loss]
kl = "k2"
kl_coefficient = 0.05
[training.optimizer]
learning_rate = 1.3e-3
"#;

/// Defaults for full fine-tuning: more parameters share each update, so each moves less.
const FULL_DEFAULTS: &str = "[training.optimizer]\nlearning_rate = 1e-5";

/// Defaults for full fine-tuning of the embedded model.
const EMBEDDED_FULL_DEFAULTS: &str = "[training.optimizer]\nlearning_rate = 4e-4";

impl Config {
    /// Reads and validates a configuration file; without one, the defaults. `model` overrides the file's `model.path`.
    ///
    /// # Errors
    /// The file cannot be read, or has an unknown key or an invalid value.
    pub fn load(file: Option<&Path>, model: Option<&Path>) -> Result<Self> {
        Self::load_with(file, &[], model)
    }

    /// Like [`Config::load`], with values of `--set`, which override those of the file and the environment.
    ///
    /// # Errors
    /// Those of [`Config::load`], and a value of `--set` that is not `section.key=value`.
    pub fn load_with(file: Option<&Path>, sets: &[String], model: Option<&Path>) -> Result<Self> {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let overrides = Overrides::new(environment, sets)?;
        let Some(path) = file else {
            return Self::build("", overrides, model).context("the built-in defaults");
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration {}", path.display()))?;
        Self::build(&text, overrides, model)
            .with_context(|| format!("cannot use the configuration {}", path.display()))
    }

    /// Like [`Config::load`], from text.
    ///
    /// # Errors
    /// An unknown key or an invalid value.
    pub fn parse(text: &str) -> Result<Self> {
        Self::build(text, Overrides::default(), None)
    }

    fn build(text: &str, overrides: Overrides, model: Option<&Path>) -> Result<Self> {
        if let Some(error) = renamed::renamed_key(text) {
            anyhow::bail!(error);
        }
        let overrides = overrides.into_table();
        let mut file: toml::Table =
            toml::from_str(text).map_err(|e| anyhow::anyhow!(error::parse_error(text, &e)))?;
        // Parse the text alone first, for errors with their line; then merge it over the model's defaults.
        let mut plain = match toml::from_str::<Self>(text) {
            Err(error) if overrides.is_empty() || !error.message().contains("missing field") => {
                anyhow::bail!(error::parse_error(text, &error));
            }
            Ok(plain) if overrides.is_empty() => plain,
            _ => {
                overlay(&mut file, overrides);
                file.clone().try_into()?
            }
        };
        if let Some(dir) = model {
            plain.model.dir = Some(dir.to_owned());
        }
        let full = plain.training.parameters == TrainableParameters::Full;
        let defaults: &[&str] = match (plain.model.dir.is_some(), full) {
            (true, false) => &[],
            (true, true) => &[FULL_DEFAULTS],
            (false, false) => &[EMBEDDED_DEFAULTS],
            (false, true) => &[EMBEDDED_DEFAULTS, EMBEDDED_FULL_DEFAULTS],
        };
        let config = if defaults.is_empty() {
            plain
        } else {
            let mut merged = toml::Table::new();
            for text in defaults {
                overlay(&mut merged, toml::from_str(text)?);
            }
            overlay(&mut merged, file);
            let mut config: Self = merged.try_into()?;
            config.model.dir = plain.model.dir;
            config
        };
        config
            .validate()
            .map_err(|e| anyhow::anyhow!(error::validation_error(text, &format!("{e:#}"))))?;
        Ok(config)
    }

    /// The grants file.
    pub fn grants_file(&self) -> PathBuf {
        self.grants
            .clone()
            .unwrap_or_else(|| self.server.data.join("grants.toml"))
    }

    /// The judging options: those of `[judging]`, with samples from hints alone enabled when training can use them.
    pub(crate) fn judging(&self) -> JudgingOptions {
        let mut judging = self.judging.clone();
        judging.hinted_samples |= self.training.enabled && self.training.method.uses_hints();
        judging
    }

    /// Validates bounds and dependencies between values.
    ///
    /// # Errors
    /// The first invalid value, with its key.
    pub fn validate(&self) -> Result<()> {
        self.training.validate()?;
        anyhow::ensure!(
            self.training.estimator != Estimator::Step,
            "training.estimator = step: needs the trajectories, steps and votes of episodes from environments, which conversations do not have; use \"baseline\" or \"group\""
        );
        if let Some(remote) = &self.engine.remote {
            remote.validate(&self.training)?;
        }
        self.judging.validate()?;
        self.plugin_state.validate()?;
        for (key, seconds) in [
            ("sessions.idle_timeout", self.sessions.idle_minutes * 60.0),
            ("sessions.retry_window", self.sessions.retry_minutes * 60.0),
            ("server.shutdown_timeout", self.server.shutdown_seconds),
        ] {
            anyhow::ensure!(
                (0.0..=LONGEST).contains(&seconds),
                "{key}: must be at most 3650d"
            );
        }
        self.server.validate()?;
        for (key, value) in [
            ("engine.max_batch", self.engine.max_batch),
            ("engine.max_waiting", self.engine.max_waiting),
            ("engine.prefill_chunk", self.engine.prefill_chunk),
            ("engine.cache_megabytes", self.engine.cache_megabytes),
            ("server.max_body_size", self.server.max_body),
            ("server.max_concurrent_requests", self.server.max_concurrent),
        ] {
            anyhow::ensure!(value >= 1, "{key} = {value}: must be at least 1");
        }
        Ok(())
    }

    /// The accepted API keys, including `CLAWHOST_API_KEY` of the environment.
    ///
    /// # Errors
    /// A key without a name or secret, a duplicate name, an unknown scope, or a missing environment variable.
    pub(crate) fn api_keys(&self) -> Result<Vec<ApiKey>> {
        let mut keys = self
            .keys
            .iter()
            .map(KeyConfig::key)
            .collect::<Result<Vec<_>>>()?;
        if let Ok(secret) = std::env::var("CLAWHOST_API_KEY")
            && !secret.is_empty()
        {
            keys.push(ApiKey::new("environment", &secret, Scope::ALL)?);
        }
        check_key_names(&keys)?;
        Ok(keys)
    }
}

/// Merges `over` into `base`, table by table.
fn overlay(base: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => overlay(below, above),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clawhost_policy::{EngineOptions, ReasoningFormat, ToolCallFormat};

    use super::*;

    #[test]
    fn the_embedded_model_has_its_own_defaults_and_the_file_overrides_them() {
        let config = Config::parse("").unwrap();
        assert_eq!(config.training.optimizer.learning_rate, 1.3e-3);
        let config = Config::parse("[training.optimizer]\nlearning_rate = 1e-3").unwrap();
        assert_eq!(config.training.optimizer.learning_rate, 1e-3);
        assert_eq!(config.training.batch, 4);
        let config = Config::parse("[model]\npath = \"x\"").unwrap();
        assert_eq!(config.training.batch, TrainingOptions::default().batch);
    }

    #[test]
    fn tool_call_and_reasoning_formats_can_be_set() {
        let formats = |text: &str| {
            let options = Config::parse(text)
                .unwrap()
                .model
                .engine_options(EngineOptions::default());
            (options.tool_call_format, options.reasoning_format)
        };
        assert_eq!(formats(""), (None, None));
        assert_eq!(
            formats("[model]\ntool_call_parser = \"qwen-xml\"\nreasoning_parser = \"unopened\""),
            (
                Some(ToolCallFormat::QwenXml),
                Some(ReasoningFormat::Unopened)
            )
        );
        assert_eq!(
            formats("[model]\ntool_call_parser = \"llama\"\nreasoning_parser = \"none\""),
            (Some(ToolCallFormat::Llama), Some(ReasoningFormat::None))
        );
        let wrong = format!(
            "{:#}",
            Config::parse("[model]\ntool_call_parser = \"xml\"").unwrap_err()
        );
        assert!(
            wrong.contains("line 2") && wrong.contains("qwen-xml"),
            "{wrong}"
        );
    }

    #[test]
    fn hints_alone_give_samples_when_the_method_uses_hints() {
        let hinted = |text: &str| Config::parse(text).unwrap().judging().hinted_samples;
        assert!(!hinted("[training]\nmethod = \"binary\""));
        assert!(hinted("[training]\nmethod = \"hybrid\""));
        assert!(!hinted("[training]\nmethod = \"opd\"\nenabled = false"));
        assert!(hinted(
            "[judging]\nhint_only_samples = true\n[training]\nmethod = \"binary\""
        ));
    }

    #[test]
    fn full_fine_tuning_has_its_own_learning_rate_and_the_file_overrides_it() {
        let rate = |text: &str| {
            let config = Config::parse(text).unwrap();
            config.training.optimizer.learning_rate
        };
        assert_eq!(rate("[training]\nparameters = \"full\""), 4e-4);
        let dir = "[model]\npath = \"x\"\n[training]\nparameters = \"full\"";
        assert_eq!(rate(dir), 1e-5);
        assert_eq!(
            Config::parse(dir).unwrap().model.dir,
            Some(PathBuf::from("x"))
        );
        let own = "[training]\nparameters = \"full\"\n[training.optimizer]\nlearning_rate = 3e-6";
        assert_eq!(rate(own), 3e-6);
    }

    #[test]
    fn errors_name_the_line_and_the_nearest_key() {
        let message = |text: &str| format!("{:#}", Config::parse(text).unwrap_err());
        let unknown = message("[server]\nprot = 1");
        assert!(
            unknown.contains("line 2") && unknown.contains("did you mean `port`"),
            "{unknown}"
        );
        for (text, line, part) in [
            ("[training]\nbatch = 0", 2, "training.batch = 0"),
            (
                "[sessions]\n\nidle_timeout = \"-1m\"",
                3,
                "must be a duration",
            ),
            (
                "[training]\nestimator = \"gae\"\n[training.advantage]\nreward_kl = 0.1",
                4,
                "training.advantage.reward_kl",
            ),
            ("[training]\nestimator = \"step\"", 2, "environments"),
            (
                "[training.advantage]\ndiscont = 0.1",
                2,
                "did you mean `discount`",
            ),
            ("[training.log]\njson = true", 2, "did you mean `jsonl`"),
            ("[judging]\nvotez = 1", 2, "votez"),
            (
                "[server]\nwrite_timeout = \"0s\"",
                2,
                "server.write_timeout: must be more than 0",
            ),
            (
                "[server]\nallowed_origins = [\"https://app.example/\"]",
                2,
                "scheme://host",
            ),
            ("[server]\ntls_cert = \"cert.pem\"", 2, "server.tls_key"),
            ("[server]\ntls_key = \"key.pem\"", 2, "server.tls_cert"),
        ] {
            let message_text = message(text);
            assert!(
                message_text.contains(&format!("line {line}, ")) && message_text.contains(part),
                "{message_text}"
            );
        }
        assert!(message("[server]\nport = \"x\"").contains("line 2"));
    }

    /// Every kind of table.
    const EVERYTHING: &str = r#"
load = ["a.wasm"]
[models.other]
url = "http://127.0.0.1:1/v1"
[plugins."a.b"]
profile = "fast"
[judging.settings."a.b"]
style = { strict = true }
[training]
method = "opd"
[training.loss]
aggregation = { constant = 1024 }
[training.teacher]
from = "endpoint"
[training.teacher.endpoint]
url = "http://127.0.0.1:1/v1"
model = "m"
[engine.remote]
url = "http://127.0.0.1:8000"
backend = "vllm"
model = "m"
adapter_dir = "shared"
[[api_keys]]
name = "a"
secret = "env:A"
[[api_keys]]
name = "b"
secret = "env:B"
"#;

    #[test]
    fn the_printed_configuration_parses_again() {
        let printed =
            |text: &str| clawhost_config::toml_text(&Config::parse(text).unwrap()).unwrap();
        for text in ["", EVERYTHING] {
            let once = printed(text);
            assert_eq!(printed(&once), once);
            let values = |text: &str| toml::to_string(&Config::parse(text).unwrap()).unwrap();
            assert_eq!(values(&once), values(text));
        }
    }

    #[test]
    fn duplicate_key_names_are_rejected() {
        let key = |name: &str, secret: &str| {
            format!("[[api_keys]]\nname = \"{name}\"\nsecret = \"{secret}\"\n")
        };
        let keys = |second: &str| {
            let text = key("app", "0123456789abcdef") + &key(second, "fedcba9876543210");
            Config::parse(&text).unwrap().api_keys()
        };
        assert!(keys("other").is_ok());
        let error = keys("app").unwrap_err().to_string();
        assert!(
            error.contains("two API keys have the name `app`"),
            "{error}"
        );
    }

    #[test]
    fn secrets_are_not_shown() {
        let config = Config::parse("[[api_keys]]\nname = \"a\"\nsecret = \"hunter2\"").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
