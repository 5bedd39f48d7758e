//! `clawhost train`: training steps on recorded samples or on episodes of an environment, without a server.

mod episodes;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clawhost_config::component_name;
use clawhost_engine::Engine;
use clawhost_inspect::explain_planned_step;
use clawhost_journal::{Journal, StepOutcome};
use clawhost_plugins::{HostOptions, Kind};
use clawhost_training::{Components, OfflineStep, OfflineTrainer};
use serde::Serialize;
use serde_json::{Value, json};

use super::explain::step::text;
use crate::capabilities::PluginState;
use crate::config::Config;
use crate::output::{print, print_json, print_result};
use crate::plugin_loader::Loader;
use crate::progress::Progress;
use crate::serve;

/// File name of the journal in a data directory.
const JOURNAL: &str = "journal.sqlite";

/// Arguments of `clawhost train`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost train --from-journal ./clawhost-data --dry-run\n  \
    clawhost train --from-journal ./clawhost-data --config clawhost.toml\n  \
    clawhost train --from-journal ./copy-of-data --all --json\n  \
    clawhost train --env environment.wasm --tasks tasks.jsonl --group 8 --parallel 64 --steps 20\n\n\
    With --from-journal: runs the steps that `clawhost run` would run: the newest queued samples first, training.batch_size per step. \
    Each step is recorded in the journal with its adapter, and a server on this directory continues from the last one. The \
    directory must not be in use by a server, except with --dry-run. Samples that are more than \
    training.max_staleness versions old are dropped; raise it to train on a long queue. A run that was \
    interrupted continues where it stopped, with the same result.\n\n\
    With --env: each step runs a group of episodes for several tasks with the newest version, records them, and trains on \
    them by rewards, with training.episode_estimator (GRPO over trajectories by default). --steps counts from the first start on a data directory: a run \
    that was interrupted continues. A server on the directory serves the last version."
)]
pub(crate) struct TrainArgs {
    /// Data directory (or its journal.sqlite) of a server that is not running
    #[arg(long, value_name = "DIR", required_unless_present = "env")]
    from_journal: Option<PathBuf>,
    /// Show the next step (its samples, their advantages, dropped samples with the reason, and how far each would move)
    /// without writing anything
    #[arg(long)]
    dry_run: bool,
    /// Also train on the remaining samples when there are fewer than training.min_batch_size
    #[arg(long)]
    all: bool,
    /// Stop after this many steps [default: when the queue is empty; with --env 20]
    #[arg(long, value_name = "N", conflicts_with = "dry_run", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Configuration file; its [model] and [training] sections apply
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key of the configuration; can be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Model directory or GGUF file that generated the samples, instead of the embedded model
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Loss or advantage component; can be repeated
    #[arg(long, value_name = "FILE")]
    plugin: Vec<PathBuf>,
    /// Print one JSON object per step and a summary object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    episodes: episodes::EpisodeTrainArgs,
}

/// Runs the command.
pub(crate) fn train(args: &TrainArgs) -> Result<ExitCode> {
    let from = match (&args.episodes.env, &args.from_journal) {
        (Some(env), _) => return episodes::train(args, env),
        (None, Some(from)) => from,
        (None, None) => bail!("pass --from-journal or --env"),
    };
    let mut config = Config::load(args.config.as_deref(), &args.set, args.model.as_deref())?;
    config.server.data_dir = directory(from)?;
    config.plugins.files.extend(args.plugin.iter().cloned());
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    // Training blocks on its components within the runtime's context.
    let _context = runtime.enter();
    if args.dry_run {
        return preview(args, &config, &runtime);
    }
    let journal = Journal::open(&config.server.data_dir)?;
    let engine = serve::load_engine(&config)?.engine;
    serve::load_initial_adapter(&config, &journal, &engine)?;
    let state = PluginState::new(journal.clone(), config.plugins.state);
    let components = runtime.block_on(components(&config, state))?;
    let teacher = serve::remote_teacher(&config, &engine)?;
    let mut offline = OfflineTrainer::open(
        journal,
        engine,
        config.server.data_dir.clone(),
        config.training.clone(),
        components,
    )?
    .with_teacher(teacher)
    .with_experience(config.experience_options());
    let mut run = Run::new(args.json, &offline)?;
    while args.steps.is_none_or(|limit| run.totals.steps < limit)
        && run.step(&mut offline, args.all)?
    {}
    run.finish(&offline, config.training.min_batch_size)
}

