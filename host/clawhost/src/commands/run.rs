//! `clawhost run`: serve, record, judge and train until stopped by a signal.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
#[cfg(unix)]
use std::sync::{Arc, atomic::AtomicBool};

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_config::{DeviceChoice, EnvironmentConfig, oci_reference};

use crate::config::{Config, KeyConfig};
use crate::output::print;
use crate::serve::{Server, Settings};

/// Arguments of `clawhost run`; each overrides the configuration file.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost run\n  clawhost run --model ./Qwen3-0.6B --data ./qwen --port 8000\n  \
    clawhost run --plugin judge.wasm --config clawhost.toml\n  \
    clawhost run --env terminal.wasm:0.5 --tasks tasks.jsonl\n\n\
    Then point any OpenAI client at http://127.0.0.1:30000/v1 (any key).\n\
    CLAWHOST_LOG=info logs what the background loops do."
)]
pub(crate) struct RunArgs {
    /// Model directory (Hugging Face layout) or GGUF file instead of the embedded model
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Initial PEFT adapter, used when the data directory has none yet
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Plugin component (judge, group judge, hint extractor, loss or advantage, detected by its exports): a file, or
    /// oci://REGISTRY/NAME@sha256:DIGEST; can be repeated [default: the embedded judge-next-state if no judge is
    /// passed, and hint-next-state if training or experience uses hints and no extractor is passed]
    #[arg(long, value_name = "FILE")]
    plugin: Vec<PathBuf>,
    /// Environment component whose episodes run in the background, and the weight of its samples beside conversations, 1 by
    /// default; can be repeated
    #[arg(long, value_name = "FILE[:WEIGHT]", requires = "tasks")]
    env: Vec<String>,
    /// Task set of the --env before it, one JSON object per line
    #[arg(long, value_name = "FILE", requires = "env")]
    tasks: Vec<PathBuf>,
    /// Keep a transcript, the outcome and the screenshots of each episode of --env below this directory, with a page to watch
    /// them; grows without limit
    #[arg(long, value_name = "DIR", requires = "env")]
    artifacts: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key of the configuration; can be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Listen address; any address but loopback requires a key [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    host: Option<String>,
    /// Port; 0 = any free port [default: 30000]
    #[arg(long)]
    port: Option<u16>,
    /// PEM file with the TLS certificate, followed by the issuers' certificates; requires --tls-key [default: plain
    /// HTTP]
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Data directory: journal, adapters and checkpoints [default: clawhost-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Device that runs the model: auto, cpu, cuda:N, or several GPUs as in cuda:0,1 [default: auto]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// Name under which the model is served [default: the directory's name]
    #[arg(long)]
    name: Option<String>,
    /// API key that requests must carry; CLAWHOST_API_KEY sets it without showing it in the process list
    #[arg(long, value_name = "SECRET")]
    api_key: Option<String>,
    /// Serve and judge without training
    #[arg(long)]
    no_train: bool,
}

impl RunArgs {
    /// The configuration with the flags applied.
    pub(crate) fn config(&self) -> Result<Config> {
        let mut config = Config::load(self.config.as_deref(), &self.set, self.model.as_deref())?;
        if self.adapter.is_some() {
            config.model.initial_adapter.clone_from(&self.adapter);
        }
        if self.name.is_some() {
            config.model.served_model_name.clone_from(&self.name);
        }
        if let Some(device) = self.device {
            config.engine.device = device;
        }
        if let Some(host) = &self.host {
            config.server.host.clone_from(host);
        }
        if let Some(port) = self.port {
            config.server.port = port;
        }
        if self.tls_cert.is_some() {
            config.server.tls_cert.clone_from(&self.tls_cert);
        }
        if self.tls_key.is_some() {
            config.server.tls_key.clone_from(&self.tls_key);
        }
        if let Some(data) = &self.data {
            config.server.data_dir.clone_from(data);
        }
        if let Some(secret) = &self.api_key {
            config
                .api_keys
                .push(KeyConfig::with_all_scopes("command-line", secret));
        }
        config.plugins.files.extend(self.plugin.iter().cloned());
        config.environments.extend(self.environments()?);
        config.training.enabled &= !self.no_train;
        config.validate()?;
        Ok(config)
    }

    /// The environments of `--env` and `--tasks`.
    fn environments(&self) -> Result<Vec<EnvironmentConfig>> {
        ensure!(
            self.env.len() == self.tasks.len(),
            "{} --env with {} --tasks; each --env has one task set: --env FILE[:WEIGHT] --tasks FILE",
            self.env.len(),
            self.tasks.len()
        );
        let environments = self.env.iter().zip(&self.tasks).map(|(env, tasks)| {
            let (file, weight) = parse_environment(env);
            EnvironmentConfig {
                weight: weight.unwrap_or(1.0),
                artifacts: self.artifacts.clone(),
                ..EnvironmentConfig::new(file, tasks.clone())
            }
        });
        Ok(environments.collect())
    }
}

/// Splits `FILE[:WEIGHT]`. What follows the last colon is a part of the file name unless it is a number. In a reference to a
/// registry, it is the port, the tag or the digest unless a digest is before it.
fn parse_environment(text: &str) -> (PathBuf, Option<f64>) {
    let has_digest = |reference: &str| reference.contains("@sha256:");
    let weight = text
        .rsplit_once(':')
        .filter(|(file, _)| oci_reference(Path::new(file)).is_none_or(has_digest))
        .and_then(|(file, weight)| Some((file, weight.parse().ok()?)));
    match weight {
        Some((file, weight)) => (PathBuf::from(file), Some(weight)),
        None => (PathBuf::from(text), None),
    }
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let config = args.config()?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(async {
        let training_enabled = config.training.enabled;
        let data = config.server.data_dir.clone();
        let environments = !config.environments.is_empty();
        // Registered before the server starts, so that no signal is missed.
        let mut stop = Signals::new()?;
        let server = Server::start(Settings::from(config)).await?;
        print(&format!(
            "{} on {}/v1, {}, data in {}",
            server.model(),
            server.url(),
            match (training_enabled, environments) {
                (true, true) => "training on its conversations and on episodes of environments",
                (true, false) => "training on its conversations",
                (false, _) => "not training",
            },
            data.display()
        ))?;
        let mut steps = server.training().watch();
        let mut printed = steps.borrow().steps;
        loop {
            tokio::select! {
                () = stop.next() => break,
                changed = steps.changed() => {
                    if changed.is_err() {
                        stop.next().await;
                        break;
                    }
                    let now = steps.borrow_and_update().clone();
                    if now.steps > printed {
                        printed = now.steps;
                        print_step(&now);
                    }
                }
            }
        }
        tracing::info!("shutting down; a second signal exits immediately");
        server.stop().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints one line per step on standard error.
fn print_step(now: &clawhost_training::TrainingSnapshot) {
    use std::io::Write as _;
    let outcome = now.last_outcome.as_deref();
    let mut line = format!(
        "step {}: {}",
        now.steps,
        outcome.expect("a recorded step has an outcome")
    );
    if let Some(reason) = &now.last_reason {
        line.push_str(&format!(" ({reason})"));
    }
    line.push_str(&format!(", serving adapter version {}", now.version));
    let metrics = now.last_metrics.as_ref();
    if let Some(reward) = metrics.and_then(|metrics| metrics.get("reward_mean")?.as_f64()) {
        line.push_str(&format!(", mean reward {reward:+.2}"));
    }
    // Standard error may be closed; the journal has the steps.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The signals that stop the server.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// Installs the handlers. The first signal is returned by [`Signals::next`]; the second has its default effect and
    /// ends the process, even if the first has not been handled. The journal survives this as it survives `kill -9`.
    #[cfg(unix)]
    fn new() -> Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        use signal_hook::flag;
        use tokio::signal::unix::{SignalKind, signal};
        let is_stopping = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            // In this order: a signal checks the flag before it sets it.
            flag::register_conditional_default(signal, is_stopping.clone())?;
            flag::register(signal, is_stopping.clone())?;
        }
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(not(unix))]
    fn new() -> Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        // Without a handler there is nothing to wait for; the process is killed from outside.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_has_a_file_and_maybe_a_weight() {
        let parsed = |text: &str| {
            let (file, weight) = parse_environment(text);
            (file.display().to_string(), weight)
        };
        assert_eq!(parsed("a.wasm"), ("a.wasm".to_owned(), None));
        assert_eq!(parsed("a.wasm:0.5"), ("a.wasm".to_owned(), Some(0.5)));
        assert_eq!(parsed("C:a.wasm"), ("C:a.wasm".to_owned(), None));
        let pinned = format!("oci://localhost:5000/a@sha256:{}", "1".repeat(64));
        assert_eq!(parsed(&pinned), (pinned.clone(), None));
        assert_eq!(parsed(&format!("{pinned}:0.5")), (pinned, Some(0.5)));
        let tagged = "oci://localhost:5000/a:1.0".to_owned();
        assert_eq!(parsed(&tagged), (tagged, None));
    }
}
