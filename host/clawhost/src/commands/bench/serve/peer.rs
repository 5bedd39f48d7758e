//! Another program that serves the same checkpoint: started once, asked for one measurement at a time.
//!
//! It says in one line of JSON that it is ready, then answers each line of JSON with another one, so
//! that its measurements and ours can take turns. What it says on standard error is shown.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clawhost_policy::Engine;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Scratch;

/// Other programs' threads look out for more work for a while. They are given the time to go to sleep.
const CALM: Duration = Duration::from_millis(400);

/// What the peer is asked for.
#[derive(Debug, Serialize)]
#[serde(tag = "measure", rename_all = "lowercase")]
pub(super) enum Ask {
    Decode {
        streams: usize,
        prompt_tokens: usize,
        reply_tokens: u32,
    },
    Prefill {
        prompt_tokens: usize,
    },
}

/// What it measured.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    pub(super) tokens_per_second: f64,
    pub(super) first_token_ms: Option<f64>,
}

/// How it introduces itself.
#[derive(Debug, Deserialize)]
struct Ready {
    name: String,
    threads: usize,
}

/// The program, while it runs.
pub(super) struct Peer {
    child: Child,
    asks: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    name: String,
    _checkpoint: Scratch,
}

impl Peer {
    /// Writes the engine's checkpoint into a directory of its own and starts the program on it.
    pub(super) fn start(command: &str, engine: &Engine, threads: usize) -> Result<Self> {
        let checkpoint = Scratch::new()?;
        engine.model().save(&checkpoint.0)?;
        if let Some(files) = engine.files() {
            files.save_text(&checkpoint.0)?;
        }
        let mut words = command.split_whitespace();
        let program = words.next().context(
            "--peer needs a command, such as \"python3 benches/peers/transformers_serve.py\"",
        )?;
        let mut child = Command::new(program)
            .args(words)
            .arg("--model")
            .arg(&checkpoint.0)
            .args(["--threads", &threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let (asks, answers) = child
            .stdin
            .take()
            .zip(child.stdout.take())
            .context("the peer has no pipes")?;
        let mut peer = Self {
            child,
            asks,
            answers: BufReader::new(answers).lines(),
            name: String::new(),
            _checkpoint: checkpoint,
        };
        let ready: Ready = peer.read()?;
        if ready.threads != threads {
            bail!(
                "the peer uses {} threads and this program {threads}; they would not be comparable",
                ready.threads
            );
        }
        peer.name = ready.name;
        Ok(peer)
    }

    /// What it calls itself.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Has it measure, and leaves it time to come to rest.
    #[allow(
        clippy::disallowed_methods,
        reason = "when another program's threads have gone to sleep cannot be seen from here"
    )]
    pub(super) fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        writeln!(self.asks, "{}", serde_json::to_string(ask)?).context("the peer is gone")?;
        let answer: Answer = self.read()?;
        if !(answer.tokens_per_second.is_finite() && answer.tokens_per_second > 0.0) {
            bail!("the peer measured {} tokens/s", answer.tokens_per_second);
        }
        std::thread::sleep(CALM);
        Ok(answer)
    }

    /// Ends it.
    pub(super) fn stop(self) -> Result<()> {
        let Self {
            mut child,
            asks,
            answers,
            name: _,
            _checkpoint,
        } = self;
        // With nothing more to be asked it ends by itself.
        drop((asks, answers));
        child.wait().context("the peer did not end")?;
        Ok(())
    }

    fn read<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self
            .answers
            .next()
            .context("the peer ended; what it said is above")??;
        serde_json::from_str(&line).with_context(|| format!("the peer said {line}"))
    }
}
