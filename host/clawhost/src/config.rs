//! The configuration file `clawhost.toml`.
//!
//! Precedence, lowest first: defaults, defaults of the embedded model (when it is served), the file, the environment
//! (`CLAWHOST_API_KEY`), flags. An unknown key is an error with file, line and the nearest known key.

mod error;
mod remote;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clawhost_gateway::{AllowedOrigins, ApiKey, RateLimit, Scope, Tls, check_key_names};
use clawhost_judging::JudgingOptions;
use clawhost_plugins::{HostOptions, Profile};
use clawhost_policy::{EngineOptions, ReasoningFormat, ToolCallFormat};
use clawhost_sessions::SessionOptions;
use clawhost_training::advantage::Estimator;
use clawhost_training::{TrainableParameters, TrainingOptions};
use serde::{Deserialize, Serialize};

use crate::capabilities::{ModelAlias, StateConfig};

pub use remote::RemoteConfig;

/// The whole configuration.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
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
    pub keys: Vec<KeyConfig>,
}

/// `[plugins.NAME]`. Capabilities are not configured here but granted to the plugin's digest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PluginSection {
    /// Required sha256 of the file. Default any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Compilation and limits. Default "deterministic".
    pub profile: Profile,
}

/// `[server]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Listen address. Any address but loopback requires keys, each with its own secret of at least 16 characters.
    /// Default "127.0.0.1".
    pub host: String,
    /// Port; 0 = any free port. Default 30000.
    pub port: u16,
    /// Data directory: journal, adapters and checkpoints. Default "clawhost-data".
    pub data: PathBuf,
    /// Additional names of the served model; "*" = any. Default none.
    pub aliases: Vec<String>,
    /// Host names besides loopback ones that are trusted while no keys are configured. Default none.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may call the server from a browser (CORS), such as `https://app.example`; ["*"] = any,
    /// which requires a key. Default none.
    pub allowed_origins: Vec<String>,
    /// PEM file with the server's certificate, followed by the issuers' certificates; requires `tls_key`. Default: no
    /// TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key. Default: no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Maximum size of a request body in bytes. Default 8388608.
    pub max_body: usize,
    /// Maximum number of concurrent requests. Default 256.
    pub max_concurrent: usize,
    /// Seconds after which a connection is closed whose client does not read the response; the reply is recorded as
    /// aborted. Default 30.
    pub write_timeout: f64,
    /// Seconds that running replies get to finish at shutdown. Default 20.
    pub shutdown_seconds: f64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 30_000,
            data: PathBuf::from("clawhost-data"),
            aliases: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            tls_cert: None,
            tls_key: None,
            max_body: 8 << 20,
            max_concurrent: 256,
            write_timeout: 30.0,
            shutdown_seconds: 20.0,
        }
    }
}

impl ServerConfig {
    fn validate(&self) -> Result<()> {
        let write_timeout = self.write_timeout;
        anyhow::ensure!(
            write_timeout > 0.0 && write_timeout <= 1e7,
            "server.write_timeout = {write_timeout}: must be more than 0 and at most 10000000"
        );
        self.origins()?;
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), None) => anyhow::bail!(
                "server.tls_cert = {}: requires the certificate's private key; set server.tls_key (--tls-key)",
                cert.display()
            ),
            (None, Some(key)) => anyhow::bail!(
                "server.tls_key = {}: requires the key's certificate; set server.tls_cert (--tls-cert)",
                key.display()
            ),
            _ => Ok(()),
        }
    }

    /// Origins that may call the server from a browser.
    pub(crate) fn origins(&self) -> Result<AllowedOrigins> {
        AllowedOrigins::parse(&self.allowed_origins).context("server.allowed_origins")
    }

    /// The TLS certificate and key, if configured.
    ///
    /// # Errors
    /// A file cannot be read or parsed.
    pub(crate) fn tls(&self) -> Result<Option<Tls>> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Ok(Some(Tls::load(cert, key)?)),
            _ => Ok(None),
        }
    }
}

/// `[model]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSection {
    /// Model directory in Hugging Face layout. Default: the embedded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// PEFT directory of the initial adapter, used when the data directory has no adapter yet. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<PathBuf>,
    /// Name under which the model is served. Default: the directory's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tool call format of the model: `hermes`, `qwen-xml`, `llama`, or `auto` (from its chat template). Default auto.
    pub tool_calls: ToolCalls,
    /// Reasoning format of the model: `think` (between tags), `unopened` (only the closing tag is written), `none`, or
    /// `auto` (from its chat template). Default auto.
    pub reasoning: Reasoning,
}

/// Tool call format of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are the configuration's values")]
pub enum ToolCalls {
    #[default]
    Auto,
    Hermes,
    QwenXml,
    Llama,
}

/// Reasoning format of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are the configuration's values")]
pub enum Reasoning {
    #[default]
    Auto,
    Think,
    Unopened,
    None,
}

