//! `clawhost train`: steps of what is recorded, without a server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_journal::{Journal, StepOutcome};
use clawhost_plugins::{HostOptions, Kind};
use clawhost_policy::Engine;
use clawhost_sessions::{SessionOptions, Sessions};
use clawhost_training::{Components, Offline, OfflineStep};
use serde::Serialize;
use serde_json::{Value, json};

use super::explain::step::text;
use crate::capabilities::PluginState;
use crate::config::Config;
use crate::loading::Loader;
use crate::output::{say, say_json};
use crate::progress::Progress;
use crate::serve;

/// Name of the journal in a data directory.
const JOURNAL: &str = "journal.sqlite";

/// Arguments of `clawhost train`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost train --from-journal ./clawhost-data --dry-run\n  \
    clawhost train --from-journal ./clawhost-data --config clawhost.toml\n  \
    clawhost train --from-journal ./copy-of-data --all --json\n\n\
    Steps are those that `clawhost run` would make: the freshest queued samples first, training.batch of them at a time, \
    each step recorded in the journal with its adapter, and a server on this directory goes on from the last one. The \
    directory must not be in use by a server, except with --dry-run. Samples that are more than \
    training.max_staleness versions old are dropped as ever; set it higher to train a long queue. A run that was \
    stopped or killed goes on where it was, and comes to the same adapter."
)]
pub(crate) struct TrainArgs {
    /// Data directory of a server that is not running, or the journal.sqlite in it
    #[arg(long, value_name = "DIR", required = true)]
    from_journal: PathBuf,
    /// Show the next step (its samples, their advantages, what would be dropped and why, how far each would move) and
    /// write nothing
    #[arg(long)]
    dry_run: bool,
    /// Train the last samples, too, when there are less than training.min_batch of them
    #[arg(long)]
    all: bool,
    /// Stop after so many steps [default: when the queue is empty]
    #[arg(long, value_name = "N", conflicts_with = "dry_run", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Configuration file, whose [model] and [training] apply
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Model directory that the samples are from, instead of the policy inside this program
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Loss or advantage component; may be given several times
    #[arg(long, value_name = "FILE")]
    plugin: Vec<PathBuf>,
    /// Print one JSON object for each step, and one for all of them
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn train(args: &TrainArgs) -> Result<ExitCode> {
    let mut config = Config::load(args.config.as_deref(), args.model.as_deref())?;
    config.server.data = directory(&args.from_journal)?;
    config.load.extend(args.plugin.iter().cloned());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads that plugins run on")?;
    // Training waits for its components.
    let _context = runtime.enter();
    if args.dry_run {
        return preview(args, &config, &runtime);
    }
    let journal = Journal::open(&config.server.data)?;
    let (engine, _) = serve::engine(&config)?;
    serve::begin_with(&config, &journal, &engine)?;
    let state = PluginState::new(journal.clone(), config.plugin_state);
    let components = runtime.block_on(components(&config, state))?;
    let teacher = serve::teacher(&config, &engine)?;
    let mut offline = Offline::open(
        journal,
        engine,
        config.server.data.clone(),
        config.training.clone(),
        components,
    )?
    .taught_by(teacher);
    let mut run = Run::new(args.json, &offline)?;
    while args.steps.is_none_or(|most| run.sums.steps < most) && run.step(&mut offline, args.all)? {
    }
    run.end(&offline, config.training.min_batch)
}

/// The data directory that is meant.
fn directory(named: &Path) -> Result<PathBuf> {
    let dir = match named.file_name() {
        Some(name) if name == JOURNAL => match named.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
            _ => PathBuf::from("."),
        },
        _ => named.to_owned(),
    };
    ensure!(
        dir.join(JOURNAL).is_file(),
        "there is no {JOURNAL} in {}; name the data directory of a server with --from-journal",
        dir.display()
    );
    Ok(dir)
}

/// The components that take the place of the loss or of the estimator, if any are named.
async fn components(config: &Config, state: PluginState) -> Result<Components> {
    if config.load.is_empty() {
        return Ok(Components::default());
    }
    let loader = Loader::new(
        config,
        HostOptions {
            state: Some(Arc::new(state)),
            ..config.plugin_host.clone()
        },
    )?;
    let mut plugins = Vec::new();
    for file in &config.load {
        let name = serve::plugin_name(file);
        let loaded = loader.load(&name, &serve::read_plugin(file)?, Some(file));
        let plugin = loaded
            .with_context(|| format!("--plugin {} cannot be used", file.display()))?
            .plugin;
        // Judges have judged already.
        if matches!(plugin.kind(), Kind::Loss | Kind::Advantage) {
            plugins.push(plugin);
        }
    }
    Ok(Components::new(&plugins, &serve::component_calls(config)).await?)
}

