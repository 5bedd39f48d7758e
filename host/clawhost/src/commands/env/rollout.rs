//! What the commands that run episodes share: their flags, the environment, the runner and the report.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use clawhost_engine::{Engine, SamplingParams};
use clawhost_episodes::{
    EpisodeOptions, EpisodePlan, EpisodeRecord, EpisodeReport, EpisodeRunner, SampleUnit, Split,
    StepJudge, Task, load_tasks,
};
use clawhost_evaluation::statistics::Estimate;
use clawhost_plugins::{Kind, Plugin};

use crate::commands::plugin::load::load_live;
use crate::config::Config;
use crate::environments::{call_context, open_artifacts};
use crate::progress::Progress;

/// Flags of episodes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Episodes")]
pub(in crate::commands) struct RolloutArgs {
    /// Episodes that run at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(in crate::commands) parallel: u32,
    /// Replies after which an episode is cut off and graded
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    max_steps: u32,
    /// Maximum tokens of a reply
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Tokens of a prompt above which its middle is left out [default: the episode ends when the context is full]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..))]
    context_tokens: Option<u32>,
    /// Sampling temperature
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    temperature: f32,
    /// Seconds after which an episode has no verdict
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    wall_limit: u64,
    /// Seed of the episodes
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(in crate::commands) seed: u64,
    /// Keep a transcript, the outcome and the screenshots of each episode below this directory, with a page to watch them
    #[arg(long, value_name = "DIR")]
    artifacts: Option<PathBuf>,
}

/// The part of a task set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::commands) enum SplitChoice {
    /// Tasks with the split `train`, which is the default of a task
    Train,
    /// Tasks with the split `held-out`
    HeldOut,
    /// All tasks
    All,
}

impl RolloutArgs {
    /// Options of each episode.
    pub(in crate::commands) fn options(&self, unit: SampleUnit) -> Result<EpisodeOptions> {
        let sampling = SamplingParams {
            temperature: self.temperature,
            max_tokens: self.max_tokens,
            ..SamplingParams::default()
        };
        sampling.validate()?;
        Ok(EpisodeOptions {
            max_steps: self.max_steps,
            wall_limit: Duration::from_secs(self.wall_limit),
            unit,
            context_tokens: self.context_tokens,
            sampling,
            artifacts: self.artifacts.as_deref().map(open_artifacts).transpose()?,
            ..EpisodeOptions::default()
        })
    }

    /// A runner of episodes with the engine's active version.
    pub(in crate::commands) fn runner(
        &self,
        config: &Config,
        engine: &Engine,
        environment: Plugin,
        unit: SampleUnit,
    ) -> Result<EpisodeRunner> {
        Ok(EpisodeRunner {
            engine: engine.clone(),
            call: call_context(config, &environment, self.seed),
            environment,
            step_judge: None,
            options: self.options(unit)?,
            parallel: self.parallel as usize,
        })
    }
}

/// Loads an environment with its grants.
pub(in crate::commands) fn load_environment(file: &Path, config: &Config) -> Result<Plugin> {
    let (plugin, _) = load_live(file, config, false)?;
    ensure!(
        plugin.kind() == Kind::Environment,
        "{} is a {}, not an environment",
        file.display(),
        plugin.kind()
    );
    Ok(plugin)
}

/// Loads a judge of steps with its grants.
pub(in crate::commands) fn load_step_judge(
    file: &Path,
    config: &Config,
    seed: u64,
) -> Result<StepJudge> {
    let (judge, _) = load_live(file, config, false)?;
    ensure!(
        judge.kind() == Kind::Judge,
        "--step-judge {} is a {}, not a judge",
        file.display(),
        judge.kind()
    );
    Ok(StepJudge {
        call: call_context(config, &judge, seed),
        judge,
    })
}

/// The tasks of a split.
pub(in crate::commands) fn tasks_of(file: &Path, split: SplitChoice) -> Result<Vec<Arc<Task>>> {
    let wanted = |task: &Task| match split {
        SplitChoice::All => true,
        SplitChoice::Train => task.split == Split::Train,
        SplitChoice::HeldOut => task.split == Split::HeldOut,
    };
    let tasks = load_tasks(file)?.into_iter().filter(wanted).map(Arc::new);
    Ok(tasks.collect())
}

/// Runs episodes with progress on standard error.
pub(in crate::commands) async fn run_with_progress(
    runner: &EpisodeRunner,
    plans: Vec<EpisodePlan>,
    what: &str,
) -> Vec<EpisodeRecord> {
    let mut progress = Progress::new(f64::from(u32::try_from(plans.len()).unwrap_or(u32::MAX)));
    progress.stage(what);
    let records = runner
        .run(plans, |_| {
            progress.advance(1.0);
            progress.stage(what);
        })
        .await;
    progress.clear();
    records
}

/// A report as text.
pub(in crate::commands) fn report_text(title: &str, report: &EpisodeReport) -> String {
    let number = |value: Option<f64>, digits: usize| match value {
        Some(value) => format!("{value:.digits$}"),
        None => "-".to_owned(),
    };
    let mut text = format!(
        "{title}: pass@1 {}, {} episodes of {} tasks",
        estimate_text(report.pass_at_1),
        report.episodes,
        report.tasks,
    );
    if report.k > 1 {
        text += &format!("\n  pass@{} {}", report.k, estimate_text(report.pass_at_k));
    }
    text += &format!(
        "\n  mean reward {}, replies {}, tokens {}, {} s per episode",
        number(report.reward, 3),
        number(report.steps, 1),
        number(report.tokens, 1),
        number(report.seconds, 2),
    );
    for (family, figures) in &report.families {
        text += &format!(
            "\n  {family}: pass@1 {:.3} of {} episodes",
            figures.pass_at_1, figures.episodes
        );
    }
    if report.no_verdict > 0 {
        text += &format!("\n  {} episodes without a verdict:", report.no_verdict);
        for (reason, count) in &report.no_verdict_reasons {
            text += &format!("\n    {count} × {reason}");
        }
    }
    text
}

/// An estimate with its 95 % interval.
fn estimate_text(estimate: Option<Estimate>) -> String {
    match estimate {
        Some(found) if found.has_interval() => {
            format!("{:.3} [{:.3}, {:.3}]", found.mean, found.low, found.high)
        }
        Some(found) => format!("{:.3}", found.mean),
        None => "-".to_owned(),
    }
}
