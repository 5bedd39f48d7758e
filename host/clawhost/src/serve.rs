//! One server: journal, engine, judges, the loops and the HTTP endpoint, started in dependency order and stopped in
//! reverse.
//!
//! The loops share only the journal and the engine; each ends when `stop` turns true.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clawhost_gateway::{Gateway, GatewayOptions, check_bind, check_origins};
use clawhost_journal::Journal;
use clawhost_judging::JudgeWorker;
use clawhost_plugins::HostOptions;
use clawhost_policy::{Adapter, Engine, ModelFiles};
use clawhost_remote::HttpBackend;
use clawhost_sessions::Sessions;
use clawhost_training::{ComponentOptions, Components, RemoteTeacher, TrainingLoop, TrainingState};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::capabilities::{FarTeacher, Internet, Models, PluginState};
use crate::config::Config;
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
        let keys = config.api_keys()?;
        let allowed_origins = config.server.origins()?;
        check_origins(&allowed_origins, &keys)?;
        let tls = config.server.tls()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (listener, address) = listen(&config, &keys).await?;
        let data = &config.server.data;
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
                let (engine, name) = load_engine(&config)?;
                connect_remote_backend(&config, &engine)?;
                let loader = plugin_loader(&config, &engine, journal)?;
                let loaded = loader.load_all(&config.load)?;
                let teacher = remote_teacher(&config, &engine)?;
                Ok(((engine, name), (loader, loaded), teacher))
            }
        });
        let ((engine, name), (loader, loaded), teacher) =
            loading.await.context("loading failed")??;
        load_initial_adapter(&config, &journal, &engine)?;

        let sessions = Sessions::new(journal.clone(), config.sessions.options());
        let judging = JudgeWorker::new(journal.clone(), loaded.judging(), config.judging());
        let components = Components::new(&loaded.training(), &component_calls(&config)).await?;
        let targets = ReloadTargets {
            judge_slots: judging.slots(),
            components: components.clone(),
        };
        let reloading = PluginReloader::new(loader, loaded.sources, targets, journal.clone());
        let reloading = Arc::new(reloading);
        let training = TrainingLoop::new(
            journal.clone(),
            engine.clone(),
            data.clone(),
            config.training.clone(),
            components,
        )?
        .with_teacher(teacher);
        let loops = Arc::new(Loops {
            judging: judging.status(),
            training: training.state(),
            training_enabled: config.training.enabled,
            batch: config.training.batch,
            plugins: reloading.clone(),
            releases: training.publisher(),
        });
        let state = training.state();
        let grace = Duration::from_secs_f64(config.server.shutdown_seconds);
        let gateway = Gateway::new(
            engine.clone(),
            sessions.clone(),
            journal.clone(),
            loops,
            GatewayOptions {
                keys,
                aliases: config.server.aliases.clone(),
                allowed_hosts: config.server.allowed_hosts.clone(),
                allowed_origins,
                tls,
                write_timeout: Duration::from_secs_f64(config.server.write_timeout),
                max_body: config.server.max_body,
                max_concurrent: config.server.max_concurrent,
                shutdown_grace: grace,
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
        tasks.push(tokio::spawn(async move {
            if let Err(error) = gateway.serve(listener, stopped).await {
                tracing::error!(%error, "the HTTP server failed");
            }
        }));
        let url = format!("{scheme}://{address}");
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

pub(crate) fn load_engine(config: &Config) -> Result<(Engine, String)> {
    let files = match &config.model.dir {
        Some(dir) => ModelFiles::from_dir(dir)
            .with_context(|| format!("cannot load --model {}", dir.display()))?,
        None => ModelFiles::embedded(),
    };
    let name = config
        .model
        .name
        .clone()
        .unwrap_or_else(|| files.name().to_owned());
    let engine = Engine::load(&files, config.model.engine_options(config.engine.options()))
        .with_context(|| format!("cannot load the model {name}"))?;
    Ok((engine, name))
}

/// Connects the remote backend, if configured, and checks that it can serve the model.
fn connect_remote_backend(config: &Config, engine: &Engine) -> Result<()> {
    if let Some(remote) = &config.engine.remote {
        let options = remote.options(&config.training)?;
        engine.set_remote_backend(HttpBackend::connect(options, engine)?);
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
    let Some(dir) = &config.model.adapter else {
        return Ok(());
    };
    if let Some(row) = journal.active_adapter()? {
        anyhow::bail!(
            "{} already has adapter version {}; drop --adapter to continue from it, or pass a new --data directory",
            config.server.data.display(),
            row.version
        );
    }
    let adapter = Adapter::load_peft(dir, engine.model().config())
        .with_context(|| format!("cannot load --adapter {}", dir.display()))?;
    engine.try_publish(0, Some(Arc::new(adapter)))?;
    Ok(())
}

/// Settings and limits of component calls in training; the settings are those of `[judging.settings]`.
pub(crate) fn component_calls(config: &Config) -> ComponentOptions {
    let texts = config.judging.settings.iter().map(|(name, settings)| {
        let texts = settings
            .iter()
            .map(|(key, value)| (key.clone(), value.to_string()));
        (name.clone(), texts.collect())
    });
    ComponentOptions {
        settings: texts.collect(),
        limits: config.training.limits.0.clone(),
        seed: config.training.seed,
        teacher: config.training.method.uses_hints(),
    }
}

/// The plugin loader with all capabilities of this server.
fn plugin_loader(config: &Config, engine: &Engine, journal: Journal) -> Result<Loader> {
    Loader::new(
        config,
        HostOptions {
            model: Some(Arc::new(Models::new(engine.clone(), &config.models)?)),
            state: Some(Arc::new(PluginState::new(journal, config.plugin_state))),
            network: Some(Arc::new(Internet)),
            ..config.plugin_host.clone()
        },
    )
}

/// A plugin's name: the file name without its extension.
pub(crate) fn plugin_name(path: &Path) -> String {
    path.file_stem()
        .map_or_else(|| "plugin".to_owned(), |s| s.to_string_lossy().into_owned())
}

/// Reads a component of at most the default maximum size.
pub(crate) fn read_plugin(path: &Path) -> Result<Vec<u8>> {
    read_plugin_limited(path, HostOptions::default().max_component_bytes)
}

/// Reads a component of at most `limit` bytes. Only regular files are read.
pub(crate) fn read_plugin_limited(path: &Path, limit: usize) -> Result<Vec<u8>> {
    clawhost_plugins::read_regular_file(path, limit as u64).with_context(|| {
        format!(
            "cannot read the plugin {}; pass the path of a .wasm component",
            path.display()
        )
    })
}
