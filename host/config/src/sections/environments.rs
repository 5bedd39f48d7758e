//! `[[environments]]`: the environments whose episodes a server runs and trains on beside its conversations.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::component_name::component_name;
use crate::rules::{OptionsError, require};
use crate::sections::training::{AdapterScope, Estimator, TrainingMethod, TrainingOptions};

/// One `[[environments]]` entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentConfig {
    /// The environment component: a file, or `oci://REGISTRY/NAME@sha256:DIGEST`. The name of the file without its extension, or
    /// the last part of the name in the registry, is the name of the environment. A changed file is loaded before the next
    /// round.
    pub file: PathBuf,
    /// The task set, one JSON object per line. Tasks with the split `held-out` are not run.
    pub tasks: PathBuf,
    /// Factor on the advantages of its samples; a conversation has 1. Default 1.
    #[serde(default = "weight")]
    pub weight: f64,
    /// Episodes that run at a time, at least `group`. They are a round, whose samples are trained on when all of them have
    /// ended. Default 16.
    #[serde(default = "parallel")]
    pub parallel: u32,
    /// Episodes of a task in a round, which are compared with each other. Default 8.
    #[serde(default = "group")]
    pub group: u32,
    /// Replies after which an episode is cut off and graded. Default 32.
    #[serde(default = "max_steps")]
    pub max_steps: u32,
    /// Maximum tokens of a reply. Default 512.
    #[serde(default = "max_tokens")]
    pub max_tokens: u32,
    /// A judge component that votes on every reply. `training.advantage.step_coef` times the mean of the votes is added to the
    /// reward of the episode; a reply whose judge fails has no vote. It is loaded at the start. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_judge: Option<PathBuf>,
    /// Tokens of a prompt, at least 64, above which its middle is left out. Default 0: an episode ends when the context is full.
    #[serde(default)]
    pub context_tokens: u32,
    /// A directory that keeps a transcript, the outcome and the screenshots of each episode, with a page to watch them. Nothing
    /// in it is ever deleted. Default none: nothing is kept of an episode except its record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<PathBuf>,
}

fn weight() -> f64 {
    1.0
}

fn parallel() -> u32 {
    16
}

fn group() -> u32 {
    8
}

fn max_steps() -> u32 {
    32
}

fn max_tokens() -> u32 {
    512
}

impl EnvironmentConfig {
    /// An environment with the defaults.
    pub fn new(file: PathBuf, tasks: PathBuf) -> Self {
        Self {
            file,
            tasks,
            weight: weight(),
            parallel: parallel(),
            group: group(),
            max_steps: max_steps(),
            max_tokens: max_tokens(),
            step_judge: None,
            context_tokens: 0,
            artifacts: None,
        }
    }

    /// The name of the environment: that of its component.
    pub fn name(&self) -> String {
        component_name(&self.file)
    }

    fn validate(&self) -> Result<(), OptionsError> {
        require(
            self.weight > 0.0 && self.weight <= 1e3,
            "environments.weight",
            self.weight,
            "must be more than 0 and at most 1000; remove the environment to run no episodes of it",
        )?;
        require(
            (2..=1024).contains(&self.group),
            "environments.group",
            self.group,
            "must be between 2 and 1024; one episode of a task has nothing to be compared with",
        )?;
        require(
            self.parallel >= self.group && self.parallel <= 4096,
            "environments.parallel",
            self.parallel,
            "must be at least environments.group and at most 4096",
        )?;
        require(
            self.context_tokens == 0 || self.context_tokens >= 64,
            "environments.context_tokens",
            self.context_tokens,
            "must be at least 64, or 0",
        )?;
        let steps_and_tokens = [
            ("environments.max_steps", self.max_steps),
            ("environments.max_tokens", self.max_tokens),
        ];
        steps_and_tokens
            .into_iter()
            .try_for_each(|(key, value)| require(value >= 1, key, value, "must be at least 1"))
    }
}

