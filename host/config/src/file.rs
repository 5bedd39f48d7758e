//! Reads a configuration file: defaults, defaults of the model, the file, the environment and `--set`, merged and
//! validated.

use std::path::Path;

use crate::config::Config;
use crate::error::{self, ConfigError};
use crate::overlay::overlay;
use crate::overrides::Overrides;
use crate::renamed;
use crate::sections::training::{
    AdapterScope, TrainableParameters, TrainingMethod, TrainingOptions,
};

/// Defaults for the embedded model. It is a thousand times smaller than the models the general defaults are made for,
/// so it takes a higher learning rate and smaller batches, and a demo is quick. At a constant 2e-3 it learns a style
/// within a dozen conversations but soon loses its arithmetic, so the rate falls as replies are accepted. The teacher is
/// the policy with the hint, compared on what it would have said. Accepted replies at a small weight teach sooner, before the
/// formatting that is asked for is lost; at a higher weight fewer fresh tasks are as wanted. The KL penalty is k2: k3 grows
/// with the exponential of a token's lost log-prob, so one such token would outweigh the whole batch.
pub(crate) const EMBEDDED_DEFAULTS: &str = r#"
[training]
method = "hybrid-divergence"
batch_size = 4
min_batch_size = 4
max_wait = "20s"
num_epochs = 3
baseline_rate = 0.3
[training.teacher]
source = "policy"
reward_weight = 0.5
top_k = 20
top_k_from = "teacher"
divergence = "jensen"
[training.loss]
kl_estimator = "k2"
kl_coef = 0.05
[training.pairs]
loss = "sft"
coef = 0.1
[training.rehearsal]
enabled = true
prompts = "homework"
coef = 0.75
replies_per_update = 8
first_replies = 40
[training.optimizer]
learning_rate = 1.2e-3
adaptive_lr = true
min_lr_ratio = 0.3
"#;

/// Defaults for the embedded model where the teacher can read the experience of an API key: each reply is distilled then, not
/// only those that were complained about, and all seeds learn more alike.
pub(crate) const EMBEDDED_EXPERIENCE_DEFAULTS: &str = "[experience]\nmode = \"distill\"";

/// Defaults for models of at least 50 million parameters, which follow instructions before they are trained: few
/// conversations must teach a wish, so steps are small and take several updates, hints and accepted replies teach what to
/// do, and rehearsal keeps what is not asked for as it is. The teacher is the policy with the hint in its prompt: the base model
/// follows a hint in four cases of five, and the policy learns to follow it more often. Rewards alone move such a model far
/// from itself, so they weigh less than hints and a KL penalty holds them back. The learning rate is high while replies are
/// rejected and falls as they are accepted. Accepted replies are examples from which the base model answers many questions as the
/// user wants it, which teaches a wish sooner than the few conversations alone. Pairs and rehearsal at a high weight keep what is
/// explicitly asked for.
pub(crate) const MIDDLE_DEFAULTS: &str = r#"
[training]
method = "hybrid-divergence"
batch_size = 4
min_batch_size = 4
max_wait = "30s"
num_epochs = 8
[training.advantage]
min_advantage = 0.02
[training.teacher]
source = "policy"
reward_weight = 0.3
top_k = 20
top_k_from = "teacher"
divergence = "jensen"
[training.loss]
kl_estimator = "k2"
kl_coef = 0.05
[training.pairs]
loss = "sft"
coef = 3.0
[training.few_shot]
coef = 3.0
[training.rehearsal]
enabled = true
coef = 8.0
contrary_share = 0.75
replies_per_update = 8
first_replies = 48
new_replies = 8
policy_replies = 32
[training.optimizer]
learning_rate = 1e-3
adaptive_lr = true
min_lr_ratio = 0.3
weight_decay = 0.0
"#;

/// Parameters from which [`MIDDLE_DEFAULTS`] apply.
const MIDDLE_PARAMETERS: u64 = 50_000_000;
/// Parameters from which [`LARGE_DEFAULTS`] apply too.
const LARGE_PARAMETERS: u64 = 1_000_000_000;

/// Further defaults for models of at least a billion parameters: an update takes long, so a step has fewer.
pub(crate) const LARGE_DEFAULTS: &str = r#"
[training]
num_epochs = 4
[training.optimizer]
learning_rate = 2e-4
"#;

/// Defaults for full fine-tuning: more parameters share each update, so each moves less and takes longer.
pub(crate) const FULL_DEFAULTS: &str = r#"
[training]
num_epochs = 4
[training.optimizer]
learning_rate = 1e-5
"#;

/// Defaults for full fine-tuning of the embedded model.
pub(crate) const EMBEDDED_FULL_DEFAULTS: &str = "[training.optimizer]\nlearning_rate = 4e-4";

