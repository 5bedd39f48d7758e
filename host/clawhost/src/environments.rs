//! Episodes of environments beside the traffic of a server, for its training.
//!
//! Each environment has a loop of its own, which runs round after round below the priority of people. A round is a group of
//! episodes for each of a few tasks. Its episodes are recorded as they end, and its samples are offered to training when it
//! is closed. The journal knows the round and which of its episodes have ended, so a server that was killed continues it.
//!
//! A round begins when fewer samples are queued than a step takes: episodes do not run ahead of the policy that they train.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clawhost_config::{EnvironmentConfig, component_name};
use clawhost_engine::{Engine, Priority, SamplingParams};
use clawhost_episodes::{
    ArtifactsRoot, EpisodeOptions, EpisodePlan, EpisodeRecord, EpisodeRunner, EpisodeSource, Split,
    StepJudge, Task, choose_tasks, file_url, load_tasks, plan_groups, record_episode,
};
use clawhost_journal::{Journal, SessionId, run_blocking};
use clawhost_plugins::{CallContext, Kind, Plugin};
use futures_util::StreamExt as _;
use tokio::sync::watch;

use crate::config::Config;
use crate::plugin_file::can_change;
use crate::plugin_loader::{Loader, Source};

/// The run that calls of the environment belong to.
const RUN: &str = "episodes";
/// Delay after a round without a verdict, doubled for each further one up to [`MAX_DELAY`].
const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Settings and limits of an environment's calls.
pub(crate) fn call_context(config: &Config, plugin: &Plugin, seed: u64) -> CallContext {
    let defaults = plugin.kind().default_limits();
    CallContext {
        run_id: RUN.to_owned(),
        seed,
        limits: config.plugins.limits(plugin.name(), &defaults),
        settings: config.plugins.settings(plugin.name()),
        ..CallContext::default()
    }
}

/// Opens a directory for the artifacts of episodes, and prints on standard error where the page to watch them is.
pub(crate) fn open_artifacts(dir: &Path) -> Result<ArtifactsRoot> {
    let root = ArtifactsRoot::open(dir)
        .with_context(|| format!("cannot keep episodes in {}", dir.display()))?;
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "watch: {}", file_url(&root.index()));
    Ok(root)
}

/// The loop of one environment.
pub(crate) struct EnvironmentLoop {
    name: String,
    options: EnvironmentConfig,
    config: Config,
    model: String,
    journal: Journal,
    loader: Arc<Loader>,
    source: Source,
    tasks: Vec<Arc<Task>>,
    runner: EpisodeRunner,
    /// Why the last changed build was rejected.
    rejected: Option<String>,
}

