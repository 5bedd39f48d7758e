//! One server: journal, engine, judges, the loops and the HTTP endpoint, started in dependency order and stopped in
//! reverse.
//!
//! The loops share only the journal and the engine; each ends when `stop` turns true.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clawhost_cpu::HostMemory;
use clawhost_engine::{Engine, EngineOptions};
use clawhost_gateway::{Gateway, GatewayOptions, check_bind, check_origins};
use clawhost_journal::Journal;
use clawhost_judging::JudgeWorker;
use clawhost_model::{Adapter, ModelConfig, ModelFiles};
use clawhost_plugins::HostOptions;
use clawhost_remote::HttpBackend;
use clawhost_sessions::Sessions;
use clawhost_training::{
    ComponentOptions, Components, PairLoss, RemoteTeacher, TrainingLoop, TrainingState,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::capabilities::{FarTeacher, Internet, Models, PluginState};
use crate::config::{self, AdapterScope, Config};
use crate::control::Controls;
use crate::device;
use crate::environments::EnvironmentLoop;
use crate::machines;
use crate::memory_plan::{MemoryPlan, Place, human_size};
use crate::plugin_loader::Loader;
use crate::plugin_reload::{PluginReloader, ReloadTargets};
use crate::status::Loops;

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Settings {
    config: Config,
}

impl From<Config> for Settings {
    fn from(config: Config) -> Self {
        Self { config }
    }
}

/// A running server.
pub struct Server {
    url: String,
    model: String,
    engine: Engine,
    journal: Journal,
    training: TrainingState,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    /// Shutdown timeout: for running replies, and then for background work that outlives its loop.
    grace: Duration,
}

impl Server {
    /// Starts the server; it accepts requests when this returns.
    ///
    /// # Errors
    /// Why it cannot start, in one line.
    pub async fn start(settings: Settings) -> Result<Self> {
        let config = settings.config;
        config.validate()?;
        let keys = config::api_keys(&config)?;
        anyhow::ensure!(
            config.training.adapters != AdapterScope::Key || !keys.is_empty(),
            "training.adapters = \"key\" gives each API key an adapter, but there is no key; add one for each person to [[api_keys]], or use \"user\" or \"shared\""
        );
        let allowed_origins = config::origins(&config.server)?;
        check_origins(&allowed_origins, &keys)?;
        let tls = config::tls(&config.server)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (listener, address) = listen(&config, &keys).await?;
        let data = &config.server.data_dir;
        let journal = Journal::open(data)?;
        let aborted = journal.abort_interrupted_turns()?;
        if aborted > 0 {
            tracing::warn!(
                turns = aborted,
                "marked replies that the last shutdown interrupted as aborted"
            );
        }
        // Loading a checkpoint and compiling judges block for long, so they run off the runtime's threads.
        let loading = tokio::task::spawn_blocking({
            let (config, journal) = (config.clone(), journal.clone());
            move || -> Result<_> {
                let model = start_engine(&config)?;
                let engine = &model.engine;
                connect_remote_backend(&config, engine)?;
                let loader = plugin_loader(&config, engine, journal.clone())?;
                let loaded = loader.load_all(&config.plugins.files)?;
                let teacher = remote_teacher(&config, engine)?;
                load_initial_adapter(&config, &journal, engine)?;
                let environments =
                    EnvironmentLoop::load_all(&config, engine, &journal, &model.name, || {
                        plugin_loader(&config, engine, journal.clone())
                    })?;
                Ok((model, (loader, loaded), teacher, environments))
            }
        });
        let (model, (loader, loaded), teacher, environments) =
            loading.await.context("loading failed")??;
        let LoadedModel {
            engine,
            name,
            summary,
        } = model;

        let sessions = Sessions::new(journal.clone(), config.sessions.clone());
        let judging = JudgeWorker::new(
            journal.clone(),
            loader.threads(),
            loaded.judging(),
            config.judging_options(),
            config.experience_options(),
            config.plugins.clone(),
        );
        let components = Components::new(&loaded.training(), &component_calls(&config)).await?;
        let targets = ReloadTargets {
            judge_slots: judging.slots(),
            components: components.clone(),
        };
        let reloading = PluginReloader::new(loader, loaded.sources, targets, journal.clone());
        let reloading = Arc::new(reloading);
        // It reads the active checkpoint.
        let training = tokio::task::spawn_blocking({
            let (journal, engine) = (journal.clone(), engine.clone());
            let (data, options) = (data.clone(), config.training.clone());
            move || TrainingLoop::new(journal, engine, data, options, components)
        });
        let training = training.await.context("loading failed")??;
        // Every reply is recorded with the digest of its weights.
        let hashed = tokio::task::spawn_blocking({
            let model = Arc::clone(engine.model());
            move || model.wait_for_digest().map(str::len)
        });
        hashed.await.context("loading failed")??;
        let training = training
            .with_teacher(teacher)
            .with_experience(config.experience_options());
        let loops = Arc::new(Loops {
            judging: judging.status(),
            training: training.state(),
            training_enabled: config.training.enabled,
            batch: config.training.batch_size,
            plugins: reloading.clone(),
        });
        let controls = Arc::new(Controls {
            plugins: reloading.clone(),
            releases: training.publisher(),
        });
        let state = training.state();
        let grace = config.server.shutdown_timeout;
        let gateway = Gateway::new(
            engine.clone(),
            sessions.clone(),
            journal.clone(),
            loops,
            controls,
            GatewayOptions {
                keys,
                server: config.server.clone(),
                experience: config.experience_options(),
                adapters: config.training.adapters,
                allowed_origins,
                tls,
                ..GatewayOptions::new(name.clone())
            },
        );
        let (stop, stopped) = watch::channel(false);
        let mut tasks = vec![
            tokio::spawn(sessions.sweep_idle(stopped.clone())),
            tokio::spawn(judging.run(stopped.clone())),
            tokio::spawn(reloading.run(stopped.clone())),
        ];
        if config.training.enabled {
            tasks.push(tokio::spawn(training.run(stopped.clone())));
        }
        for environment in environments {
            tasks.push(tokio::spawn(environment.run(stopped.clone())));
        }
        tasks.push(tokio::spawn(async move {
            if let Err(error) = gateway.serve(listener, stopped).await {
                tracing::error!(%error, "the HTTP server failed");
            }
        }));
        let url = format!("{scheme}://{address}");
        // Not before: an error of the start is the only line on standard error.
        tracing::info!(target: "clawhost::start", "{summary}");
        Ok(Self {
            url,
            model: name,
            engine,
            journal,
            training: state,
            stop,
            tasks,
            grace,
        })
    }

    /// Base address, such as `http://127.0.0.1:30000`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Name of the served model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// State of the training loop.
    pub fn training(&self) -> &TrainingState {
        &self.training
    }

    /// Shuts down: rejects new requests, lets running replies finish within the configured time, ends the loops and
    /// closes the journal. The journal stays open, with a warning, if the caller holds a clone of it for longer than
    /// `server.shutdown_timeout`.
    pub async fn stop(self) {
        let Self {
            engine,
            journal,
            stop,
            tasks,
            grace,
            ..
        } = self;
        // Ignore the error: every loop may have ended already.
        let _ = stop.send(true);
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a background loop failed");
            }
        }
        engine.shutdown();
        engine.wait_until_stopped().await;
        // Background work of an ended loop may still hold the journal on its thread. The last holder moves the
        // write-ahead log into the database; checkpoint here in case it does not end in time.
        if let Err(error) = journal.checkpoint() {
            tracing::warn!(%error, "cannot checkpoint the journal; part of it stays in the write-ahead log");
        }
        let path = journal.path().to_owned();
        if tokio::time::timeout(grace, journal.wait_closed())
            .await
            .is_err()
        {
            tracing::warn!(path = %path.display(), "the journal is still in use; it stays open and locked");
        }
    }
}

