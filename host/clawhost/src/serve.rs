//! One server: journal, engine, judges, the loops and the endpoint, started in the order in which they
//! need each other and stopped in reverse.
//!
//! The loops share the journal and the engine and nothing else; each ends when `stop` turns true.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clawhost_gateway::{Gateway, GatewayOptions, check_bind, check_origins};
use clawhost_journal::Journal;
use clawhost_judging::Judging;
use clawhost_plugins::HostOptions;
use clawhost_policy::{Adapter, Engine, ModelFiles};
use clawhost_remote::Remote;
use clawhost_sessions::Sessions;
use clawhost_training::{ComponentCalls, Components, Teacher, Training, TrainingState};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::capabilities::{FarTeacher, Internet, Models, PluginState};
use crate::config::Config;
use crate::loading::Loader;
use crate::reloading::{Places, Reloading};
use crate::status::Loops;

/// What a server is started with.
#[derive(Debug, Clone)]
pub struct Settings {
    config: Config,
}

impl From<Config> for Settings {
    fn from(config: Config) -> Self {
        Self { config }
    }
}

/// A server that is up.
pub struct Server {
    url: String,
    model: String,
    engine: Engine,
    journal: Journal,
    training: TrainingState,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    /// How long stopping waits: for replies, and then for what outlives its loop.
    grace: Duration,
}

impl Server {
    /// Starts everything; when it returns, requests are answered.
    ///
    /// # Errors
    /// One sentence about what keeps it from starting.
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
        let cut = journal.recover()?;
        if cut > 0 {
            tracing::warn!(
                turns = cut,
                "replies that the last stop cut short were kept as aborted"
            );
        }
        // Loading a checkpoint and compiling judges take their time; the runtime has other work.
        let loading = tokio::task::spawn_blocking({
            let (config, journal) = (config.clone(), journal.clone());
            move || -> Result<_> {
                let (engine, name) = engine(&config)?;
                generate_elsewhere(&config, &engine)?;
                let loader = loader(&config, &engine, journal)?;
                let loaded = loader.all(&config.load)?;
                let teacher = teacher(&config, &engine)?;
                Ok(((engine, name), (loader, loaded), teacher))
            }
        });
        let ((engine, name), (loader, loaded), teacher) =
            loading.await.context("loading broke off")??;
        begin_with(&config, &journal, &engine)?;

        let sessions = Sessions::new(journal.clone(), config.sessions.options());
        let judging = Judging::new(journal.clone(), loaded.judging(), config.judging());
        let components = Components::new(&loaded.training(), &component_calls(&config)).await?;
        let places = Places {
            seats: judging.seats(),
            components: components.clone(),
        };
        let reloading = Reloading::new(loader, loaded.sources, places, journal.clone());
        let reloading = Arc::new(reloading);
        let training = Training::new(
            journal.clone(),
            engine.clone(),
            data.clone(),
            config.training.clone(),
            components,
        )?
        .taught_by(teacher);
        let loops = Arc::new(Loops {
            judging: judging.state(),
            training: training.state(),
            trains: config.training.enabled,
            batch: config.training.batch,
            plugins: reloading.clone(),
            releases: training.releases(),
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
                tracing::error!(%error, "the endpoint broke down");
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

    /// The engine behind it.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Its record.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// What training is doing.
    pub fn training(&self) -> &TrainingState {
        &self.training
    }

    /// Stops: no new requests, replies in progress end within the configured time, loops end, the
    /// journal is closed. It stays open, with a warning, when the caller keeps a clone of it for longer than
    /// `server.shutdown_seconds`.
    pub async fn stop(self) {
        let Self {
            engine,
            journal,
            stop,
            tasks,
            grace,
            ..
        } = self;
        // Every loop may have ended already.
        let _ = stop.send(true);
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a loop broke off");
            }
        }
        engine.shutdown();
        engine.stopped().await;
        // Work that was broken off with its loop has the journal until its own thread has let it go. The last one moves
        // the log into the database; where that is waited for in vain it is done here.
        if let Err(error) = journal.checkpoint() {
            tracing::warn!(%error, "a part of the journal is still in its write-ahead log");
        }
        let path = journal.path().to_owned();
        if tokio::time::timeout(grace, journal.released())
            .await
            .is_err()
        {
            tracing::warn!(path = %path.display(), "something still has the journal, which stays open and locked");
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
            format!("--host {other} is not an IP address; use 127.0.0.1, or 0.0.0.0 with a key")
        })?,
    };
    check_bind(ip, keys)?;
    let listener = TcpListener::bind((ip, port)).await.with_context(|| {
        format!(
            "cannot listen on {host}:{port}; if another program (or clawhost) has the port, choose one with --port (0 = any)"
        )
    })?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

