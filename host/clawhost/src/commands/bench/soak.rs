//! `clawhost bench soak`: a whole server under streams that never pause, with a new adapter every few seconds.
//!
//! It shows what an operator has to rely on: no error, each reply from the version that was active when it began and
//! from that alone, memory that stays flat, and a swap that nobody notices in the flow of tokens. A bound that is
//! broken is named, and the exit code is 1. With `--train` the adapters are those of real training, and the streams
//! are compared with and without it.

mod gaps;
mod phases;
mod talk;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use clawhost_journal::TurnId;
use clawhost_policy::{Adapter, Candidates, Learned, LoraSpec, ModelConfig, Sequence};
use serde_json::json;

use super::streaming::serving_with;
use super::{number, resident};
use crate::output::{say, say_json};
use crate::progress::Progress;
use crate::serve::Server;
use phases::{Comparison, Phases};
use talk::{Answered, Board, Seen, Talker};

/// Most that the 99th percentile of gaps just after a swap may be of the median gap.
const GAP_BOUND: f64 = 2.0;
/// Most that memory may grow by from the second tenth to the last: a share, and the MiB of a busy allocator.
const GROWTH: (f64, f64) = (1.05, 16.0);
/// Replies that are looked up in the journal, and those whose log-probs are computed again.
const LOOKED_UP: usize = 2_000;
const RECOMPUTED: usize = 24;
/// Most that a recorded log-prob may be off what its version gives.
const LOGPROB_BOUND: f32 = 1e-3;

/// Arguments of `clawhost bench soak`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  clawhost bench soak\n  clawhost bench soak --streams 16 --minutes 2 --json\n  clawhost bench soak --train --streams 32 --minutes 4\n\nExit code 1: a bound was broken; it is named."
)]
pub(super) struct SoakArgs {
    /// Model directory instead of the policy inside this program
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Clients that stream at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    streams: u32,
    /// How long
    #[arg(long, default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    /// Seconds from one published adapter to the next
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    swap_seconds: u32,
    /// Attention memory in megabytes; less than the default so that it is soon full
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cache_megabytes: u32,
    /// Train on praise and complaint in the second half of the time, and compare the halves
    #[arg(long, conflicts_with = "swap_seconds")]
    train: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn minutes(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.2..=100_000.0).contains(&value) {
        Ok(value)
    } else {
        Err("must be between 0.2 and 100000".to_owned())
    }
}

/// What came out.
struct Outcome {
    seconds: f64,
    swaps: u64,
    seen: Seen,
    /// Resident MiB, at equal distances.
    memory: Vec<f64>,
    /// Of a publication, in milliseconds.
    longest_publish: f64,
    looked_up: usize,
    recomputed: usize,
    /// What of the looked-up replies was not right.
    wrong: Vec<String>,
    mean_batch: f64,
    pauses: u64,
    evictions: u64,
    /// Of the streams with and without training, with `--train`.
    training: Option<Comparison>,
}

/// How often `--train` looks at what training does: more often than it can publish.
const FOLLOW: Duration = Duration::from_millis(50);
/// Learning rate of `--train`: so low that what is served stays the same, and both halves have the same work.
const LEARNING_RATE: f64 = 1e-7;