/// Checks that the estimator of episodes uses the votes of a step judge.
///
/// # Errors
/// `training.episode_estimator`, if it does not.
pub fn require_step_estimator(training: &TrainingOptions) -> Result<(), OptionsError> {
    require(
        training.episode_estimator == Estimator::Step,
        "training.episode_estimator",
        training.episode_estimator.name(),
        "does not use the votes of a step judge; set it to \"step\", or remove the step judge",
    )
}

/// Checks the environments of a server, and that its training can use their episodes.
pub(crate) fn validate_environments(
    environments: &[EnvironmentConfig],
    training: &TrainingOptions,
) -> Result<(), OptionsError> {
    for (index, environment) in environments.iter().enumerate() {
        environment.validate()?;
        let name = environment.name();
        require(
            environments[..index].iter().all(|one| one.name() != name),
            "environments.file",
            environment.file.display(),
            "has the name of another environment; rename one of the files",
        )?;
    }
    if environments.is_empty() {
        return Ok(());
    }
    if environments.iter().any(|one| one.step_judge.is_some()) {
        require_step_estimator(training)?;
    }
    require(
        training.enabled,
        "training.enabled",
        false,
        "leaves the episodes of [[environments]] without use; enable training, or remove the environments",
    )?;
    require(
        training.method.uses_rewards(),
        "training.method",
        match training.method {
            TrainingMethod::Opd => "opd",
            _ => "opd-topk",
        },
        "trains on hints alone, which episodes of [[environments]] do not have; use \"binary\" or \"hybrid\"",
    )?;
    let scope = match training.adapters {
        AdapterScope::Shared => return Ok(()),
        AdapterScope::Key => "key",
        AdapterScope::User => "user",
    };
    require(
        false,
        "training.adapters",
        scope,
        "gives people adapters of their own, and episodes of [[environments]] belong to none of them; use \"shared\", or run the environments on a server of their own",
    )
}

#[cfg(test)]
mod tests {
    use crate::Config;

    fn error(more: &str, rest: &str) -> String {
        let text =
            format!("[[environments]]\nfile = \"a/x.wasm\"\ntasks = \"t.jsonl\"\n{more}\n{rest}");
        let error = Config::parse(&text).map(|config| config.validate());
        match error {
            Err(error) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(())) => String::new(),
        }
    }

    #[test]
    fn an_environment_is_a_file_and_a_task_set() {
        let text = "[[environments]]\nfile = \"a/x.wasm\"\ntasks = \"t.jsonl\"\nweight = 0.5";
        let config = Config::parse(text).unwrap();
        let environment = &config.environments[0];
        assert_eq!(environment.name(), "x");
        assert_eq!((environment.weight, environment.group), (0.5, 8));
        assert_eq!(error("", ""), "");
        assert_eq!(error("step_judge = \"j.wasm\"", ""), "");
    }

    #[test]
    fn what_training_cannot_use_is_rejected() {
        for (more, rest, part) in [
            (
                "weight = 0.0",
                "",
                "environments.weight = 0: must be more than 0",
            ),
            ("weight = nan", "", "environments.weight"),
            (
                "step_judge = \"j.wasm\"",
                "[training]\nepisode_estimator = \"group\"",
                "votes of a step judge",
            ),
            ("group = 1", "", "nothing to be compared with"),
            ("parallel = 4", "", "at least environments.group"),
            ("max_steps = 0", "", "environments.max_steps = 0"),
            (
                "context_tokens = 63",
                "",
                "environments.context_tokens = 63",
            ),
            (
                "",
                "[[environments]]\nfile = \"b/x.wasm\"\ntasks = \"t\"",
                "rename one of the files",
            ),
            ("", "[training]\nenabled = false", "enable training"),
            ("", "[training]\nmethod = \"opd\"", "trains on hints alone"),
            (
                "",
                "[training]\nadapters = \"key\"",
                "training.adapters = key: gives people adapters of their own",
            ),
            ("", "[training]\nadapters = \"user\"", "use \"shared\""),
        ] {
            let found = error(more, rest);
            assert!(found.contains(part), "{more} {rest}: {found}");
        }
    }
}
