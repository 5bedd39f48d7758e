//! `clawhost.toml`: what an operator can set, and where each value comes from.
//!
//! Later wins: defaults, what suits the embedded policy (when it is the one served), the file, the
//! environment (`CLAWHOST_API_KEY`), flags. Unknown keys are errors that name file, line and the nearest
//! known key.

mod mistake;
mod remote;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clawhost_gateway::{AllowedOrigins, ApiKey, RateLimit, Scope, Tls, check_names};
use clawhost_judging::JudgingOptions;
use clawhost_plugins::{HostOptions, Profile};
use clawhost_policy::{CallForm, EngineOptions, ReasoningForm};
use clawhost_sessions::SessionOptions;
use clawhost_training::advantage::Estimator;
use clawhost_training::{Parameters, TrainingOptions};
use serde::{Deserialize, Serialize};

use crate::capabilities::{ModelAlias, StateConfig};

pub use remote::RemoteConfig;

/// Everything that can be configured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Plugin components to load, beside those named by `--plugin`. Default: the embedded
    /// `judge-next-state`.
    pub load: Vec<PathBuf>,
    /// The HTTP endpoint.
    pub server: ServerConfig,
    /// What is served.
    pub model: ModelSection,
    /// How requests are batched.
    pub engine: EngineConfig,
    /// How conversations are told apart.
    pub sessions: SessionsConfig,
    /// How turns are judged.
    pub judging: JudgingOptions,
    /// How samples become adapters.
    pub training: TrainingOptions,
    /// How plugins are run.
    pub plugin_host: HostOptions,
    /// The models that plugins can ask, by alias. `policy` is the served model; `judge` and `teacher`
    /// are its base unless they are configured.
    pub models: BTreeMap<String, ModelAlias>,
    /// How each plugin, by name, is run.
    pub plugins: BTreeMap<String, PluginSection>,
    /// What each plugin may keep for itself.
    pub plugin_state: StateConfig,
    /// The file in which grants are written down. Default `grants.toml` in the data directory.
    pub grants: Option<PathBuf>,
    /// Who may ask.
    pub keys: Vec<KeyConfig>,
}

/// `[plugins.NAME]`. What a plugin may reach is not said here but granted to its digest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PluginSection {
    /// sha256 that the file must have. Default any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// How it is compiled and limited. Default "deterministic".
    pub profile: Profile,
}

/// `[server]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Address to listen on; anything but loopback needs keys, each with a secret of its own of at least 16 characters.
    /// Default "127.0.0.1".
    pub host: String,
    /// Port; 0 = any free one. Default 30000.
    pub port: u16,
    /// Directory of journal, adapters and checkpoints. Default "clawhost-data".
    pub data: PathBuf,
    /// Further names that mean the served model; "*" = any. Default none.
    pub aliases: Vec<String>,
    /// Host names beside the loopback ones that are trusted while no keys are configured. Default none.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may use the server from a browser (CORS), such as `https://app.example`; ["*"] = every
    /// page, which needs a key. Default none.
    pub allowed_origins: Vec<String>,
    /// PEM file with the server's certificate, followed by those of its issuers; needs `tls_key`. Default: no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate. Default: no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Largest request body in bytes. Default 8388608.
    pub max_body: usize,
    /// Requests in progress at once. Default 256.
    pub max_concurrent: usize,
    /// Seconds after which a connection is closed whose client takes nothing of what is sent to it; its reply is recorded
    /// as aborted. Default 30.
    pub write_timeout: f64,
    /// Seconds that replies in progress get to finish at shutdown. Default 20.
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
                "server.tls_cert = {}: needs the private key of the certificate; name its file with server.tls_key (--tls-key)",
                cert.display()
            ),
            (None, Some(key)) => anyhow::bail!(
                "server.tls_key = {}: needs the certificate of the key; name its file with server.tls_cert (--tls-cert)",
                key.display()
            ),
            _ => Ok(()),
        }
    }

    /// The web pages that may use the server.
    pub(crate) fn origins(&self) -> Result<AllowedOrigins> {
        AllowedOrigins::parse(&self.allowed_origins).context("server.allowed_origins")
    }

    /// What connections are encrypted with, if they are.
    ///
    /// # Errors
    /// A file cannot be read, or does not hold what it should.
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
    /// Model directory in Hugging Face layout. Default: the policy inside the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// PEFT directory to begin with, when the data directory has no adapter yet. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<PathBuf>,
    /// Name under which the model is served. Default: the directory's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How the model writes tool calls: `hermes`, `qwen-xml`, `llama`, or `auto`, as its chat template teaches.
    /// Default auto.
    pub tool_calls: ToolCalls,
    /// How the model writes reasoning: `think` (between tags), `unopened` (only the closing tag is written), `none`, or
    /// `auto`, as its chat template teaches. Default auto.
    pub reasoning: Reasoning,
}

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are those of the configuration")]
pub enum ToolCalls {
    #[default]
    Auto,
    Hermes,
    QwenXml,
    Llama,
}

