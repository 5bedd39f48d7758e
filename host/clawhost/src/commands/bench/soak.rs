//! `clawhost bench soak`: a whole server under continuous streams, with a new adapter every few seconds.
//!
//! Checks what an operator relies on: no errors, each reply from the version that was active when it started and only
//! from that, flat memory, and no latency spike at a swap. Missed bounds are listed and the exit code is 1. With
//! `--train` the adapters come from real training, and the streams are compared with and without it.

mod client;
mod gaps;
mod phases;
mod replies;

use std::cell::OnceCell;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use clawhost_config::{DeviceChoice, parse_size};
use clawhost_evaluation::statistics::quantile;
use clawhost_model::{Adapter, LoraSpec, ModelConfig, TrainedWeights};
use serde_json::json;

use super::super::renamed;
use super::figures::{number, resident};
use super::streaming::with_configured_server;
use crate::arms::api_key;
use crate::output::{print, print_json};
use crate::progress::Progress;
use crate::serve::Server;
use client::{ClientStats, SharedState, StreamingClient};
use phases::{Comparison, Phases};
use replies::CheckedReplies;

/// Maximum ratio of the 99th percentile of gaps just after a swap to the median gap.
const GAP_BOUND: f64 = 2.0;
/// Maximum memory growth from the second tenth to the last: a factor, and MiB for allocator noise.
const GROWTH: (f64, f64) = (1.05, 16.0);
/// Replies that are looked up in the journal.
const LOOKED_UP: usize = 2_000;

/// Arguments of `clawhost bench soak`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  clawhost bench soak\n  clawhost bench soak --streams 16 --minutes 2 --json\n  clawhost bench soak --train --streams 32 --minutes 4\n  \
    clawhost bench soak --train --swaps 20 --set training.batch_size=4\n\nExit code 1: a bound was missed; it is listed."
)]
pub(super) struct SoakArgs {
    /// Model directory or GGUF file instead of the embedded model
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Device that runs the model: auto, cpu, cuda:N, or several GPUs as in cuda:0,1
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
    /// Concurrent streaming clients
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    streams: u32,
    /// Duration in minutes
    #[arg(long, default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    /// Seconds between published adapters
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    swap_seconds: u32,
    /// End after this many published adapters instead of after --minutes, which is then the longest; with --train, training
    /// starts after half a minute
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    swaps: Option<u64>,
    /// KV cache memory, such as 512MiB; smaller than the default of a server so that it fills soon
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = memory)]
    kv_cache_memory: usize,
    #[arg(long = "cache-megabytes", hide = true, value_parser = renamed("--kv-cache-memory SIZE, such as 256MiB"))]
    _cache_megabytes: Option<Infallible>,
    /// Train on positive and negative feedback in the second half, and compare the halves
    #[arg(long, conflicts_with = "swap_seconds")]
    train: bool,
    /// Override a key of the configuration that no flag here sets; can be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn memory(text: &str) -> Result<usize, String> {
    usize::try_from(parse_size(text)?).map_err(|_| "more than this machine can address".to_owned())
}

fn minutes(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.2..=100_000.0).contains(&value) {
        Ok(value)
    } else {
        Err("must be between 0.2 and 100000".to_owned())
    }
}

/// Result of the run.
struct Outcome {
    seconds: f64,
    swaps: u64,
    stats: ClientStats,
    /// Resident MiB, sampled at equal intervals.
    memory: Vec<f64>,
    /// Longest publication in milliseconds.
    longest_publish: f64,
    /// Milliseconds from each publication to the first token served with it, to a request that was sent at once.
    first_tokens: Vec<f64>,
    /// Most memory in use on the device, in MiB, by all processes; `None` where it cannot be read.
    device_memory: Option<f64>,
    checked: CheckedReplies,
    mean_batch: f64,
    pauses: u64,
    evictions: u64,
    /// Streams with and without training, with `--train`.
    training: Option<Comparison>,
}

/// Poll interval of the training state with `--train`; shorter than a publication, and an error of the time from a
/// publication to its first token.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// With `--swaps`: the time after the last publication, in which its first token arrives.
const AFTER_LAST_SWAP: Duration = Duration::from_secs(2);
/// With `--swaps`: the duration that the phases of `--train` are parts of.
const PHASES_BEFORE_SWAPS: Duration = Duration::from_secs(60);
/// Learning rate of `--train`: so low that replies stay the same and both halves have the same work.
const LEARNING_RATE: f64 = 1e-7;