impl ModelSection {
    /// Engine options with the configured tool call and reasoning formats.
    pub(crate) fn engine_options(&self, options: EngineOptions) -> EngineOptions {
        EngineOptions {
            tool_call_format: match self.tool_calls {
                ToolCalls::Auto => None,
                ToolCalls::Hermes => Some(ToolCallFormat::Hermes),
                ToolCalls::QwenXml => Some(ToolCallFormat::QwenXml),
                ToolCalls::Llama => Some(ToolCallFormat::Llama),
            },
            reasoning_format: match self.reasoning {
                Reasoning::Auto => None,
                Reasoning::Think => Some(ReasoningFormat::Think),
                Reasoning::Unopened => Some(ReasoningFormat::Unopened),
                Reasoning::None => Some(ReasoningFormat::None),
            },
            ..options
        }
    }
}

/// `[engine]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// Maximum number of requests in one step. Default 64.
    pub max_batch: usize,
    /// Maximum number of waiting requests; further ones get 429. Default 256.
    pub max_waiting: usize,
    /// Maximum number of prompt tokens in one step (chunked prefill). While replies are decoding, a step takes at most
    /// as many prompt tokens as there are replies, or 64 if that is more. Default 512.
    pub prefill_chunk: usize,
    /// Maximum size of the KV cache in MiB, for running requests and for cached prefixes. Memory is allocated on demand
    /// and then reused. A prompt that does not fit is rejected; a reply ends when the cache is full. Default 1024.
    pub cache_megabytes: usize,
    /// Maximum context length in tokens. Default: the model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// Threads of one matrix product, in serving and in training; 0 = all of the machine's. Default 0.
    pub threads: usize,
    /// Remote backend that generates instead of the built-in engine. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteConfig>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let own = EngineOptions::default();
        Self {
            max_batch: own.max_batch,
            max_waiting: own.max_waiting,
            prefill_chunk: own.prefill_chunk,
            cache_megabytes: own.kv_cache_bytes >> 20,
            context: None,
            threads: own.threads,
            remote: None,
        }
    }
}

impl EngineConfig {
    pub(crate) fn options(&self) -> EngineOptions {
        EngineOptions {
            max_batch: self.max_batch,
            max_waiting: self.max_waiting,
            prefill_chunk: self.prefill_chunk,
            kv_cache_bytes: self.cache_megabytes << 20,
            context: self.context,
            threads: self.threads,
            ..EngineOptions::default()
        }
    }
}

/// `[sessions]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionsConfig {
    /// Minutes without a request after which a session ends. Default 30.
    pub idle_minutes: f64,
    /// Minutes within which an identical first request counts as a retry if its request id, its trace or an aborted
    /// first reply proves it. Default 10.
    pub retry_minutes: f64,
}

impl Default for SessionsConfig {
    fn default() -> Self {
        Self {
            idle_minutes: 30.0,
            retry_minutes: 10.0,
        }
    }
}

impl SessionsConfig {
    pub(crate) fn options(&self) -> SessionOptions {
        let minutes = |m: f64| Duration::from_secs_f64(m * 60.0);
        SessionOptions {
            idle: minutes(self.idle_minutes),
            retry_window: minutes(self.retry_minutes),
        }
    }
}

/// One `[[keys]]` entry.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyConfig {
    /// Name of the key in sessions and logs. A key owns what it collects, so names are unique.
    pub name: String,
    /// The secret itself, or `env:NAME` to read it from the environment.
    pub secret: String,
    /// Scopes: `chat`, `feedback`, `operator`. Default all three.
    #[serde(default = "all_scopes")]
    pub scopes: Vec<String>,
    /// Requests per minute. Default unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<u32>,
    /// Adapter version for requests that name none; 0 = the base model. Default: the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<u64>,
}

impl std::fmt::Debug for KeyConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyConfig")
            .field("name", &self.name)
            .field("scopes", &self.scopes)
            .field("per_minute", &self.per_minute)
            .field("adapter", &self.adapter)
            .finish_non_exhaustive()
    }
}

fn all_scopes() -> Vec<String> {
    Scope::ALL.iter().map(|s| s.as_str().to_owned()).collect()
}

impl KeyConfig {
    /// A key with all scopes and no rate limit.
    pub(crate) fn with_all_scopes(name: &str, secret: &str) -> Self {
        Self {
            name: name.to_owned(),
            secret: secret.to_owned(),
            scopes: all_scopes(),
            per_minute: None,
            adapter: None,
        }
    }