/// Runs the command.
pub(super) fn run(args: &SoakArgs) -> Result<ExitCode> {
    let streams = args.streams as usize;
    let data = OnceCell::new();
    let outcome = serving_with(
        args.model.as_deref(),
        |config| {
            config.engine.cache_megabytes = args.cache_megabytes as usize;
            config.engine.max_batch = config.engine.max_batch.max(streams.min(64));
            config.engine.max_waiting = config.engine.max_waiting.max(2 * streams);
            config.server.max_concurrent = config.server.max_concurrent.max(2 * streams);
            config.training.enabled = args.train;
            config.training.optimizer.learning_rate = LEARNING_RATE;
            data.get_or_init(|| config.server.data.clone());
        },
        async |server| {
            let data = data.get().context("the server has no data directory")?;
            soak(server, args, data).await
        },
    )?;
    let broken = outcome.broken();
    outcome.report(args, &broken)?;
    Ok(if broken.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// An adapter that answers a little differently from every other, and the same each time it is made.
fn adapter(config: &ModelConfig, version: u64) -> Adapter {
    let mut adapter = Adapter::init(config, LoraSpec::default(), version);
    for (index, (_, values)) in adapter.tensors_mut().into_iter().enumerate() {
        for (at, value) in values.iter_mut().enumerate() {
            let phase = (at * 7 + index * 31) as f64 + version as f64 * 1.7;
            *value += 0.02 * phase.sin() as f32;
        }
    }
    adapter
}

async fn soak(server: &Server, args: &SoakArgs, data: &Path) -> Result<Outcome> {
    let all = Duration::from_secs_f64(args.minutes * 60.0);
    let every = Duration::from_secs(args.swap_seconds.into());
    let board = Arc::new(Board::new());
    let talker = Talker {
        http: reqwest::Client::builder().no_proxy().build()?,
        url: format!("{}/v1/chat/completions", server.url()),
        // The server asks for it when there is one.
        key: std::env::var("CLAWHOST_API_KEY").ok(),
        board: Arc::clone(&board),
        remembered: LOOKED_UP.div_ceil(args.streams as usize),
    };
    let begun = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..u64::from(args.streams) {
        clients.spawn(talker.clone().talk(number));
    }
    let (mut memory, mut swaps, mut longest_publish) = (Vec::new(), 0u64, 0f64);
    let mut progress = Progress::new(all.as_secs_f64());
    let sample = (all / 100).clamp(Duration::from_millis(200), Duration::from_secs(1));
    let mut watch = tokio::time::interval(sample);
    let mut swap = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    let mut follow = tokio::time::interval(FOLLOW);
    let mut phases = Phases::new(all, server.training());
    let end = tokio::time::sleep(all);
    tokio::pin!(end);
    let mut told = 0.0;
    loop {
        tokio::select! {
            () = &mut end => break,
            _ = watch.tick() => {
                memory.extend(resident("VmRSS:"));
                let now = begun.elapsed().as_secs_f64();
                progress.done(now - told);
                told = now;
                progress.stage(&format!("{} streams, version {swaps}", args.streams));
            }
            _ = follow.tick(), if args.train => {
                phases.follow(&board, server.training());
                let active = server.engine().active().version;
                if active > swaps {
                    swaps = active;
                    board.publish(swaps);
                }
            }
            _ = swap.tick(), if !args.train => {
                swaps += 1;
                let engine = server.engine().clone();
                let publish = tokio::task::spawn_blocking(move || {
                    let adapter = Arc::new(adapter(engine.model().config(), swaps));
                    let begun = Instant::now();
                    engine.release(swaps, Some(adapter)).map(|_| begun.elapsed())
                });
                let took = publish.await.context("publishing broke off")??;
                board.publish(swaps);
                longest_publish = longest_publish.max(took.as_secs_f64() * 1e3);
            }
        }
    }
    phases.end(&board);
    board.over.store(true, Ordering::Relaxed);
    let seconds = begun.elapsed().as_secs_f64();
    progress.stage("the last replies end");
    let mut seen = Seen::default();
    while let Some(client) = clients.join_next().await {
        seen.merge(client.context("a client broke off")?);
    }
    progress.end();
    let stats = server.engine().stats();
    let answered = std::mem::take(&mut seen.answered);
    let own = |version: u64| -> Result<Learned> {
        let base = server.engine().model();
        if !args.train {
            return Ok(Arc::new(adapter(base.config(), version)).into());
        }
        let rows = server.journal().adapters()?;
        let row = rows.iter().find(|row| row.version == version);
        let row = row.with_context(|| format!("version {version} is not recorded"))?;
        Ok(Learned::load(&data.join(&row.path), base)?)
    };
    let (recomputed, wrong) = look_up(server, &answered, own)?;
    let training = args.train.then(|| phases.compare(&seen, server.training()));
    Ok(Outcome {
        seconds,
        swaps,
        seen,
        memory,
        longest_publish,
        looked_up: answered.len(),
        recomputed,
        wrong,
        mean_batch: stats.mean_batch(),
        pauses: stats.pauses,
        evictions: stats.evictions,
        training,
    })
}

/// Compares replies with their records, and the log-probs of some with what their version gives: how many were
/// computed again, and what is wrong. `own` gives what a version has beside the base.
fn look_up(
    server: &Server,
    answered: &[Answered],
    own: impl Fn(u64) -> Result<Learned>,
) -> Result<(usize, Vec<String>)> {
    let model = server.engine().model();
    let every = answered.len().div_ceil(RECOMPUTED).max(1);
    let (mut wrong, mut recomputed) = (Vec::new(), 0);
    for (index, one) in answered.iter().enumerate() {
        let id: TurnId = one
            .turn
            .parse()
            .map_err(|_| anyhow::anyhow!("turn {:?}", one.turn))?;
        let Some(turn) = server.journal().turn(id)? else {
            wrong.push(format!("turn {id} is not recorded"));
            continue;
        };
        if turn.adapter_version != one.version {
            wrong.push(format!(
                "turn {id}: version {} in its header, {} in its record",
                one.version, turn.adapter_version
            ));
        }
        let Some(completion) = turn.completion.filter(|done| !done.token_ids.is_empty()) else {
            wrong.push(format!("turn {id} has no recorded tokens"));
            continue;
        };
        if index % every != 0 {
            continue;
        }
        let tokens = [turn.prompt_ids.as_slice(), &completion.token_ids].concat();
        let sequence = Sequence {
            tokens: &tokens,
            start: turn.prompt_ids.len(),
            temperature: turn.temperature,
            candidates: Candidates::None,
        };
        let scored = match one.version {
            0 => model.score(None, &[sequence])?,
            version => own(version)?.score(model, &[sequence])?,
        };
        let scored = scored.into_iter().flat_map(|scored| scored.logprobs);
        let pairs = scored.zip(&completion.full_logprobs);
        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        recomputed += 1;
        if worst.is_nan() || worst > LOGPROB_BOUND {
            wrong.push(format!(
                "turn {id}: a recorded log-prob is {worst} off what version {} gives",
                one.version
            ));
        }
    }
    Ok((recomputed, wrong))
}

impl Outcome {
    /// Mean resident MiB in the second tenth and in the last.
    fn growth(&self) -> (f64, f64) {
        let tenth = (self.memory.len() / 10).max(1);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let second = self.memory.get(tenth..2 * tenth).unwrap_or(&self.memory);
        let last = self.memory.len().saturating_sub(tenth);
        (
            mean(second),
            mean(self.memory.get(last..).unwrap_or_default()),
        )
    }

    /// The bounds that do not hold, each with what was found.
    fn broken(&self) -> Vec<String> {
        let seen = &self.seen;
        let mut broken = Vec::new();
        if seen.failed > 0 {
            broken.push(format!(
                "{} of {} requests failed: {}",
                seen.failed,
                seen.requests,
                seen.errors.join("; ")
            ));
        }
        if let Some(first) = self.wrong.first() {
            broken.push(format!(
                "{} replies do not agree with their version; {first}",
                self.wrong.len()
            ));
        }
        if let Some(training) = &self.training {
            // Memory grows in the middle of the run by what training takes.
            broken.extend(training.broken());
            return broken;
        }
        let (second, last) = self.growth();
        if last > second * GROWTH.0 + GROWTH.1 {
            broken.push(format!("memory grew from {second:.0} to {last:.0} MiB"));
        }
        let (median, near) = (seen.away.quantile(0.5), seen.near.quantile(0.99));
        if near > GAP_BOUND * median {
            broken.push(format!(
                "the 99th percentile of gaps within a second after a swap is {near:.1} ms, more than {GAP_BOUND} times the median of {median:.1} ms"
            ));
        }
        broken
    }

    fn report(&self, args: &SoakArgs, broken: &[String]) -> Result<()> {
        let seen = &self.seen;
        let rate = seen.tokens as f64 / self.seconds;
        let (second, last) = self.growth();
        let most = self.memory.iter().copied().fold(0.0, f64::max);
        if args.json {
            let gaps = |gaps: &gaps::Gaps| json!({"count": gaps.count(), "median_ms": gaps.quantile(0.5), "p99_ms": gaps.quantile(0.99), "longest_ms": gaps.longest()});
            return say_json(&json!({
                "bench": "soak", "streams": args.streams, "seconds": self.seconds, "swaps": self.swaps,
                "requests": seen.requests, "failed": seen.failed, "errors": seen.errors, "tokens": seen.tokens,
                "tokens_per_second": rate, "mean_batch": self.mean_batch, "pauses": self.pauses,
                "evictions": self.evictions, "looked_up": self.looked_up, "recomputed": self.recomputed,
                "wrong": self.wrong, "longest_publish_ms": self.longest_publish,
                "gaps": gaps(&seen.away), "gaps_after_swap": gaps(&seen.near),
                "resident_mib": {"second_tenth": second, "last_tenth": last, "most": most},
                "training": self.training.as_ref().map(Comparison::json),
                "broken": broken,
            }));
        }
        let mut lines = vec![
            format!(
                "{} streams for {:.0} s, {} adapters published (at most {} ms each)",
                args.streams,
                self.seconds,
                self.swaps,
                number(self.longest_publish)
            ),
            format!(
                "{} requests, {} failed, {} tokens, {} tokens/s, {:.1} rows in a step on average",
                seen.requests,
                seen.failed,
                seen.tokens,
                number(rate),
                self.mean_batch
            ),
            format!(
                "{} replies looked up and {} computed again: {} wrong",
                self.looked_up,
                self.recomputed,
                self.wrong.len()
            ),
            format!(
                "resident memory {second:.0} MiB in the second tenth, {last:.0} in the last, {most:.0} at most; {} requests paused, {} kept blocks given up",
                self.pauses, self.evictions
            ),
        ];
        for (what, gaps) in [
            ("gaps between tokens", &seen.away),
            ("within 1 s after a swap", &seen.near),
        ] {
            lines.push(format!(
                "{what}: median {} ms, 99th percentile {} ms, longest {} ms ({})",
                number(gaps.quantile(0.5)),
                number(gaps.quantile(0.99)),
                number(gaps.longest()),
                gaps.count()
            ));
        }
        lines.extend(self.training.iter().flat_map(Comparison::lines));
        lines.extend(broken.iter().map(|reason| format!("BROKEN: {reason}")));
        lines.iter().try_for_each(|line| say(line))
    }
}