/// Runs the command.
pub(super) fn run(args: &SoakArgs) -> Result<ExitCode> {
    let streams = args.streams as usize;
    let configured = OnceCell::new();
    let outcome = with_configured_server(
        args.model.as_deref(),
        &args.set,
        |config| {
            config.engine.device = args.device;
            config.engine.kv_cache_memory = Some(args.kv_cache_memory);
            // One more than the streams: a request sent at a publication is not to wait for a slot.
            config.engine.max_num_seqs = config.engine.max_num_seqs.max(streams.min(64) + 1);
            config.engine.max_waiting_requests =
                config.engine.max_waiting_requests.max(2 * streams);
            config.server.max_concurrent_requests =
                config.server.max_concurrent_requests.max(2 * streams);
            config.training.enabled = args.train;
            config.training.optimizer.learning_rate = LEARNING_RATE;
            configured.get_or_init(|| {
                let share = config.training.busy_share;
                (config.server.data_dir.clone(), share)
            });
        },
        async |server| {
            let (data, share) = configured.get().context("the server is not configured")?;
            soak(server, args, data, *share).await
        },
    )?;
    let missed = outcome.missed_bounds(args.swaps);
    outcome.report(args, &missed)?;
    Ok(if missed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A deterministic adapter per version, each with slightly different outputs.
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

/// Runs the clients; `share` is the configured `training.busy_share`.
async fn soak(
    server: &Server,
    args: &SoakArgs,
    data: &Path,
    share: Option<f64>,
) -> Result<Outcome> {
    let duration = Duration::from_secs_f64(args.minutes * 60.0);
    let every = Duration::from_secs(args.swap_seconds.into());
    let state = Arc::new(SharedState::new());
    let client = StreamingClient {
        http: clawhost_http::client().build()?,
        url: format!("{}/v1/chat/completions", server.url()),
        // The server requires the key when it is set.
        key: api_key(),
        state: Arc::clone(&state),
        checked_replies: LOOKED_UP.div_ceil(args.streams as usize),
    };
    let started = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..u64::from(args.streams) {
        clients.spawn(client.clone().run(number));
    }
    let (mut memory, mut swaps, mut longest_publish) = (Vec::new(), 0u64, 0f64);
    let mut device_memory = None::<u64>;
    let mut progress = Progress::new(duration.as_secs_f64());
    let sample = (duration / 100).clamp(Duration::from_millis(200), Duration::from_secs(1));
    let mut watch = tokio::time::interval(sample);
    let mut swap = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    let mut follow = tokio::time::interval(POLL_INTERVAL);
    let phased = args
        .swaps
        .map_or(duration, |_| duration.min(PHASES_BEFORE_SWAPS));
    let mut phases = Phases::new(phased, server.training());
    let share = share.unwrap_or_else(|| server.engine().backend().training_share());
    let (mut probes, mut is_last) = (tokio::task::JoinSet::new(), false);
    let end = tokio::time::sleep(duration);
    tokio::pin!(end);
    let mut reported = 0.0;
    loop {
        tokio::select! {
            () = &mut end => break,
            _ = watch.tick() => {
                memory.extend(resident("VmRSS:"));
                let device = server.engine().backend().device();
                device_memory = device_memory.max(device.memory.map(|memory| memory.used));
                let now = started.elapsed().as_secs_f64();
                progress.advance(now - reported);
                reported = now;
                progress.stage(&format!("{} streams, version {swaps}", args.streams));
            }
            _ = follow.tick(), if args.train => {
                phases.advance(&state, server.training());
                let active = server.engine().active().version;
                if active > swaps {
                    swaps = active;
                    state.publish(swaps);
                    probes.spawn(client.clone().probe(swaps));
                }
            }
            _ = swap.tick(), if !args.train && !is_last => {
                swaps += 1;
                let engine = server.engine().clone();
                let publish = tokio::task::spawn_blocking(move || {
                    let adapter = Arc::new(adapter(engine.model().config(), swaps));
                    let started = Instant::now();
                    engine.try_publish(swaps, Some(adapter)).map(|_| started.elapsed())
                });
                let elapsed = publish.await.context("publishing failed")??;
                state.publish(swaps);
                probes.spawn(client.clone().probe(swaps));
                longest_publish = longest_publish.max(elapsed.as_secs_f64() * 1e3);
            }
        }
        if !is_last && args.swaps.is_some_and(|most| swaps >= most) {
            is_last = true;
            end.as_mut()
                .reset(tokio::time::Instant::now() + AFTER_LAST_SWAP);
        }
    }
    phases.end(&state);
    state.stop.store(true, Ordering::Relaxed);
    let seconds = started.elapsed().as_secs_f64();
    progress.stage("waiting for the last replies");
    let mut stats = ClientStats::default();
    while let Some(client) = clients.join_next().await {
        stats.merge(client.context("a client failed")?);
    }
    while let Some(probe) = probes.join_next().await {
        stats.merge(probe.context("a client failed")?);
    }
    progress.clear();
    let engine_stats = server.engine().stats();
    let first_tokens = state.first_tokens();
    let answered = std::mem::take(&mut stats.answered);
    let weights_of = |version: u64| -> Result<TrainedWeights> {
        let base = server.engine().model();
        if !args.train {
            return Ok(Arc::new(adapter(base.config(), version)).into());
        }
        let rows = server.journal().adapters()?;
        let row = rows.iter().find(|row| row.version == version);
        let row =
            row.with_context(|| format!("adapter version {version} is not in the journal"))?;
        Ok(TrainedWeights::load(&data.join(&row.path), base)?)
    };
    let checked = CheckedReplies::check(server, &answered, weights_of)?;
    let training = args
        .train
        .then(|| phases.compare(&stats, server.training(), share));
    Ok(Outcome {
        seconds,
        swaps,
        stats,
        memory,
        longest_publish,
        first_tokens,
        device_memory: device_memory.map(|bytes| bytes as f64 / f64::from(1 << 20)),
        checked,
        mean_batch: engine_stats.mean_batch(),
        pauses: engine_stats.preemptions,
        evictions: engine_stats.evictions,
        training,
    })
}

impl Outcome {
    /// Mean resident MiB in the second tenth and in the last.
    fn growth(&self) -> (f64, f64) {
        let tenth = (self.memory.len() / 10).max(1);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let second = self.memory.get(tenth..2 * tenth).unwrap_or(&self.memory);
        let last = self.memory.len().saturating_sub(tenth);
        (mean(second), mean(&self.memory[last..]))
    }

    /// The missed bounds, each with the measured value.
    fn missed_bounds(&self, swaps: Option<u64>) -> Vec<String> {
        let stats = &self.stats;
        let mut missed = Vec::new();
        if let Some(wanted) = swaps.filter(|wanted| self.swaps < *wanted) {
            missed.push(format!(
                "{} of {wanted} adapters were published; run longer with --minutes",
                self.swaps
            ));
        }
        if stats.failed > 0 {
            missed.push(format!(
                "{} of {} requests failed: {}",
                stats.failed,
                stats.requests,
                stats.errors.join("; ")
            ));
        }
        missed.extend(self.checked.missed_bound());
        if let Some(training) = &self.training {
            // With training, memory grows in the middle of the run, so growth is not checked.
            missed.extend(training.missed_bounds());
            return missed;
        }
        let (second, last) = self.growth();
        if last > second * GROWTH.0 + GROWTH.1 {
            missed.push(format!("memory grew from {second:.0} to {last:.0} MiB"));
        }
        let (median, near) = (stats.away.quantile(0.5), stats.near.quantile(0.99));
        if near > GAP_BOUND * median {
            missed.push(format!(
                "the 99th percentile of gaps within 1 s after a swap is {near:.1} ms, more than {GAP_BOUND} times the median of {median:.1} ms"
            ));
        }
        missed
    }

    fn report(&self, args: &SoakArgs, missed: &[String]) -> Result<()> {
        let stats = &self.stats;
        let rate = stats.tokens as f64 / self.seconds;
        let (second, last) = self.growth();
        let most = self.memory.iter().copied().fold(0.0, f64::max);
        let at = |share| quantile(&self.first_tokens, share);
        let first_token = (at(0.5), at(0.99));
        if args.json {
            let gaps = |gaps: &gaps::Gaps| json!({"count": gaps.count(), "median_ms": gaps.quantile(0.5), "p99_ms": gaps.quantile(0.99), "longest_ms": gaps.longest()});
            return print_json(&json!({
                "bench": "soak", "streams": args.streams, "seconds": self.seconds, "swaps": self.swaps,
                "requests": stats.requests, "failed": stats.failed, "errors": stats.errors, "tokens": stats.tokens,
                "tokens_per_second": rate, "mean_batch": self.mean_batch, "pauses": self.pauses,
                "evictions": self.evictions, "replies": self.checked.json(), "longest_publish_ms": self.longest_publish,
                "first_token_after_publish_ms": self.first_tokens,
                "first_token_after_publish": {"count": self.first_tokens.len(), "median_ms": first_token.0, "p99_ms": first_token.1},
                "device_mib": self.device_memory,
                "gaps": gaps(&stats.away), "gaps_after_swap": gaps(&stats.near),
                "resident_mib": {"second_tenth": second, "last_tenth": last, "most": most},
                "training": self.training.as_ref().map(Comparison::json),
                "broken": missed,
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
                "{} requests, {} failed, {} tokens, {} tokens/s, mean batch size {:.1}",
                stats.requests,
                stats.failed,
                stats.tokens,
                number(rate),
                self.mean_batch
            ),
            self.checked.line(),
            format!(
                "resident memory {second:.0} MiB in the second tenth, {last:.0} in the last, {most:.0} peak; {} preemptions, {} evicted blocks",
                self.pauses, self.evictions
            ),
        ];
        for (what, gaps) in [
            ("gaps between tokens", &stats.away),
            ("within 1 s after a swap", &stats.near),
        ] {
            lines.push(format!(
                "{what}: median {} ms, 99th percentile {} ms, longest {} ms ({})",
                number(gaps.quantile(0.5)),
                number(gaps.quantile(0.99)),
                number(gaps.longest()),
                gaps.count()
            ));
        }
        if let Some(mib) = self.device_memory {
            lines.push(format!("device memory in use: at most {mib:.0} MiB"));
        }
        if let (Some(median), Some(p99)) = first_token {
            lines.push(format!(
                "publication to the first token served with it: median {} ms, 99th percentile {} ms ({} versions)",
                number(median),
                number(p99),
                self.first_tokens.len()
            ));
        }
        lines.extend(self.training.iter().flat_map(Comparison::lines));
        lines.extend(missed.iter().map(|reason| format!("FAILED: {reason}")));
        lines.iter().try_for_each(|line| print(line))
    }
}