/// How a model writes reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are those of the configuration")]
pub enum Reasoning {
    #[default]
    Auto,
    Think,
    Unopened,
    None,
}

impl ModelSection {
    /// Engine options with the forms that are configured here.
    pub(crate) fn forms(&self, options: EngineOptions) -> EngineOptions {
        EngineOptions {
            calls: match self.tool_calls {
                ToolCalls::Auto => None,
                ToolCalls::Hermes => Some(CallForm::Hermes),
                ToolCalls::QwenXml => Some(CallForm::QwenXml),
                ToolCalls::Llama => Some(CallForm::Llama),
            },
            reasoning: match self.reasoning {
                Reasoning::Auto => None,
                Reasoning::Think => Some(ReasoningForm::Think),
                Reasoning::Unopened => Some(ReasoningForm::Unopened),
                Reasoning::None => Some(ReasoningForm::None),
            },
            ..options
        }
    }
}

/// `[engine]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// Most requests in one step. Default 64.
    pub max_batch: usize,
    /// Most waiting requests; further ones get 429. Default 256.
    pub max_waiting: usize,
    /// Most prompt tokens in one step; beside replies that are being written a step takes no more of them than
    /// there are replies, or 64 where they are fewer. Default 512.
    pub prefill_chunk: usize,
    /// Most megabytes of attention memory: of requests that run, and kept for conversations that go on. It is taken
    /// as it is needed and then used again. A prompt that does not fit is refused, a reply ends where it does.
    /// Default 1024.
    pub cache_megabytes: usize,
    /// Longest context in tokens. Default: what the model was made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// Threads that one matrix product may use, in serving and in training; 0 = all of the machine's.
    /// Default 0.
    pub threads: usize,
    /// A server that generates in the place of this program's own batcher. Default none.
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
            cache_megabytes: own.cache_budget >> 20,
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
            cache_budget: self.cache_megabytes << 20,
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
    /// Minutes without a request after which a session is over. Default 30.
    pub idle_minutes: f64,
    /// Minutes within which an identical opening request is a retry if that is proved: by its request id, its trace, or a
    /// first reply that was cut off. Default 10.
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
    /// Name that sessions and logs keep of it. It owns what it collects, so each key has a name of its own.
    pub name: String,
    /// The secret itself, or `env:NAME` to read it from the environment.
    pub secret: String,
    /// `chat`, `feedback`, `operator`. Default all three.
    #[serde(default = "all_scopes")]
    pub scopes: Vec<String>,
    /// Requests a minute. Default unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<u32>,
    /// Adapter version that serves requests which name none; 0 = the base model. Default: the newest.
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
    pub(crate) fn everything(name: &str, secret: &str) -> Self {
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
            Some(name) => std::env::var(name)
                .with_context(|| format!("key {}: the environment has no {name}", self.name))?,
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

/// What suits the embedded policy: it is a thousand times smaller than what the defaults are made for,
/// so it takes a higher rate and smaller batches, and somebody who tries it out does not wait. At twice this rate
/// it learns a style within a dozen conversations and forgets its sums soon after. Its penalty is k2: k3 grows
/// with the exponential of what a token has lost, and one such token then outweighs the whole batch.
const EMBEDDED: &str = r#"
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

/// What suits a step over all parameters: each value has more company, so each moves less.
const FULL: &str = "[training.optimizer]\nlearning_rate = 1e-5";

/// The same for the embedded policy.
const EMBEDDED_FULL: &str = "[training.optimizer]\nlearning_rate = 4e-4";

impl Config {
    /// Reads and checks a configuration file; without one, the defaults. `model` stands above the file's
    /// `model.dir`.
    ///
    /// # Errors
    /// The file cannot be read, or has a key or value that cannot work.
    pub fn load(file: Option<&Path>, model: Option<&Path>) -> Result<Self> {
        let Some(path) = file else {
            return Self::build("", model).context("the built-in defaults");
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration {}", path.display()))?;
        Self::build(&text, model).with_context(|| format!("{} cannot be used", path.display()))
    }

    /// As [`Config::load`], from text.
    ///
    /// # Errors
    /// A key or value that cannot work.
    pub fn parse(text: &str) -> Result<Self> {
        Self::build(text, None)
    }

    fn build(text: &str, model: Option<&Path>) -> Result<Self> {
        // First as it stands, for errors with their line; then over what suits the model.
        let mut plain: Self =
            toml::from_str(text).map_err(|e| anyhow::anyhow!(mistake::told(text, &e)))?;
        if let Some(dir) = model {
            plain.model.dir = Some(dir.to_owned());
        }
        let full = plain.training.parameters == Parameters::Full;
        let suits: &[&str] = match (plain.model.dir.is_some(), full) {
            (true, false) => &[],
            (true, true) => &[FULL],
            (false, false) => &[EMBEDDED],
            (false, true) => &[EMBEDDED, EMBEDDED_FULL],
        };
        let config = if suits.is_empty() {
            plain
        } else {
            let mut merged = toml::Table::new();
            for text in suits.iter().chain([&text]) {
                overlay(&mut merged, toml::from_str(text)?);
            }
            let mut config: Self = merged.try_into()?;
            config.model.dir = plain.model.dir;
            config
        };
        config
            .validate()
            .map_err(|e| anyhow::anyhow!(mistake::placed(text, &format!("{e:#}"))))?;
        Ok(config)
    }

    /// The file in which grants are written down.
    pub fn grants_file(&self) -> PathBuf {
        self.grants
            .clone()
            .unwrap_or_else(|| self.server.data.join("grants.toml"))
    }

    /// How turns are judged: as `[judging]` says, and so that a hint alone gives a sample where training can use it.
    pub(crate) fn judging(&self) -> JudgingOptions {
        let mut judging = self.judging.clone();
        judging.hinted_samples |= self.training.enabled && self.training.method.uses_hints();
        judging
    }

    /// Checks values that depend on each other or have bounds.
    ///
    /// # Errors
    /// The first value that cannot work, with its key.
    pub fn validate(&self) -> Result<()> {
        self.training.validate()?;
        anyhow::ensure!(
            self.training.estimator != Estimator::Step,
            "training.estimator = step: needs the trajectory, the step and the votes of episodes, which environments give and conversations do not have; take \"baseline\" or \"group\""
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

    /// The keys that are let in, the environment's `CLAWHOST_API_KEY` among them.
    ///
    /// # Errors
    /// A key without a name or secret, a name that is used twice, an unknown scope, a missing environment variable.
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
        check_names(&keys)?;
        Ok(keys)
    }
}

/// Puts `over` on top of `base`, table by table.
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
    fn the_embedded_policy_has_defaults_of_its_own_and_the_file_wins() {
        let config = Config::parse("").unwrap();
        assert_eq!(config.training.optimizer.learning_rate, 1.3e-3);
        let config = Config::parse("[training.optimizer]\nlearning_rate = 1e-3").unwrap();
        assert_eq!(config.training.optimizer.learning_rate, 1e-3);
        assert_eq!(config.training.batch, 4);
        let config = Config::parse("[model]\ndir = \"x\"").unwrap();
        assert_eq!(config.training.batch, TrainingOptions::default().batch);
    }

    #[test]
    fn the_forms_of_replies_can_be_set() {
        let forms = |text: &str| {
            let options = Config::parse(text)
                .unwrap()
                .model
                .forms(EngineOptions::default());
            (options.calls, options.reasoning)
        };
        assert_eq!(forms(""), (None, None));
        assert_eq!(
            forms("[model]\ntool_calls = \"qwen-xml\"\nreasoning = \"unopened\""),
            (Some(CallForm::QwenXml), Some(ReasoningForm::Unopened))
        );
        assert_eq!(
            forms("[model]\ntool_calls = \"llama\"\nreasoning = \"none\""),
            (Some(CallForm::Llama), Some(ReasoningForm::None))
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
    fn a_hint_alone_gives_a_sample_where_training_learns_from_hints() {
        let hinted = |text: &str| Config::parse(text).unwrap().judging().hinted_samples;
        assert!(!hinted("[training]\nmethod = \"binary\""));
        assert!(hinted("[training]\nmethod = \"hybrid\""));
        assert!(!hinted("[training]\nmethod = \"opd\"\nenabled = false"));
        assert!(hinted(
            "[judging]\nhinted_samples = true\n[training]\nmethod = \"binary\""
        ));
    }

    #[test]
    fn all_parameters_take_a_rate_of_their_own_and_the_file_wins() {
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
    fn mistakes_are_named_with_their_line_and_the_nearest_key() {
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
            let said = message(text);
            assert!(
                said.contains(&format!("line {line}, ")) && said.contains(part),
                "{said}"
            );
        }
        assert!(message("[server]\nport = \"x\"").contains("line 2"));
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let text = toml::to_string(&Config::parse("").unwrap()).unwrap();
        assert_eq!(
            toml::to_string(&Config::parse(&text).unwrap()).unwrap(),
            text
        );
    }

    #[test]
    fn keys_of_one_name_are_refused_since_they_would_share_their_sessions() {
        let key = |name: &str, secret: &str| {
            format!("[[keys]]\nname = \"{name}\"\nsecret = \"{secret}\"\n")
        };
        let keys = |second: &str| {
            let text = key("app", "0123456789abcdef") + &key(second, "fedcba9876543210");
            Config::parse(&text).unwrap().api_keys()
        };
        assert!(keys("other").is_ok());
        let error = keys("app").unwrap_err().to_string();
        assert!(error.contains("two keys are named `app`"), "{error}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let config = Config::parse("[[keys]]\nname = \"a\"\nsecret = \"hunter2\"").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