/// The data directory of `--from-journal`.
fn directory(path: &Path) -> Result<PathBuf> {
    let dir = match path.file_name() {
        Some(name) if name == JOURNAL => match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
            _ => PathBuf::from("."),
        },
        _ => path.to_owned(),
    };
    ensure!(
        dir.join(JOURNAL).is_file(),
        "no {JOURNAL} in {}; pass the data directory of a server with --from-journal",
        dir.display()
    );
    Ok(dir)
}

/// The training components among the configured files.
async fn components(config: &Config, state: PluginState) -> Result<Components> {
    let calls = serve::component_calls(config);
    if config.plugins.files.is_empty() {
        return Ok(Components::new(&[], &calls).await?);
    }
    let loader = Loader::new(
        config,
        HostOptions {
            state: Some(Arc::new(state)),
            ..HostOptions::from(config.plugins.host)
        },
    )?;
    let mut plugins = Vec::new();
    for file in &config.plugins.files {
        let name = component_name(file);
        let loaded = loader
            .read(file)
            .and_then(|bytes| loader.load(&name, &bytes, Some(file)));
        let plugin = loaded
            .with_context(|| format!("cannot load --plugin {}", file.display()))?
            .plugin;
        // Judges are not needed: the samples are judged already.
        if matches!(
            plugin.kind(),
            Kind::Loss | Kind::PairLoss | Kind::Advantage | Kind::Gate
        ) {
            plugins.push(plugin);
        }
    }
    Ok(Components::new(&plugins, &calls).await?)
}

/// Prints the next step.
fn preview(
    args: &TrainArgs,
    config: &Config,
    runtime: &tokio::runtime::Runtime,
) -> Result<ExitCode> {
    let journal = Journal::open_read_only(&config.server.data_dir)?;
    let engine: Engine = serve::load_engine(config)?.engine;
    if journal.active_adapter()?.is_none() {
        serve::load_initial_adapter(config, &journal, &engine)?;
    }
    let state = PluginState::in_memory(config.plugins.state)?;
    let components = runtime.block_on(components(config, state))?;
    let queued = journal.queued_count()?;
    let step = OfflineTrainer::preview(
        journal.clone(),
        engine,
        config.server.data_dir.clone(),
        (config.training.clone(), config.experience_options()),
        components,
    )?;
    let Some(step) = step else {
        let output = json!({"queued": queued, "step": Value::Null});
        return print_result(args.json, &output, || {
            "no samples are queued, so there is no next step".to_owned()
        });
    };
    let explained = explain_planned_step(&journal, &step)?;
    let taken = step.trained.len() + step.dropped.len();
    let few = queued < config.training.min_batch_size as u64 && !args.all;
    let note = if few {
        "fewer than training.min_batch_size: a run trains on them only with --all, or when more are queued"
    } else {
        "dry run, nothing was written"
    };
    let output = json!({"queued": queued, "taken": taken, "step": explained});
    print_result(args.json, &output, || {
        format!(
            "{}\n{taken} of {queued} queued samples; {note}",
            text(&explained)
        )
    })
}

/// Totals of a run.
#[derive(Debug, Default, Serialize)]
struct Totals {
    steps: u64,
    published: u64,
    failed: u64,
    /// Samples that left the queue.
    taken: u64,
}

/// A run in progress.
struct Run {
    json: bool,
    totals: Totals,
    queued: u64,
    progress: Progress,
    started: Instant,
}

impl Run {
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn new(json: bool, offline: &OfflineTrainer) -> Result<Self> {
        let queued = offline.queued()?;
        Ok(Self {
            json,
            totals: Totals::default(),
            queued,
            progress: Progress::new(queued as f64),
            started: Instant::now(),
        })
    }