    fn key(&self) -> Result<ApiKey> {
        let secret = match self.secret.strip_prefix("env:") {
            Some(name) => std::env::var(name).with_context(|| {
                format!("key {}: environment variable {name} is not set", self.name)
            })?,
            None => self.secret.clone(),
        };
        let scopes = self
            .scopes
            .iter()
            .map(|s| s.parse::<Scope>())
            .collect::<Result<Vec<_>, _>>()?;
        let key = ApiKey::new(self.name.clone(), &secret, scopes)?;
        let key = match self.per_minute {
            Some(per_minute) => key.with_rate(RateLimit::per_minute(per_minute)),
            None => key,
        };
        Ok(match self.adapter {
            Some(version) => key.with_adapter(version),
            None => key,
        })
    }
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
    /// Reads and validates a configuration file; without one, the defaults. `model` overrides the file's `model.dir`.
    ///
    /// # Errors
    /// The file cannot be read, or has an unknown key or an invalid value.
    pub fn load(file: Option<&Path>, model: Option<&Path>) -> Result<Self> {
        let Some(path) = file else {
            return Self::build("", model).context("the built-in defaults");
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration {}", path.display()))?;
        Self::build(&text, model)
            .with_context(|| format!("cannot use the configuration {}", path.display()))
    }

    /// Like [`Config::load`], from text.
    ///
    /// # Errors
    /// An unknown key or an invalid value.
    pub fn parse(text: &str) -> Result<Self> {
        Self::build(text, None)
    }

    fn build(text: &str, model: Option<&Path>) -> Result<Self> {
        // Parse the text alone first, for errors with their line; then merge it over the model's defaults.
        let mut plain: Self =
            toml::from_str(text).map_err(|e| anyhow::anyhow!(error::parse_error(text, &e)))?;
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
            for text in defaults.iter().chain([&text]) {
                overlay(&mut merged, toml::from_str(text)?);
            }
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
        for (key, value) in [
            ("sessions.idle_minutes", self.sessions.idle_minutes),
            ("sessions.retry_minutes", self.sessions.retry_minutes),
            ("server.shutdown_seconds", self.server.shutdown_seconds),
        ] {
            anyhow::ensure!(
                (0.0..=1e7).contains(&value),
                "{key} = {value}: must be between 0 and 10000000"
            );
        }
        self.server.validate()?;
        for (key, value) in [
            ("engine.max_batch", self.engine.max_batch),
            ("engine.max_waiting", self.engine.max_waiting),
            ("engine.prefill_chunk", self.engine.prefill_chunk),
            ("engine.cache_megabytes", self.engine.cache_megabytes),
            ("server.max_body", self.server.max_body),
            ("server.max_concurrent", self.server.max_concurrent),
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
    use super::*;

    #[test]
    fn the_embedded_model_has_its_own_defaults_and_the_file_overrides_them() {
        let config = Config::parse("").unwrap();
        assert_eq!(config.training.optimizer.learning_rate, 1.3e-3);
        let config = Config::parse("[training.optimizer]\nlearning_rate = 1e-3").unwrap();
        assert_eq!(config.training.optimizer.learning_rate, 1e-3);
        assert_eq!(config.training.batch, 4);
        let config = Config::parse("[model]\ndir = \"x\"").unwrap();
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
            formats("[model]\ntool_calls = \"qwen-xml\"\nreasoning = \"unopened\""),
            (
                Some(ToolCallFormat::QwenXml),
                Some(ReasoningFormat::Unopened)
            )
        );
        assert_eq!(
            formats("[model]\ntool_calls = \"llama\"\nreasoning = \"none\""),
            (Some(ToolCallFormat::Llama), Some(ReasoningFormat::None))
        );
        let wrong = format!(
            "{:#}",
            Config::parse("[model]\ntool_calls = \"xml\"").unwrap_err()
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
            "[judging]\nhinted_samples = true\n[training]\nmethod = \"binary\""
        ));
    }

    #[test]
    fn full_fine_tuning_has_its_own_learning_rate_and_the_file_overrides_it() {
        let rate = |text: &str| {
            let config = Config::parse(text).unwrap();
            config.training.optimizer.learning_rate
        };
        assert_eq!(rate("[training]\nparameters = \"full\""), 4e-4);
        let dir = "[model]\ndir = \"x\"\n[training]\nparameters = \"full\"";
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
                "[sessions]\n\nidle_minutes = -1.0",
                3,
                "sessions.idle_minutes = -1",
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
                "[server]\nwrite_timeout = 0.0",
                2,
                "server.write_timeout = 0",
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

    #[test]
    fn the_printed_configuration_parses_again() {
        let text = toml::to_string(&Config::parse("").unwrap()).unwrap();
        assert_eq!(
            toml::to_string(&Config::parse(&text).unwrap()).unwrap(),
            text
        );
    }

    #[test]
    fn duplicate_key_names_are_rejected() {
        let key = |name: &str, secret: &str| {
            format!("[[keys]]\nname = \"{name}\"\nsecret = \"{secret}\"\n")
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
        let config = Config::parse("[[keys]]\nname = \"a\"\nsecret = \"hunter2\"").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