impl Config {
    /// Reads and validates a configuration file; without one, the defaults. The values `sets` of `--set` override those
    /// of the environment, and these those of the file; `model` overrides `model.path`.
    ///
    /// # Errors
    /// The file cannot be read, or it, the environment or `sets` has an unknown key or an invalid value.
    pub fn load(
        file: Option<&Path>,
        sets: &[String],
        model: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let overrides = Overrides::new(environment, sets)?;
        let Some(path) = file else {
            return Self::build("", overrides, model)
                .map_err(|e| ConfigError(format!("the built-in defaults: {e}")));
        };
        let text = std::fs::read_to_string(path).map_err(|e| {
            let path = path.display();
            ConfigError(format!("cannot read the configuration {path}: {e}"))
        })?;
        Self::build(&text, overrides, model).map_err(|e| {
            let path = path.display();
            ConfigError(format!("cannot use the configuration {path}: {e}"))
        })
    }

    /// Like [`Config::load`], from text, without the environment.
    ///
    /// # Errors
    /// An unknown key or an invalid value.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::build(text, Overrides::default(), None)
    }

    pub(crate) fn build(
        text: &str,
        overrides: Overrides,
        model: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        if let Some(error) = renamed::renamed_key(text) {
            return Err(ConfigError(error));
        }
        let overrides = overrides.into_table();
        let mut file: toml::Table =
            toml::from_str(text).map_err(|e| ConfigError(error::parse_error(text, &e)))?;
        // Parse the text alone first, for errors with their line; then merge it over the model's defaults.
        let mut plain = match toml::from_str::<Self>(text) {
            Err(error) if overrides.is_empty() || !error.message().contains("missing field") => {
                return Err(ConfigError(error::parse_error(text, &error)));
            }
            Ok(plain) if overrides.is_empty() => plain,
            _ => {
                overlay(&mut file, overrides);
                read(file.clone())?
            }
        };
        if let Some(dir) = model {
            plain.model.path = Some(dir.to_owned());
        }
        let full = plain.training.parameters == TrainableParameters::Full;
        let mut defaults = defaults_of_model(plain.model.path.as_deref(), full);
        if plain.model.path.is_none() && can_distill_experience(&file, &plain.training) {
            defaults.push(EMBEDDED_EXPERIENCE_DEFAULTS);
        }
        let config = if defaults.is_empty() {
            plain
        } else {
            let mut merged = toml::Table::new();
            for text in defaults {
                let defaults = toml::from_str(text).expect("the defaults of a model are TOML");
                overlay(&mut merged, defaults);
            }
            overlay(&mut merged, file);
            let mut config: Self = read(merged)?;
            config.model.path = plain.model.path;
            config
        };
        config
            .validate()
            .map_err(|e| ConfigError(error::validation_error(text, &e.to_string())))?;
        Ok(config)
    }
}

/// The defaults of a model, later ones over earlier ones; `path` is none for the embedded model.
fn defaults_of_model(path: Option<&Path>, full: bool) -> Vec<&'static str> {
    let mut defaults = Vec::new();
    match path.map(estimate_parameters) {
        None => defaults.push(EMBEDDED_DEFAULTS),
        Some(parameters) => {
            if parameters >= MIDDLE_PARAMETERS {
                defaults.push(MIDDLE_DEFAULTS);
            }
            if parameters >= LARGE_PARAMETERS {
                defaults.push(LARGE_DEFAULTS);
            }
        }
    }
    match (full, path) {
        (false, _) => {}
        (true, Some(_)) => defaults.push(FULL_DEFAULTS),
        (true, None) => defaults.push(EMBEDDED_FULL_DEFAULTS),
    }
    defaults
}

/// Whether a file trains the embedded model with its default method, and leaves experience to API keys. `training` is that of
/// the file, over the general defaults.
fn can_distill_experience(file: &toml::Table, training: &TrainingOptions) -> bool {
    let sets_method = file.get("training").and_then(|t| t.get("method")).is_some();
    training.enabled
        && training.adapters != AdapterScope::User
        && training.teacher.distillation_weight > 0.0
        && (!sets_method || training.method == TrainingMethod::HybridDivergence)
}

/// The number of parameters of a checkpoint, estimated from the size of its weight files: two bytes each in safetensors
/// files, one in GGUF files. 0 if there are none; loading the model reports that.
fn estimate_parameters(path: &Path) -> u64 {
    let of_file = |path: &Path| {
        let bytes_per_parameter = match path.extension().and_then(|name| name.to_str()) {
            Some("safetensors") => 2,
            Some("gguf") => 1,
            _ => return 0,
        };
        std::fs::metadata(path).map_or(0, |file| file.len() / bytes_per_parameter)
    };
    match std::fs::read_dir(path) {
        Ok(entries) => entries
            .filter_map(|entry| Some(of_file(&entry.ok()?.path())))
            .sum(),
        Err(_) => of_file(path),
    }
}