    /// Runs a step and prints it; returns false when there is none to run.
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn step(&mut self, offline: &mut OfflineTrainer, all: bool) -> Result<bool> {
        let what = format!("step {} of this run", self.totals.steps + 1);
        if self.queued > 0 {
            self.progress.stage(&what);
        }
        let started = Instant::now();
        let result = offline.step(all);
        self.progress.clear();
        let Some(step) = result? else {
            return Ok(false);
        };
        let left = offline.queued()?;
        let taken = self.queued.saturating_sub(left);
        self.queued = left;
        self.totals.steps += 1;
        self.totals.published += u64::from(step.outcome == StepOutcome::Published);
        self.totals.failed += u64::from(step.outcome == StepOutcome::Failed);
        self.totals.taken += taken;
        self.progress.advance(taken as f64);
        if self.json {
            print_json(&json!({
                "step": step.id, "outcome": step.outcome, "reason": step.reason, "version": step.version,
                "digest": step.digest, "taken": taken, "queued": left, "metrics": step.metrics,
            }))?;
        } else {
            print(&line(&step, taken, started.elapsed().as_secs_f64()))?;
        }
        Ok(true)
    }

    fn finish(self, offline: &OfflineTrainer, min_batch: usize) -> Result<ExitCode> {
        let seconds = self.started.elapsed().as_secs_f64();
        if self.json {
            let mut output = json!(self.totals);
            output["queued"] = self.queued.into();
            output["version"] = offline.version().into();
            output["digest"] = json!(offline.digest());
            output["seconds"] = seconds.into();
            print_json(&output)?;
        } else {
            let Totals { steps, taken, .. } = &self.totals;
            let active = match offline.version() {
                0 => "the base model is active".to_owned(),
                version => format!("adapter version {version} is active"),
            };
            print(&format!(
                "{steps} steps on {taken} samples in {seconds:.1} s; {active}"
            ))?;
            match self.queued {
                0 => {}
                left if left < min_batch as u64 => print(&format!(
                    "{left} samples remain, fewer than training.min_batch_size ({min_batch}); pass --all to train on them too"
                ))?,
                left => print(&format!("{left} samples remain"))?,
            }
        }
        Ok(match self.totals.failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

/// Formats a step as one line.
fn line(step: &OfflineStep, taken: u64, seconds: f64) -> String {
    let number = |key: &str| step.metrics.get(key).and_then(Value::as_f64);
    let mut line = format!("step {} {}", step.id, step.outcome);
    match (step.outcome, &step.reason) {
        (StepOutcome::Published, _) => line.push_str(&format!(" version {}", step.version)),
        (_, Some(reason)) => line.push_str(&format!(" ({reason})")),
        (_, None) => {}
    }
    line.push_str(&format!(" · {taken} samples"));
    if let Some(dropped) = number("dropped").filter(|dropped| *dropped > 0.0) {
        line.push_str(&format!(", {dropped} of them dropped"));
    }
    if let Some((first, last)) = number("loss_first").zip(number("loss_last")) {
        line.push_str(&format!(" · loss {first:.4} → {last:.4}"));
    }
    if let Some(change) = number("change_norm") {
        line.push_str(&format!(" · change {change:.4}"));
    }
    line.push_str(&format!(" · {seconds:.1} s"));
    line
}

#[cfg(test)]
mod tests {
    use clawhost_journal::StepId;

    use super::*;

    #[test]
    fn a_step_is_one_line() {
        let mut step = OfflineStep {
            id: StepId(3),
            outcome: StepOutcome::Published,
            reason: None,
            metrics: json!({"dropped": 1, "loss_first": 0.5, "loss_last": 0.25, "change_norm": 0.125}),
            version: 2,
            digest: "ab".to_owned(),
        };
        assert_eq!(
            line(&step, 5, 1.25),
            "step 3 published version 2 · 5 samples, 1 of them dropped · loss 0.5000 → 0.2500 · change 0.1250 · 1.2 s"
        );
        step.outcome = StepOutcome::NoSignal;
        step.reason = Some("the gradient is zero".to_owned());
        step.metrics = json!({"dropped": 0});
        assert_eq!(
            line(&step, 5, 0.0),
            "step 3 no_signal (the gradient is zero) · 5 samples · 0.0 s"
        );
    }

    #[test]
    fn a_directory_without_a_journal_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let error = directory(dir.path()).unwrap_err().to_string();
        assert!(error.contains("--from-journal"), "{error}");
        let file = dir.path().join(JOURNAL);
        std::fs::write(&file, b"").unwrap();
        assert_eq!(directory(&file).unwrap(), dir.path());
        assert_eq!(directory(dir.path()).unwrap(), dir.path());
    }
}
