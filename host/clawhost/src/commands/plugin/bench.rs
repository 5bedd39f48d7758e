//! `clawhost plugin bench`: what calls of one component cost on this machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_plugins::{
    CallContext, Called, EpisodeTask, Fault, Grants, HostOptions, Kind, LossBatch, Message, Plugin,
    PluginHost, Profile, Receipt, Requirements, RewardedSequence, Role, Trajectory, Turn,
};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::output::{say, say_json};
use crate::serve::{plugin_name, read_plugin};

/// Tokens of the microbatch that a loss is measured on.
const LOSS_TOKENS: usize = 65_536;

/// Arguments of `clawhost plugin bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost plugin bench judge.wasm --concurrency 1 --concurrency 256 --json\n\n\
    Every call runs in a fresh instance, with all limits and checks, on a conversation of 2 KB; a loss on a\n\
    microbatch of 65,536 tokens, an environment from reset to close. What a plugin could reach is not granted here,\n\
    because waiting for a model or the network is not its cost."
)]
pub(crate) struct BenchArgs {
    /// The component
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Calls of each measurement
    #[arg(long, value_name = "N", default_value_t = 2000)]
    calls: usize,
    /// Calls at a time; given several times, each is measured
    #[arg(long, value_name = "N", default_values_t = [1])]
    concurrency: Vec<usize>,
    /// Run it with ticks and clocks instead of fuel
    #[arg(long)]
    fast: bool,
    /// Print one JSON object a measurement, each on a line
    #[arg(long)]
    json: bool,
}

/// One measurement. Times are microseconds; with many calls at a time they include waiting.
#[derive(Debug, Serialize)]
struct Measured<'a> {
    plugin: &'a str,
    sha256: &'a str,
    kind: Kind,
    profile: Profile,
    load_ms: f64,
    concurrency: usize,
    calls: usize,
    failed: usize,
    p50_us: f64,
    p99_us: f64,
    per_second: f64,
    peak_bytes: u64,
}

