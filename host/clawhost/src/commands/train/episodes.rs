//! `clawhost train --env`: reinforcement learning on episodes of an environment.
//!
//! Each step runs a group of episodes for several tasks with the active version, records them in the journal, and lets the
//! trainer take its next step on the queue, as it does with conversations. A run that was killed continues: episodes that
//! are in the journal are not run again, and steps are counted from the journal.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_config::{TrainingMethod, TrainingOptions, require_step_estimator};
use clawhost_episodes::{
    EpisodeRecord, EpisodeReport, EpisodeRunner, EpisodeSource, SampleUnit, Task, choose_tasks,
    is_recorded, plan_groups, record_episode,
};
use clawhost_journal::{Journal, StepOutcome};
use clawhost_training::{OfflineStep, OfflineTrainer};
use serde_json::{Value, json};

use super::TrainArgs;
use crate::capabilities::PluginState;
use crate::commands::env::rollout::{
    RolloutArgs, SplitChoice, load_environment, load_step_judge, report_text, run_with_progress,
    tasks_of,
};
use crate::config::Config;
use crate::output::{print, print_json};
use crate::progress::Progress;
use crate::serve;

/// Journal key of the number of steps before the run.
const FIRST_STEP: &str = "episodes/steps_before";
/// Journal key of the evaluation before the run.
const BEFORE: &str = "episodes/evaluation_before";
/// Steps of a run without `--steps`.
const DEFAULT_STEPS: u64 = 20;

/// The largest `training.batch_size`.
const MAX_BATCH: usize = 65_536;

/// Flags of `clawhost train --env`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Training on episodes")]
pub(crate) struct EpisodeTrainArgs {
    /// Environment component to train in, instead of --from-journal
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from_journal", "dry_run", "all"], requires = "tasks")]
    pub(super) env: Option<PathBuf>,
    /// Task set, one JSON object per line; tasks with the split `held-out` are only evaluated
    #[arg(long, value_name = "FILE", requires = "env")]
    tasks: Option<PathBuf>,
    /// Data directory, created if it does not exist [default: server.data_dir]
    #[arg(long, value_name = "DIR", requires = "env")]
    data: Option<PathBuf>,
    /// Initial adapter in PEFT layout, such as that of `clawhost sft`, used when the data directory has no adapter yet
    #[arg(long, value_name = "DIR", requires = "env")]
    adapter: Option<PathBuf>,
    /// Episodes per task and step, which are compared with each other
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1024))]
    group: u32,
    /// Tasks per step [default: --parallel / --group]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tasks_per_step: Option<u32>,
    /// What becomes one training sample
    #[arg(long, value_name = "UNIT", default_value = "trajectory", value_parser = ["trajectory", "turn"])]
    sample_per: String,
    /// Judge component that votes on every reply; the votes join the reward of the episode
    #[arg(long, value_name = "FILE", requires = "env")]
    step_judge: Option<PathBuf>,
    /// Factor on the mean of the votes, added to the reward [default: training.advantage.step_coef, which is 1]
    #[arg(long, value_name = "COEF", requires = "step_judge")]
    step_coef: Option<f64>,
    /// Episodes per task of the evaluations before and after; 0 = none
    #[arg(long, value_name = "K", default_value_t = 4)]
    eval_samples: u32,
    #[command(flatten)]
    rollout: RolloutArgs,
}