async fn listen(
    config: &Config,
    keys: &[clawhost_gateway::ApiKey],
) -> Result<(TcpListener, SocketAddr)> {
    let (host, port) = (config.server.host.as_str(), config.server.port);
    let ip: IpAddr = match host {
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        other => other.parse().with_context(|| {
            format!(
                "--host {other} is not an IP address; use 127.0.0.1, or 0.0.0.0 with an API key"
            )
        })?,
    };
    check_bind(ip, keys)?;
    let listener = TcpListener::bind((ip, port)).await.with_context(|| {
        format!(
            "cannot listen on {host}:{port}; if the port is in use, choose another with --port (0 = any free port)"
        )
    })?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// The files of a model directory or GGUF file, or of the embedded model.
pub(crate) fn model_files(path: Option<&Path>) -> Result<ModelFiles> {
    match path {
        Some(path) => ModelFiles::open(path)
            .with_context(|| format!("cannot load --model {}", path.display())),
        None => Ok(ModelFiles::embedded()),
    }
}

/// An engine on the configured model.
pub(crate) struct LoadedModel {
    pub(crate) engine: Engine,
    /// Name under which it is served.
    pub(crate) name: String,
    /// Where it runs and why, and its memory plan, on one line.
    summary: String,
}

/// Starts an engine on the configured model, if its device is there and its memory plan fits, and waits for the digest of
/// the model.
pub(crate) fn load_engine(config: &Config) -> Result<LoadedModel> {
    let model = start_engine(config)?;
    model.engine.model().wait_for_digest()?;
    Ok(model)
}

/// As [`load_engine`], while the digest may still be computed.
fn start_engine(config: &Config) -> Result<LoadedModel> {
    let files = model_files(config.model.path.as_deref())?;
    let chosen = device::choose_for(config, Some(&files))?;
    let name = config
        .model
        .served_model_name
        .clone()
        .unwrap_or_else(|| files.name().to_owned());
    let context = || format!("cannot load the model {name}");
    let model = ModelConfig::parse(files.config()).with_context(context)?;
    let gpus = chosen.gpu_memory()?;
    let plan = MemoryPlan::new(config, &model, &chosen, &gpus)?;
    let memory = HostMemory::detect();
    plan.check(memory.as_ref())?;
    let options = EngineOptions {
        kv_cache_memory: plan.kv_cache_memory,
        ..config::engine_options(config)
    };
    let engine = chosen.start(&files, options).with_context(context)?;
    let of = |available: Option<u64>| match available {
        Some(bytes) => format!(" of {} available", human_size(bytes)),
        None => String::new(),
    };
    let mut summary = format!(
        "{name} runs on {} in {}: {}; memory at most {}{}: {}",
        chosen.device,
        chosen.dtype,
        chosen.reason,
        human_size(plan.total as u64),
        of(memory.map(|memory| memory.available)),
        plan.summary(Place::Host),
    );
    for gpu in &plan.gpus {
        summary += &format!(
            "; memory of {} at most {}{}",
            gpu.device,
            human_size(plan.device_total as u64),
            of(Some(gpu.available)),
        );
    }
    if !plan.gpus.is_empty() {
        summary += &format!(": {}", plan.summary(Place::Device));
    }
    Ok(LoadedModel {
        engine,
        name,
        summary,
    })
}

/// Connects the remote backend, if configured, and checks that it can serve the model.
fn connect_remote_backend(config: &Config, engine: &Engine) -> Result<()> {
    if let Some(remote) = &config.engine.remote {
        let training = &config.training;
        let lora = training.enabled.then(|| training.lora.clone());
        engine.set_remote_backend(HttpBackend::connect(config::remote(remote)?, lora, engine)?);
    }
    Ok(())
}

/// The teacher endpoint, if configured and used by the training method.
pub(crate) fn remote_teacher(
    config: &Config,
    engine: &Engine,
) -> Result<Option<Arc<dyn RemoteTeacher>>> {
    let endpoint = config.training.teacher.endpoint.as_ref();
    let wanted = endpoint.filter(|_| config.training.method.uses_hints());
    let Some(endpoint) = wanted else {
        return Ok(None);
    };
    let teacher = FarTeacher::new(endpoint, engine.tokenizer().clone())?;
    teacher.check_at_start()?;
    Ok(Some(Arc::new(teacher)))
}

/// Publishes the adapter of `--adapter` if the data directory has no adapter yet.
pub(crate) fn load_initial_adapter(
    config: &Config,
    journal: &Journal,
    engine: &Engine,
) -> Result<()> {
    let Some(dir) = &config.model.initial_adapter else {
        return Ok(());
    };
    if let Some(row) = journal.active_adapter()? {
        anyhow::bail!(
            "{} already has adapter version {}; drop --adapter to continue from it, or pass a new --data directory",
            config.server.data_dir.display(),
            row.version
        );
    }
    publish_adapter(Some(dir), engine)
}

/// Publishes the adapter of `--adapter`, if one is passed.
pub(crate) fn publish_adapter(dir: Option<&Path>, engine: &Engine) -> Result<()> {
    let Some(dir) = dir else {
        return Ok(());
    };
    let adapter = Adapter::load_peft(dir, engine.model().config())
        .with_context(|| format!("cannot load --adapter {}", dir.display()))?;
    engine.try_publish(0, Some(Arc::new(adapter)))?;
    Ok(())
}

/// Settings and limits of component calls in training.
pub(crate) fn component_calls(config: &Config) -> ComponentOptions {
    ComponentOptions {
        plugins: config.plugins.clone(),
        seed: config.training.seed,
        teacher: config.training.method.uses_hints(),
        pair_loss: config.training.pairs.loss == PairLoss::Component,
    }
}

/// The plugin loader with all capabilities of this server.
fn plugin_loader(config: &Config, engine: &Engine, journal: Journal) -> Result<Loader> {
    let sandbox = match config.environments.is_empty() {
        true => None,
        false => machines::sandboxes(config)?,
    };
    Loader::new(
        config,
        HostOptions {
            model: Some(Arc::new(Models::new(engine.clone(), &config.models)?)),
            state: Some(Arc::new(PluginState::new(journal, config.plugins.state))),
            network: Some(Arc::new(Internet)),
            sandbox,
            ..HostOptions::from(config.plugins.host)
        },
    )
}