/// Runs the command.
pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode> {
    ensure!(
        args.calls > 0,
        "--calls 0 measures nothing; give at least 1"
    );
    ensure!(
        args.concurrency.iter().all(|n| (1..=4096).contains(n)),
        "--concurrency must be between 1 and 4096"
    );
    let bytes = read_plugin(&args.file)?;
    let host = PluginHost::new(HostOptions::default())?;
    let profile = if args.fast {
        Profile::Fast
    } else {
        Profile::Deterministic
    };
    let started = Instant::now();
    let plugin = host
        .load(
            &plugin_name(&args.file),
            &bytes,
            &Grants::default(),
            profile,
        )
        .with_context(|| format!("{} cannot be measured", args.file.display()))?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    let runtime = tokio::runtime::Runtime::new()?;
    let sample = Arc::new(runtime.block_on(Sample::of(&plugin))?);
    if !args.json {
        say(&format!(
            "{} {}, {profile}, loaded in {load_ms:.1} ms\n\n{:>11} {:>11} {:>11} {:>12} {:>12} {:>7}",
            plugin.kind(),
            plugin.name(),
            "at a time",
            "p50 µs",
            "p99 µs",
            "calls/s",
            "peak bytes",
            "failed"
        ))?;
    }
    for &concurrency in &args.concurrency {
        let run = runtime.block_on(measure(&plugin, &sample, concurrency, args.calls));
        let (mut times, took) = (run.times, run.took);
        times.sort_unstable();
        let at = |share: f64| {
            let place = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
            times
                .get(place)
                .map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        let measured = Measured {
            plugin: plugin.name(),
            sha256: plugin.digest(),
            kind: plugin.kind(),
            profile,
            load_ms,
            concurrency,
            calls: times.len(),
            failed: run.failed,
            p50_us: at(0.5),
            p99_us: at(0.99),
            per_second: times.len() as f64 / took.as_secs_f64().max(1e-9),
            peak_bytes: run.peak_bytes,
        };
        if args.json {
            say_json(&measured)?;
        } else {
            say(&format!(
                "{:>11} {:>11.1} {:>11.1} {:>12.0} {:>12} {:>7}",
                measured.concurrency,
                measured.p50_us,
                measured.p99_us,
                measured.per_second,
                measured.peak_bytes,
                measured.failed
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What calls are made with.
struct Sample {
    trajectory: Trajectory,
    needs: Requirements,
    batch: LossBatch,
    sequences: Vec<RewardedSequence>,
}

impl Sample {
    /// A loss is asked what it reads, because absent tensors are empty.
    async fn of(plugin: &Plugin) -> Result<Sample> {
        let mut needs = Requirements::default();
        if plugin.kind() == Kind::Loss {
            let described = plugin.describe_loss(CallContext::default()).await;
            needs = described
                .outcome
                .context("the loss does not say what it needs")?;
        }
        Ok(Sample {
            trajectory: conversation(),
            batch: if plugin.kind() == Kind::Loss {
                microbatch(needs)
            } else {
                LossBatch::default()
            },
            needs,
            sequences: (0..1024_u32)
                .map(|i| RewardedSequence {
                    group: i / 8,
                    length: 64,
                    reward: (i % 3) as f32 - 1.0,
                    token_rewards: Vec::new(),
                })
                .collect(),
        })
    }
}

/// A conversation of about 2 KB.
fn conversation() -> Trajectory {
    let mut trajectory = Trajectory::new("bench", "bench");
    trajectory.turns.push(Turn {
        index: 0,
        prompt: vec![Message::text(
            Role::User,
            "How do I keep basil alive? ".repeat(12),
        )],
        response: Message::text(
            Role::Assistant,
            "Give it light, water it from below, and cut it above a pair of leaves. ".repeat(20),
        ),
        next_state: vec![Message::text(Role::User, "thanks, now what about mint?")],
        truncated: false,
    });
    trajectory
}

/// A microbatch of [`LOSS_TOKENS`] in sequences of 256, with the tensors that the loss reads.
fn microbatch(needs: Requirements) -> LossBatch {
    const LENGTH: usize = 256;
    let sequences = LOSS_TOKENS / LENGTH;
    let wave = |scale: f32, count: usize| -> Vec<f32> {
        (0..count)
            .map(|i| -scale * (1.0 + ((i % 97) as f32) / 97.0))
            .collect()
    };
    let given = |wanted: bool, scale: f32, count: usize| {
        if wanted {
            wave(scale, count)
        } else {
            Vec::new()
        }
    };
    let k = needs.k as usize;
    let top = LOSS_TOKENS * k;
    LossBatch {
        offsets: (0..=sequences).map(|i| (i * LENGTH) as u32).collect(),
        groups: (0..sequences).map(|i| (i / 8) as u32).collect(),
        rewards: (0..sequences).map(|i| (i % 3) as f32 - 1.0).collect(),
        tokens: (0..LOSS_TOKENS).map(|i| (i % 1000) as u32).collect(),
        mask: (0..LOSS_TOKENS)
            .map(|i| u8::from(i % LENGTH >= 32))
            .collect(),
        advantages: (0..LOSS_TOKENS)
            .map(|i| ((i / LENGTH) % 3) as f32 - 1.0)
            .collect(),
        logprob: wave(1.0, LOSS_TOKENS),
        old_logprob: given(needs.old, 1.01, LOSS_TOKENS),
        ref_logprob: given(needs.reference, 1.1, LOSS_TOKENS),
        teacher_logprob: given(needs.teacher, 0.9, LOSS_TOKENS),
        entropy: given(needs.entropy, -0.5, LOSS_TOKENS),
        topk_ids: (0..top).map(|i| (i % 1000) as u32).collect(),
        topk_logprob: given(needs.topk, 1.5, top),
        teacher_topk_logprob: given(needs.teacher_topk, 1.4, top),
        step_tokens: (LOSS_TOKENS / LENGTH * (LENGTH - 32)) as u64,
        step_sequences: sequences as u64,
        step: 1,
    }
}

/// What a number of calls took.
struct Run {
    times: Vec<Duration>,
    took: Duration,
    failed: usize,
    peak_bytes: u64,
}

/// Makes the calls with so many drivers, after a warm-up of a tenth.
async fn measure(plugin: &Plugin, sample: &Arc<Sample>, at_once: usize, calls: usize) -> Run {
    round(plugin, sample, at_once, calls.div_ceil(10)).await;
    round(plugin, sample, at_once, calls).await
}

async fn round(plugin: &Plugin, sample: &Arc<Sample>, at_once: usize, calls: usize) -> Run {
    let left = Arc::new(AtomicUsize::new(calls));
    let started = Instant::now();
    let mut drivers = JoinSet::new();
    for _ in 0..at_once {
        let (plugin, sample, left) = (plugin.clone(), Arc::clone(sample), Arc::clone(&left));
        drivers.spawn(async move {
            let (mut times, mut failed, mut peak) = (Vec::new(), 0, 0);
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok()
            {
                let started = Instant::now();
                let (outcome, receipt) = call(&plugin, &sample).await;
                times.push(started.elapsed());
                failed += usize::from(outcome.is_err_and(|fault| !fault.is_no_answer()));
                peak = receipt.peak_memory_bytes.max(peak);
            }
            (times, failed, peak)
        });
    }
    let driven = drivers.join_all().await;
    let took = started.elapsed();
    let mut run = Run {
        times: Vec::with_capacity(calls),
        took,
        failed: 0,
        peak_bytes: 0,
    };
    for (times, failed, peak) in driven {
        run.times.extend(times);
        run.failed += failed;
        run.peak_bytes = run.peak_bytes.max(peak);
    }
    run
}

/// One call of the plugin's own kind.
async fn call(plugin: &Plugin, sample: &Sample) -> (Result<(), Fault>, Receipt) {
    let call = CallContext {
        run_id: "bench".to_owned(),
        ..CallContext::default()
    };
    match plugin.kind() {
        Kind::Judge => end(plugin.score_turn(call, &sample.trajectory, 0).await),
        Kind::GroupJudge => {
            let group = vec![sample.trajectory.clone(); 8];
            end(plugin.score_group(call, &group).await)
        }
        Kind::Hint => end(plugin.extract_hint(call, &sample.trajectory, 0).await),
        Kind::Loss => {
            let batch = sample.batch.clone();
            end(plugin.evaluate_loss(call, sample.needs, batch).await)
        }
        Kind::Advantage => end(plugin.compute_advantages(call, &sample.sequences).await),
        Kind::Environment => {
            let task = EpisodeTask {
                id: "bench".to_owned(),
                instruction: String::new(),
                payload: "{}".to_owned(),
            };
            let begun = plugin.start_episode(call, task, 0).await;
            match begun.outcome {
                Ok((episode, _)) => end(episode.close().await),
                Err(fault) => (Err(fault), begun.receipt),
            }
        }
    }
}

fn end<T>(called: Called<T>) -> (Result<(), Fault>, Receipt) {
    (called.outcome.map(drop), called.receipt)
}