/// Runs the command.
pub(super) fn train(args: &TrainArgs, env: &Path) -> Result<ExitCode> {
    let own = &args.episodes;
    let tasks_file = own.tasks.as_ref().context("pass a task set with --tasks")?;
    let train = tasks_of(tasks_file, SplitChoice::Train)?;
    let held_out = tasks_of(tasks_file, SplitChoice::HeldOut)?;
    ensure!(
        !train.is_empty(),
        "{} has no task with the split `train`",
        tasks_file.display()
    );
    let mut config = Config::load(args.config.as_deref(), &args.set, args.model.as_deref())?;
    if let Some(data) = &own.data {
        config.server.data_dir.clone_from(data);
    }
    config.plugins.files.extend(args.plugin.iter().cloned());
    if let Some(coef) = own.step_coef {
        config.training.advantage.step_coef = Some(coef);
    }
    if own.step_judge.is_some() {
        require_step_estimator(&config.training)?;
    }
    config.training.validate()?;
    let environment = load_environment(env, &config)?;
    let step_judge = own.step_judge.as_ref();
    let step_judge = step_judge
        .map(|file| load_step_judge(file, &config, own.rollout.seed))
        .transpose()?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    // Training blocks on its components within the runtime's context.
    let _context = runtime.enter();
    let journal = Journal::open(&config.server.data_dir)?;
    let model = serve::load_engine(&config)?;
    if own.adapter.is_some() {
        config.model.initial_adapter.clone_from(&own.adapter);
    }
    // The same command continues a run, whose adapter began with the initial one.
    if journal.active_adapter()?.is_none() {
        serve::load_initial_adapter(&config, &journal, &model.engine)?;
    }
    let state = PluginState::new(journal.clone(), config.plugins.state);
    let components = runtime.block_on(super::components(&config, state))?;
    let unit = match own.sample_per.as_str() {
        "turn" => SampleUnit::Turn,
        _ => SampleUnit::Trajectory,
    };
    let trainer = OfflineTrainer::open(
        journal.clone(),
        model.engine.clone(),
        config.server.data_dir.clone(),
        training_options(&config.training),
        components,
    )?;
    let runner = own
        .rollout
        .runner(&config, &model.engine, environment, unit)?;
    let runner = EpisodeRunner {
        step_judge,
        ..runner
    };
    let mut run = Run {
        json: args.json,
        args: own,
        model: &model.name,
        journal,
        runtime: &runtime,
        runner,
        trainer,
        train,
        held_out,
    };
    run.run(args.steps.unwrap_or(DEFAULT_STEPS))
}

/// The options of training on episodes: those of the configuration, except that there are only rewards, and that a step takes
/// all episodes of its round.
fn training_options(configured: &TrainingOptions) -> TrainingOptions {
    let mut options = configured.clone();
    options.method = TrainingMethod::Binary;
    options.min_batch_size = 1;
    options.batch_size = MAX_BATCH;
    options
}

/// A run in progress.
struct Run<'a> {
    json: bool,
    args: &'a EpisodeTrainArgs,
    model: &'a str,
    journal: Journal,
    runtime: &'a tokio::runtime::Runtime,
    runner: EpisodeRunner,
    trainer: OfflineTrainer,
    train: Vec<Arc<Task>>,
    held_out: Vec<Arc<Task>>,
}