/// Shows the next step.
fn preview(
    args: &TrainArgs,
    config: &Config,
    runtime: &tokio::runtime::Runtime,
) -> Result<ExitCode> {
    let journal = Journal::open_read_only(&config.server.data)?;
    let engine: Engine = serve::engine(config)?.0;
    if journal.active_adapter()?.is_none() {
        serve::begin_with(config, &journal, &engine)?;
    }
    let state = PluginState::in_memory(config.plugin_state)?;
    let components = runtime.block_on(components(config, state))?;
    let queued = journal.queued_count()?;
    let step = Offline::preview(
        journal.clone(),
        engine,
        config.server.data.clone(),
        config.training.clone(),
        components,
    )?;
    let Some(step) = step else {
        let told = json!({"queued": queued, "step": Value::Null});
        return finish(args.json, &told, "nothing is queued: there is no next step");
    };
    let sessions = Sessions::new(journal, SessionOptions::default());
    let told = sessions.explain_planned(&step)?;
    let taken = step.trained.len() + step.dropped.len();
    let few = queued < config.training.min_batch as u64 && !args.all;
    let note = if few {
        "fewer than training.min_batch: a run takes them with --all only, or when more have come"
    } else {
        "nothing was written"
    };
    let shown = format!(
        "{}\n{taken} of {queued} queued samples; {note}",
        text(&told)
    );
    let told = json!({"queued": queued, "taken": taken, "step": told});
    finish(args.json, &told, &shown)
}

fn finish(json: bool, told: &Value, shown: &str) -> Result<ExitCode> {
    if json {
        say_json(told)?;
    } else {
        say(shown)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What a run came to so far.
#[derive(Debug, Default, Serialize)]
struct Sums {
    steps: u64,
    published: u64,
    failed: u64,
    /// Samples that left the queue.
    taken: u64,
}

/// A run in progress.
struct Run {
    json: bool,
    sums: Sums,
    queued: u64,
    progress: Progress,
    begun: Instant,
}

impl Run {
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn new(json: bool, offline: &Offline) -> Result<Self> {
        let queued = offline.queued()?;
        Ok(Self {
            json,
            sums: Sums::default(),
            queued,
            progress: Progress::new(queued as f64),
            begun: Instant::now(),
        })
    }

    /// Makes a step and tells it; false when there is none to make.
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn step(&mut self, offline: &mut Offline, all: bool) -> Result<bool> {
        let what = format!("step {} of this run", self.sums.steps + 1);
        if self.queued > 0 {
            self.progress.stage(&what);
        }
        let begun = Instant::now();
        let made = offline.step(all);
        self.progress.end();
        let Some(step) = made? else {
            return Ok(false);
        };
        let left = offline.queued()?;
        let taken = self.queued.saturating_sub(left);
        self.queued = left;
        self.sums.steps += 1;
        self.sums.published += u64::from(step.outcome == StepOutcome::Published);
        self.sums.failed += u64::from(step.outcome == StepOutcome::Failed);
        self.sums.taken += taken;
        self.progress.done(taken as f64);
        if self.json {
            say_json(&json!({
                "step": step.id, "outcome": step.outcome, "reason": step.reason, "version": step.version,
                "digest": step.digest, "taken": taken, "queued": left, "metrics": step.metrics,
            }))?;
        } else {
            say(&line(&step, taken, begun.elapsed().as_secs_f64()))?;
        }
        Ok(true)
    }

    fn end(self, offline: &Offline, min_batch: usize) -> Result<ExitCode> {
        let seconds = self.begun.elapsed().as_secs_f64();
        if self.json {
            let mut told = json!(self.sums);
            if let Some(fields) = told.as_object_mut() {
                fields.insert("queued".to_owned(), json!(self.queued));
                fields.insert("version".to_owned(), json!(offline.version()));
                fields.insert("digest".to_owned(), json!(offline.digest()));
                fields.insert("seconds".to_owned(), json!(seconds));
            }
            say_json(&told)?;
        } else {
            let Sums { steps, taken, .. } = &self.sums;
            let serves = match offline.version() {
                0 => "the base model is what a server would serve".to_owned(),
                version => format!("adapter version {version} is active"),
            };
            say(&format!(
                "{steps} steps over {taken} samples in {seconds:.1} s; {serves}"
            ))?;
            match self.queued {
                0 => {}
                left if left < min_batch as u64 => say(&format!(
                    "{left} samples are left, fewer than training.min_batch ({min_batch}); --all trains them as well"
                ))?,
                left => say(&format!("{left} samples are left"))?,
            }
        }
        Ok(match self.sums.failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

/// A step in one line.
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
    fn a_directory_without_a_journal_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let refused = directory(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("--from-journal"), "{refused}");
        let file = dir.path().join(JOURNAL);
        std::fs::write(&file, b"").unwrap();
        assert_eq!(directory(&file).unwrap(), dir.path());
        assert_eq!(directory(dir.path()).unwrap(), dir.path());
    }
}
