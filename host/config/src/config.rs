//! The whole configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::rules::{OptionsError, require};
use crate::sections::api_keys::KeyConfig;
use crate::sections::engine::{EngineConfig, Quantization};
use crate::sections::environments::{EnvironmentConfig, validate_environments};
use crate::sections::experience::{ExperienceMode, ExperienceOptions};
use crate::sections::judging::JudgingOptions;
use crate::sections::model::ModelSection;
use crate::sections::models::ModelAlias;
use crate::sections::plugins::PluginsConfig;
use crate::sections::sandbox::SandboxConfig;
use crate::sections::server::ServerConfig;
use crate::sections::sessions::SessionOptions;
use crate::sections::training::{Estimator, TrainableParameters, TrainingOptions};

/// The whole configuration.
#[derive(Debug, Clone, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The HTTP endpoint.
    pub server: ServerConfig,
    /// The served model.
    pub model: ModelSection,
    /// The device, batching and the KV cache.
    pub engine: EngineConfig,
    /// How requests are matched to conversations.
    pub sessions: SessionOptions,
    /// Judging of turns.
    pub judging: JudgingOptions,
    /// Training.
    pub training: TrainingOptions,
    /// Experience: what is kept of corrections, and how it is used.
    pub experience: ExperienceOptions,
    /// Plugins.
    pub plugins: PluginsConfig,
    /// Machines of environments.
    pub sandbox: SandboxConfig,
    /// Environments whose episodes run in the background, below the priority of people; the model is trained on both.
    pub environments: Vec<EnvironmentConfig>,
    /// Models that plugins can call, by alias. `policy` is the served model; `judge` and `teacher` are its base model
    /// unless configured.
    pub models: BTreeMap<String, ModelAlias>,
    /// API keys.
    pub api_keys: Vec<KeyConfig>,
}

impl Config {
    /// The grants file.
    pub fn grants_file(&self) -> PathBuf {
        let default = || self.server.data_dir.join("grants.toml");
        self.plugins.grants_file.clone().unwrap_or_else(default)
    }

    /// The judging options: those of `[judging]`, with samples from hints alone enabled when training can use them.
    pub fn judging_options(&self) -> JudgingOptions {
        let mut judging = self.judging.clone();
        judging.hint_only_samples |= self.training.enabled && self.training.method.uses_hints();
        judging
    }

    /// How experience is used: as configured, or only in prompts if training is off.
    pub fn experience_options(&self) -> ExperienceOptions {
        let mut experience = self.experience.clone();
        if !self.training.enabled {
            experience.mode = match experience.mode {
                ExperienceMode::Both => ExperienceMode::Inject,
                mode => mode,
            };
        }
        experience
    }

    /// The configuration for printing: secrets that are not in the environment are replaced.
    #[must_use]
    pub fn redacted(mut self) -> Self {
        for key in &mut self.api_keys {
            key.secret = key.secret.redacted();
        }
        let models = self.models.values_mut().map(|model| &mut model.api_key);
        let remote = self.engine.remote.iter_mut().map(|r| &mut r.api_key);
        let teacher = &mut self.training.teacher.endpoint;
        let teacher = teacher.iter_mut().map(|endpoint| &mut endpoint.api_key);
        for key in models.chain(remote).chain(teacher).flatten() {
            *key = key.redacted();
        }
        self
    }

    /// Validates bounds and dependencies between values.
    ///
    /// # Errors
    /// The first invalid value, with its key.
    pub fn validate(&self) -> Result<(), OptionsError> {
        self.training.validate()?;
        require(
            self.training.estimator != Estimator::Step,
            "training.estimator",
            "step",
            "needs the trajectories, steps and votes of episodes from environments, which conversations do not have; use \"baseline\" or \"group\"",
        )?;
        self.engine.validate()?;
        require(
            self.engine.quantization == Quantization::None
                || self.training.parameters == TrainableParameters::Lora,
            "engine.quantization",
            self.engine.quantization.name(),
            "is only for a base model that is not trained; set training.parameters = \"lora\", or quantization = \"none\"",
        )?;
        if let Some(remote) = &self.engine.remote {
            remote.validate(&self.training)?;
        }
        self.judging.validate()?;
        self.experience.validate(&self.training)?;
        self.plugins.validate()?;
        self.sandbox.validate()?;
        validate_environments(&self.environments, &self.training)?;
        self.sessions.validate()?;
        self.server.validate()?;
        self.models
            .iter()
            .try_for_each(|(alias, model)| model.validate(alias))
    }
}