impl EnvironmentLoop {
    /// Loads the environments of a server with a loader of their own, so that no judge waits for an episode, and releases
    /// the rounds of environments that it does not run any more. Compiles: do not call it on the threads that serve.
    ///
    /// # Errors
    /// The first environment that cannot be loaded, with its file.
    pub(crate) fn load_all(
        config: &Config,
        engine: &Engine,
        journal: &Journal,
        model: &str,
        loader: impl FnOnce() -> Result<Loader>,
    ) -> Result<Vec<Self>> {
        let names: Vec<String> = config.environments.iter().map(|one| one.name()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        journal.release_rounds_except(&names)?;
        if config.environments.is_empty() {
            return Ok(Vec::new());
        }
        let loader = Arc::new(loader()?);
        // Environments with the same directory share its pages.
        let mut artifacts: HashMap<&Path, ArtifactsRoot> = HashMap::new();
        for dir in config
            .environments
            .iter()
            .filter_map(|one| one.artifacts.as_deref())
        {
            if !artifacts.contains_key(dir) {
                artifacts.insert(dir, open_artifacts(dir)?);
            }
        }
        let load = |options: &EnvironmentConfig| {
            let context = || format!("cannot load --env {}", options.file.display());
            let source = load(&loader, options).with_context(context)?;
            let tasks = load_tasks(&options.tasks).with_context(context)?;
            let tasks: Vec<Arc<Task>> = tasks
                .into_iter()
                .filter(|task| task.split == Split::Train)
                .map(Arc::new)
                .collect();
            ensure!(
                !tasks.is_empty(),
                "{} has no task with the split `train`",
                options.tasks.display()
            );
            let environment = source.plugin.clone();
            let step_judge = options.step_judge.as_ref();
            let step_judge = step_judge
                .map(|file| load_step_judge(&loader, config, file))
                .transpose()?;
            Ok(Self {
                name: options.name(),
                options: options.clone(),
                config: config.clone(),
                model: model.to_owned(),
                journal: journal.clone(),
                loader: Arc::clone(&loader),
                tasks,
                runner: EpisodeRunner {
                    engine: engine.clone(),
                    call: call_context(config, &environment, config.training.seed),
                    environment,
                    step_judge,
                    options: EpisodeOptions {
                        max_steps: options.max_steps,
                        context_tokens: (options.context_tokens > 0)
                            .then_some(options.context_tokens),
                        sampling: SamplingParams {
                            max_tokens: options.max_tokens,
                            ..SamplingParams::default()
                        },
                        priority: Priority::Training,
                        artifacts: options
                            .artifacts
                            .as_deref()
                            .and_then(|dir| artifacts.get(dir).cloned()),
                        ..EpisodeOptions::default()
                    },
                    parallel: options.parallel as usize,
                },
                source,
                rejected: None,
            })
        };
        config.environments.iter().map(load).collect()
    }

    /// Runs rounds until `stop` turns true. Episodes that are running then end without a record, and are run again after the
    /// next start.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            // A closed channel ends the loop as well.
            _ = stop.wait_for(|stop| *stop) => {}
            () = self.run_rounds() => {}
        }
    }

    async fn run_rounds(&mut self) {
        let mut delay = MIN_DELAY;
        loop {
            match self.next_round().await {
                Ok(()) => delay = MIN_DELAY,
                Err(error) => {
                    let environment = &self.name;
                    tracing::warn!(
                        environment,
                        error = format!("{error:#}"),
                        "an environment runs no episodes for {} s",
                        delay.as_secs()
                    );
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(MAX_DELAY);
                }
            }
        }
    }

    /// Runs the open round, or the next one. An error means that no episode had a verdict.
    async fn next_round(&mut self) -> Result<()> {
        self.wait_until_needed().await?;
        self.reload().await?;
        let (journal, name) = (self.journal.clone(), self.name.clone());
        let (round, ended) = run_blocking(move || {
            let round = journal.open_round(&name)?;
            journal
                .ended_episodes(&name, round)
                .map(|ended| (round, ended))
        })
        .await?;
        let mut plans = self.plan(round);
        plans.retain(|plan| !ended.contains(&plan.session()));
        self.start(round, &plans).await?;
        let planned = plans.len();
        let mut failed = 0;
        let mut last_failure = None;
        let mut running = std::pin::pin!(self.runner.stream(plans));
        while let Some(record) = running.next().await {
            if let Err(reason) = &record.result {
                failed += 1;
                last_failure = Some(reason.clone());
            }
            self.record(record).await?;
        }
        let (journal, name) = (self.journal.clone(), self.name.clone());
        run_blocking(move || journal.close_round(&name, round)).await?;
        match last_failure {
            Some(reason) if failed == planned => {
                Err(reason).with_context(|| format!("round {round} has no verdict"))
            }
            _ => Ok(()),
        }
    }

    /// Waits until fewer samples are queued than a step takes.
    async fn wait_until_needed(&self) -> Result<()> {
        let mut changes = self.journal.watch();
        loop {
            let journal = self.journal.clone();
            let queues = run_blocking(move || journal.owner_queues()).await?;
            let queued: u64 = queues.iter().map(|queue| queue.samples).sum();
            if queued < self.config.training.batch_size as u64 {
                return Ok(());
            }
            changes.changed().await?;
        }
    }

    /// The episodes of a round.
    fn plan(&self, round: u64) -> Vec<EpisodePlan> {
        let EnvironmentConfig {
            parallel, group, ..
        } = self.options;
        let seed = self.config.training.seed;
        let count = (parallel / group) as usize;
        let tasks = choose_tasks(&self.tasks, count, round - 1, seed);
        plan_groups(&tasks, group, seed, &format!("{}/round-{round}", self.name))
    }

    async fn start(&self, round: u64, plans: &[EpisodePlan]) -> Result<()> {
        let sessions: Vec<SessionId> = plans.iter().map(EpisodePlan::session).collect();
        let (journal, name) = (self.journal.clone(), self.name.clone());
        run_blocking(move || journal.start_episodes(&name, round, &sessions)).await?;
        Ok(())
    }

    /// Records an episode that has ended.
    async fn record(&self, record: EpisodeRecord) -> Result<()> {
        let (journal, model) = (self.journal.clone(), self.model.clone());
        let (runner, weight) = (self.runner.clone(), self.options.weight);
        run_blocking(move || match &record.result {
            Ok(episode) => {
                let source = EpisodeSource {
                    environment: runner.environment.name(),
                    digest: runner.environment.digest(),
                    model: &model,
                    sampling: &runner.options.sampling,
                    tokenizer: runner.engine.tokenizer(),
                    weight,
                };
                record_episode(&journal, &source, &record.plan, episode).map(drop)
            }
            Err(reason) => journal.fail_episode(&record.plan.session(), &reason.0),
        })
        .await?;
        Ok(())
    }

    /// Uses the current build and grants of the component from the next round on. A changed build that cannot be loaded is
    /// rejected, and the last one stays in use.
    ///
    /// # Errors
    /// The grants of the build in use do not suffice any more.
    async fn reload(&mut self) -> Result<()> {
        let (loader, options) = (Arc::clone(&self.loader), self.options.clone());
        let (digest, granted) = (
            self.source.plugin.digest().to_owned(),
            self.source.granted.clone(),
        );
        let in_use = digest.clone();
        let loaded = run_blocking(move || {
            if !can_change(&options.file) && loader.current_grants(&in_use)? == granted {
                return Ok((in_use, Ok(None)));
            }
            let bytes = loader.read(&options.file);
            let found = match &bytes {
                Ok(bytes) => clawhost_plugins::digest(bytes),
                Err(_) => in_use.clone(),
            };
            let unchanged = found == in_use && loader.current_grants(&in_use)? == granted;
            let loaded = match bytes {
                Ok(_) if unchanged => Ok(None),
                Ok(_) => load(&loader, &options).map(Some),
                Err(error) => Err(error),
            };
            anyhow::Ok((found, loaded))
        });
        let (found, loaded) = loaded.await?;
        match loaded {
            Ok(None) => {}
            Ok(Some(source)) => {
                let plugin = source.plugin.clone();
                tracing::info!(
                    environment = self.name,
                    digest = plugin.digest(),
                    "reloaded the environment"
                );
                self.runner.call = call_context(&self.config, &plugin, self.config.training.seed);
                self.runner.environment = plugin;
                self.source = source;
                self.rejected = None;
            }
            Err(error)
                if found == digest
                    && (!can_change(&self.options.file) || self.options.file.exists()) =>
            {
                return Err(error.context("the environment lacks a grant that it had"));
            }
            Err(error) => {
                let reason = format!("{error:#}");
                if self.rejected.as_ref() != Some(&reason) {
                    tracing::warn!(
                        environment = self.name,
                        reason,
                        "rejected the changed environment; the last build stays in use"
                    );
                    self.rejected = Some(reason);
                }
            }
        }
        Ok(())
    }
}

/// Loads a judge of steps with the current grants of its build.
fn load_step_judge(loader: &Loader, config: &Config, file: &Path) -> Result<StepJudge> {
    let context = || format!("cannot load the step judge {}", file.display());
    let source = loader.read(file).and_then(|bytes| {
        let name = component_name(file);
        loader.load(&name, &bytes, Some(file))
    });
    let judge = source.with_context(context)?.plugin;
    ensure!(
        judge.kind() == Kind::Judge,
        "the step judge {} is a {}, not a judge",
        file.display(),
        judge.kind()
    );
    Ok(StepJudge {
        call: call_context(config, &judge, config.training.seed),
        judge,
    })
}

/// Loads an environment with the current grants of its build.
fn load(loader: &Loader, options: &EnvironmentConfig) -> Result<Source> {
    let file: &PathBuf = &options.file;
    let source = loader.load(&options.name(), &loader.read(file)?, Some(file))?;
    let kind = source.plugin.kind();
    ensure!(
        kind == Kind::Environment,
        "{} is a {kind}, not an environment; pass it with --plugin",
        file.display()
    );
    Ok(source)
}
