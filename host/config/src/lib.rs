//! Configuration: one struct per table of `clawhost.toml`, with documentation, defaults, units and validation.
//!
//! [`Config::load`] reads a file. Precedence, lowest first: defaults, defaults of the embedded model (when it is served),
//! the file, the environment (`CLAWHOST_SECTION__KEY`), `--set section.key=value`. An unknown key is an error with file,
//! line and the nearest known key. [`toml_text`] prints a configuration with the documentation as comments, and
//! [`markdown`] writes the reference page; both read the documentation from the structs.
//!
//! The other crates take these structs. This crate depends on none of them.
//!
//! ```
//! let config = clawhost_config::Config::parse("[engine]\nkv_cache_memory = \"2GiB\"")?;
//! assert_eq!(config.engine.kv_cache_memory, Some(2 << 30));
//! let error = clawhost_config::Config::parse("[server]\nprot = 1").unwrap_err();
//! assert_eq!(error.to_string(), "line 2, column 1: unknown key `prot`; did you mean `port`?");
//! # Ok::<_, clawhost_config::ConfigError>(())
//! ```

mod component_name;
mod config;
mod duration;
mod error;
mod file;
mod overlay;
mod overrides;
mod page;
mod print;
#[cfg(test)]
mod reference_tests;
mod renamed;
mod rules;
mod secret;
mod section;
mod sections;
mod size;

pub use component_name::{component_name, oci_reference};
pub use config::Config;
pub use duration::{DurationText, duration_text, parse_duration};
pub use error::ConfigError;
pub use page::markdown;
pub use print::toml_text;
pub use rules::OptionsError;
pub use secret::{Secret, SecretError};
pub use section::{Choice, Key, Section, SectionKind};
pub use sections::api_keys::{KeyConfig, Scope};
pub use sections::engine::{
    DEFAULT_KV_CACHE_MEMORY, DeviceChoice, Dtype, EngineConfig, Gpus, Quantization,
};
pub use sections::environments::{EnvironmentConfig, require_step_estimator};
pub use sections::experience::{ExperienceMode, ExperienceOptions};
pub use sections::judging::{CombineRule, FaultPolicy, JudgingOptions, NeutralPolicy};
pub use sections::model::{ModelSection, ReasoningParser, ToolCallParser};
pub use sections::models::{LocalModel, ModelAlias};
pub use sections::oci::OciConfig;
pub use sections::plugin_limits::{LimitOverrides, Limits, VerdictRules};
pub use sections::plugins::{
    CompileLimits, PluginConfig, PluginHostConfig, PluginsConfig, Profile, StateConfig,
};
pub use sections::remote::{RemoteConfig, ServerKind};
pub use sections::sandbox::{SandboxConfig, SandboxProfile};
pub use sections::server::ServerConfig;
pub use sections::sessions::SessionOptions;
pub use sections::training::{
    AdapterScope, AdvantageOptions, Aggregation, ComparisonScope, DistillationDivergence,
    DistillationKind, Estimator, FewShotOptions, HintSelection, ImportanceLevel,
    ImportanceSamplingMode, KlEstimator, LogOptions, LoraSpec, LossMethod, LossOptions,
    LrScheduleShape, OldLogprobsSource, OptimizerOptions, PairLoss, PairOptions, RehearsalOptions,
    RehearsalPrompts, StepComparison, Target, TeacherEndpoint, TeacherOptions, TeacherSource,
    TopKSource, TrainableParameters, TrainingMethod, TrainingOptions, VerificationOptions,
};
pub use size::{SizeText, parse_size, size_text};