fn read(table: toml::Table) -> Result<Config, ConfigError> {
    let config: Result<Config, _> = table.try_into();
    config.map_err(|e| ConfigError(error::with_suggestion(e.message())))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{ExperienceMode, PairLoss};

    #[test]
    fn the_embedded_model_has_its_own_defaults_and_the_file_overrides_them() {
        let config = Config::parse("").unwrap();
        assert_eq!(config.training.optimizer.learning_rate, 1.2e-3);
        let config = Config::parse("[training.optimizer]\nlearning_rate = 1e-3").unwrap();
        assert_eq!(config.training.optimizer.learning_rate, 1e-3);
        assert_eq!(config.training.batch_size, 4);
        let config = Config::parse("[model]\npath = \"x\"").unwrap();
        assert_eq!(
            config.training.batch_size,
            TrainingOptions::default().batch_size
        );
    }

    #[test]
    fn the_embedded_model_distils_experience_where_it_can() {
        let mode = |text: &str| Config::parse(text).unwrap().experience.mode;
        assert_eq!(mode(""), ExperienceMode::Distill);
        assert_eq!(
            mode("[training]\nadapters = \"key\"\nmethod = \"hybrid-divergence\""),
            ExperienceMode::Distill
        );
        for off in [
            "[training]\nadapters = \"user\"",
            "[training]\nmethod = \"binary\"",
            "[training]\nenabled = false",
            "[training.teacher]\ndistillation_weight = 0",
            "[experience]\nmode = \"off\"",
            "[model]\npath = \"x\"",
        ] {
            assert_eq!(mode(off), ExperienceMode::Off, "{off}");
        }
    }

    #[test]
    fn the_size_of_the_weights_chooses_the_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let config = |size: u64, text: &str| {
            // A sparse file has a size without data.
            let file = std::fs::File::create(dir.path().join("model.safetensors")).unwrap();
            file.set_len(size).unwrap();
            Config::build(text, Overrides::default(), Some(dir.path())).unwrap()
        };
        let (small, middle, large) = (99_000_000, 270_000_000, 3_000_000_000);
        let rate = |size, text: &str| config(size, text).training.optimizer.learning_rate;
        assert_eq!(config(small, "").training, TrainingOptions::default());
        let options = config(middle, "").training;
        assert_eq!(
            (
                options.pairs.loss,
                options.rehearsal.enabled,
                options.num_epochs
            ),
            (PairLoss::Sft, true, 8)
        );
        assert_eq!((rate(middle, ""), rate(large, "")), (1e-3, 2e-4));
        assert_eq!(config(large, "").training.num_epochs, 4);
        assert_eq!(
            rate(large, "[training.optimizer]\nlearning_rate = 1e-3"),
            1e-3
        );
        let full = config(middle, "[training]\nparameters = \"full\"").training;
        assert_eq!((full.optimizer.learning_rate, full.num_epochs), (1e-5, 4));
        let off = config(middle, "[training.pairs]\nloss = \"none\"").training;
        assert_eq!((off.pairs.loss, off.batch_size), (PairLoss::None, 4));
    }

    #[test]
    fn hints_alone_give_samples_when_the_method_uses_hints() {
        let hinted = |text: &str| {
            Config::parse(text)
                .unwrap()
                .judging_options()
                .hint_only_samples
        };
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
            Config::parse(dir).unwrap().model.path,
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
            ("[training]\nbatch_size = 0", 2, "training.batch_size = 0"),
            (
                "[sessions]\n\nidle_timeout = \"-1m\"",
                3,
                "must be a duration",
            ),
            (
                "[training]\nestimator = \"gae\"\n[training.advantage]\nreward_kl_coef = 0.1",
                4,
                "training.advantage.reward_kl_coef",
            ),
            ("[training]\nestimator = \"step\"", 2, "environments"),
            (
                "[training.advantage]\ngama = 0.1",
                2,
                "did you mean `gamma`",
            ),
            ("[training.log]\njson = true", 2, "did you mean `jsonl`"),
            ("[judging]\nvotez = 1", 2, "votez"),
            (
                "[server]\nwrite_timeout = \"0s\"",
                2,
                "server.write_timeout = \"0s\": must be more than 0",
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
[models.other]
url = "http://127.0.0.1:1/v1"
[plugins]
files = ["a.wasm"]
[plugins.config."a.b"]
profile = "fast"
[plugins.config."a.b".settings]
style = { strict = true }
[plugins.config."a.b".limits]
fuel = 7
[training]
method = "opd"
[training.loss]
aggregation = { constant = 1024 }
[training.teacher]
source = "endpoint"
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
        let printed = |text: &str| crate::toml_text(&Config::parse(text).unwrap()).unwrap();
        for text in ["", EVERYTHING] {
            let once = printed(text);
            assert_eq!(printed(&once), once);
            let values = |text: &str| toml::to_string(&Config::parse(text).unwrap()).unwrap();
            assert_eq!(values(&once), values(text));
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let config = Config::parse("[[api_keys]]\nname = \"a\"\nsecret = \"hunter2\"").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
