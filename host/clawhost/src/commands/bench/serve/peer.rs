//! A peer program that serves the same checkpoint.
//!
//! Protocol: the peer writes one line of JSON when it is ready, then responses each request line with one line of JSON,
//! so that its measurements alternate with ours. Its standard error is inherited.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clawhost_engine::Engine;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// Threads of other programs spin for a while after work; this is the time for them to go to sleep.
const IDLE_DELAY: Duration = Duration::from_millis(400);

/// A measurement request to the peer.
#[derive(Debug, Serialize)]
#[serde(tag = "measure", rename_all = "lowercase")]
pub(super) enum PeerRequest {
    Decode {
        streams: usize,
        prompt_tokens: usize,
        reply_tokens: u32,
    },
    Prefill {
        prompt_tokens: usize,
    },
}

/// The measured values.
#[derive(Debug, Deserialize)]
pub(super) struct PeerResponse {
    pub(super) tokens_per_second: f64,
    pub(super) first_token_ms: Option<f64>,
}

/// The peer's first line.
#[derive(Debug, Deserialize)]
struct Ready {
    name: String,
    threads: usize,
}

/// A running peer.
pub(super) struct Peer {
    child: Child,
    requests: ChildStdin,
    responses: Lines<BufReader<ChildStdout>>,
    name: String,
    _checkpoint: TempDir,
}

impl Peer {
    /// Saves the engine's checkpoint to a temporary directory and starts the peer on it.
    pub(super) fn start(command: &str, engine: &Engine, threads: usize) -> Result<Self> {
        let checkpoint = tempfile::tempdir().context("cannot create a temporary directory")?;
        engine.model().in_memory()?.save(checkpoint.path())?;
        if let Some(files) = engine.files() {
            files.save_tokenizer_and_templates(checkpoint.path())?;
        }
        let mut words = command.split_whitespace();
        let program = words.next().context(
            "--peer requires a command, such as \"python3 benches/peers/transformers_serve.py\"",
        )?;
        let mut child = Command::new(program)
            .args(words)
            .arg("--model")
            .arg(checkpoint.path())
            .args(["--threads", &threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let (requests, responses) = child
            .stdin
            .take()
            .zip(child.stdout.take())
            .context("the peer has no pipes")?;
        let mut peer = Self {
            child,
            requests,
            responses: BufReader::new(responses).lines(),
            name: String::new(),
            _checkpoint: checkpoint,
        };
        let ready: Ready = peer.read()?;
        if ready.threads != threads {
            bail!(
                "the peer uses {} threads and this program {threads}, so they are not comparable",
                ready.threads
            );
        }
        peer.name = ready.name;
        Ok(peer)
    }

    /// The peer's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Requests a measurement, and waits until the peer is idle.
    #[allow(
        clippy::disallowed_methods,
        reason = "there is no signal for when another program's threads are idle"
    )]
    pub(super) fn measure(&mut self, request: &PeerRequest) -> Result<PeerResponse> {
        writeln!(self.requests, "{}", serde_json::to_string(request)?)
            .context("the peer has exited")?;
        let response: PeerResponse = self.read()?;
        if !(response.tokens_per_second.is_finite() && response.tokens_per_second > 0.0) {
            bail!("the peer measured {} tokens/s", response.tokens_per_second);
        }
        std::thread::sleep(IDLE_DELAY);
        Ok(response)
    }

    /// Stops the peer.
    pub(super) fn stop(self) -> Result<()> {
        let Self {
            mut child,
            requests,
            responses,
            name: _,
            _checkpoint,
        } = self;
        // It exits at the end of its input.
        drop((requests, responses));
        child.wait().context("cannot wait for the peer")?;
        Ok(())
    }

    fn read<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self
            .responses
            .next()
            .context("the peer exited; its output is above")??;
        serde_json::from_str(&line)
            .with_context(|| format!("cannot parse the peer's response {line}"))
    }
}