pub(crate) fn engine(config: &Config) -> Result<(Engine, String)> {
    let files = match &config.model.dir {
        Some(dir) => ModelFiles::dir(dir)
            .with_context(|| format!("--model {} cannot be served", dir.display()))?,
        None => ModelFiles::embedded(),
    };
    let name = config
        .model
        .name
        .clone()
        .unwrap_or_else(|| files.name().to_owned());
    let engine = Engine::load(&files, config.model.forms(config.engine.options()))
        .with_context(|| format!("the model {name} cannot be served"))?;
    Ok((engine, name))
}

/// Lets a server elsewhere generate, where the configuration names one. Asks it first whether it can.
fn generate_elsewhere(config: &Config, engine: &Engine) -> Result<()> {
    if let Some(remote) = &config.engine.remote {
        let options = remote.options(&config.training)?;
        engine.generate_elsewhere(Remote::connect(options, engine)?);
    }
    Ok(())
}

/// What reads hints at an endpoint, where the configuration names one.
pub(crate) fn teacher(config: &Config, engine: &Engine) -> Result<Option<Arc<dyn Teacher>>> {
    let endpoint = config.training.teacher.endpoint.as_ref();
    let wanted = endpoint.filter(|_| config.training.method.uses_hints());
    let Some(endpoint) = wanted else {
        return Ok(None);
    };
    let teacher = FarTeacher::new(endpoint, engine.tokenizer().clone())?;
    teacher.check_at_start()?;
    Ok(Some(Arc::new(teacher)))
}

/// Serves the given adapter from the start when nothing has been learned yet.
pub(crate) fn begin_with(config: &Config, journal: &Journal, engine: &Engine) -> Result<()> {
    let Some(dir) = &config.model.adapter else {
        return Ok(());
    };
    if let Some(row) = journal.active_adapter()? {
        anyhow::bail!(
            "{} holds adapter version {} already; leave --adapter away to go on from it, or name a new --data directory",
            config.server.data.display(),
            row.version
        );
    }
    let adapter = Adapter::load_peft(dir, engine.model().config())
        .with_context(|| format!("--adapter {} cannot be served", dir.display()))?;
    engine.release(0, Some(Arc::new(adapter)))?;
    Ok(())
}

/// How training calls components: with the settings that judges have and limits of its own.
pub(crate) fn component_calls(config: &Config) -> ComponentCalls {
    let texts = config.judging.settings.iter().map(|(name, settings)| {
        let texts = settings
            .iter()
            .map(|(key, value)| (key.clone(), value.to_string()));
        (name.clone(), texts.collect())
    });
    ComponentCalls {
        settings: texts.collect(),
        limits: config.training.limits.0.clone(),
        seed: config.training.seed,
        teacher: config.training.method.uses_hints(),
    }
}

/// What loads the plugins, with all that this server can offer them.
fn loader(config: &Config, engine: &Engine, journal: Journal) -> Result<Loader> {
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

/// A plugin's name: its file's, without the ending.
pub(crate) fn plugin_name(path: &Path) -> String {
    path.file_stem()
        .map_or_else(|| "plugin".to_owned(), |s| s.to_string_lossy().into_owned())
}

/// A component's bytes, at most as many as a host takes by default.
pub(crate) fn read_plugin(path: &Path) -> Result<Vec<u8>> {
    read_plugin_of(path, HostOptions::default().max_component_bytes)
}

/// A component's bytes, at most `limit` of them. Only regular files are read, and none is waited for.
pub(crate) fn read_plugin_of(path: &Path, limit: usize) -> Result<Vec<u8>> {
    clawhost_plugins::read_regular_file(path, limit as u64).with_context(|| {
        format!(
            "cannot read the plugin {}; give the path of a .wasm component",
            path.display()
        )
    })
}