impl Run<'_> {
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn run(&mut self, steps: u64) -> Result<ExitCode> {
        let started = Instant::now();
        let first = self.first_step()?;
        let done = self.last_step()? - first;
        if done > 0 {
            self.say(&format!("continuing after {done} of {steps} steps"))?;
        }
        if done >= steps {
            self.say("all steps are done; pass a larger --steps to train longer")?;
            return Ok(ExitCode::SUCCESS);
        }
        let before = self.evaluation_before()?;
        let mut progress = Progress::new((steps - done) as f64);
        let mut failed = false;
        for number in done + 1..=steps {
            let step_started = Instant::now();
            progress.stage(&format!("step {number} of {steps}: episodes"));
            let records = self.episodes(first + number)?;
            progress.stage(&format!("step {number} of {steps}: training"));
            let step = self.trainer.step(true)?;
            let step = step.with_context(|| no_samples(number, &records))?;
            progress.clear();
            progress.advance(1.0);
            failed |= step.outcome == StepOutcome::Failed;
            self.print_step(
                number,
                steps,
                &records,
                &step,
                step_started.elapsed().as_secs_f64(),
            )?;
        }
        let after = self.evaluate("after")?;
        self.finish(&before, &after, started.elapsed().as_secs_f64())?;
        Ok(if failed {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }

    /// Id of the newest step of the journal.
    fn last_step(&self) -> Result<u64> {
        let newest = self.journal.steps(1)?;
        let id = newest.first().map_or(0, |step| step.id.0);
        Ok(u64::try_from(id)?)
    }

    /// Id of the newest step before this run began, also if it was interrupted.
    fn first_step(&self) -> Result<u64> {
        if let Some(known) = self.journal.meta(FIRST_STEP)? {
            return known
                .parse()
                .with_context(|| format!("the journal's {FIRST_STEP} is no number: {known}"));
        }
        let first = self.last_step()?;
        self.journal.set_meta(FIRST_STEP, &first.to_string())?;
        Ok(first)
    }

    /// Runs the episodes of a step that are not in the journal yet, and records them.
    fn episodes(&self, step: u64) -> Result<Vec<EpisodeRecord>> {
        let args = self.args;
        let per_step = args
            .tasks_per_step
            .unwrap_or((args.rollout.parallel / args.group).max(1));
        let seed = args.rollout.seed;
        let tasks = choose_tasks(&self.train, per_step as usize, step - 1, seed);
        let plans = plan_groups(&tasks, args.group, seed, &format!("step-{step}"));
        let mut missing = Vec::new();
        for plan in plans {
            if !is_recorded(&self.journal, &plan)? {
                missing.push(plan);
            }
        }
        let environment = &self.runner.environment;
        let source = EpisodeSource {
            environment: environment.name(),
            digest: environment.digest(),
            model: self.model,
            sampling: &self.runner.options.sampling,
            tokenizer: self.runner.engine.tokenizer(),
            weight: 1.0,
        };
        let mut recorded = Ok(());
        let record = |record: &EpisodeRecord| {
            if let (Ok(()), Ok(episode)) = (&recorded, &record.result) {
                recorded = record_episode(&self.journal, &source, &record.plan, episode).map(drop);
            }
        };
        let records = self.runtime.block_on(self.runner.run(missing, record));
        recorded?;
        Ok(records)
    }

    fn evaluation_before(&self) -> Result<Value> {
        if let Some(known) = self.journal.meta(BEFORE)? {
            return Ok(serde_json::from_str(&known)?);
        }
        let before = self.evaluate("before")?;
        self.journal.set_meta(BEFORE, &before.to_string())?;
        Ok(before)
    }

    /// pass@1 on both splits.
    fn evaluate(&self, when: &str) -> Result<Value> {
        let mut evaluation = json!({});
        if self.args.eval_samples == 0 {
            return Ok(evaluation);
        }
        for (split, tasks) in [("train", &self.train), ("held-out", &self.held_out)] {
            if tasks.is_empty() {
                continue;
            }
            let seed = self.args.rollout.seed;
            let plans = plan_groups(tasks, self.args.eval_samples, seed, "eval");
            let title = format!("{when} training, {split}");
            // Votes train; they are no part of what is measured.
            let runner = EpisodeRunner {
                step_judge: None,
                ..self.runner.clone()
            };
            let work = run_with_progress(&runner, plans, &title);
            let report = EpisodeReport::new(&self.runtime.block_on(work));
            self.say(&report_text(&title, &report))?;
            evaluation[split] = serde_json::to_value(&report)?;
        }
        Ok(evaluation)
    }

    fn print_step(
        &self,
        number: u64,
        steps: u64,
        records: &[EpisodeRecord],
        step: &OfflineStep,
        seconds: f64,
    ) -> Result<()> {
        let report = EpisodeReport::new(records);
        if self.json {
            return print_json(&json!({
                "step": step.id, "number": number, "outcome": step.outcome, "reason": step.reason,
                "version": step.version, "digest": step.digest, "episodes": report, "metrics": step.metrics,
                "seconds": seconds,
            }));
        }
        let reward = report
            .reward
            .map_or("-".to_owned(), |reward| format!("{reward:.3}"));
        let pass = report
            .pass_at_1
            .map_or("-".to_owned(), |pass| format!("{:.3}", pass.mean));
        let mut line = format!(
            "step {number}/{steps} · {} episodes · pass@1 {pass} · reward {reward}",
            report.episodes
        );
        if report.no_verdict > 0 {
            line += &format!(" · {} without a verdict", report.no_verdict);
        }
        print(&format!(
            "{line} · {}",
            super::line(step, count(records), seconds)
        ))
    }

    fn finish(&self, before: &Value, after: &Value, seconds: f64) -> Result<()> {
        let (version, digest) = (self.trainer.version(), self.trainer.digest());
        if self.json {
            return print_json(&json!({
                "before": before, "after": after, "version": version, "digest": digest, "seconds": seconds,
            }));
        }
        for split in ["train", "held-out"] {
            let pass = |evaluation: &Value| evaluation[split]["pass_at_1"]["mean"].as_f64();
            if let (Some(before), Some(after)) = (pass(before), pass(after)) {
                print(&format!("{split}: pass@1 {before:.3} → {after:.3}"))?;
            }
        }
        print(&format!(
            "{seconds:.1} s; adapter version {version} is active in {}",
            self.journal.path().display()
        ))
    }

    /// Prints text, unless the output is JSON.
    fn say(&self, text: &str) -> Result<()> {
        if self.json { Ok(()) } else { print(text) }
    }
}

/// Samples of a step, for its line.
fn count(records: &[EpisodeRecord]) -> u64 {
    let sequences = records
        .iter()
        .filter_map(|record| record.result.as_ref().ok());
    sequences
        .map(|episode| episode.sequences.len() as u64)
        .sum()
}

fn no_samples(number: u64, records: &[EpisodeRecord]) -> String {
    let report = EpisodeReport::new(records);
    let reason = report.no_verdict_reasons.first();
    let reason = reason.map_or("no episode was run", |(reason, _)| reason.as_str());
    format!("step {number} has no samples: {reason}")
}
