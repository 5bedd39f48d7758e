//! `clawhost bench plugins`: cost of plugin calls, compared with wasmtime alone.

mod calls;
mod languages;
mod looping;
mod table;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use clawhost_plugins::measure::{LOSS_TOKENS, failing_calls, resident_bytes};
use clawhost_plugins::{Grants, HostOptions, Profile};

use self::calls::{Calls, ComponentBench, MANY, embedded_plugin};
use self::languages::languages;
use self::table::{FailingFigures, LOSS, Report};
use crate::compiling;
use crate::output::print_result;
use crate::progress::Progress;

/// A judge that does almost nothing, so that the cost is the host's.
const NO_OP: &str = "judge-minimal";
/// The default judge.
const JUDGE: &str = "judge-next-state";
/// The default judge does real work, so it is called this many times less often.
const JUDGE_SHARE: usize = 5;
const LOSS_CALLS: usize = 50;
/// Memory samples while calls fail; ten progress updates per sample.
const MEMORY_SAMPLES: usize = 10;
const SLICES: usize = 10 * MEMORY_SAMPLES;

/// Flags of `clawhost bench plugins`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  clawhost bench plugins\n  clawhost bench plugins --rounds 1 --languages rust,c --json\n  clawhost bench plugins --rounds 1 --languages none --failing 1000000 --looping 1000\n\n\
    Every call runs in a fresh instance, with all limits, checks and its receipt, on the plugin threads, as the\n\
    calls of a judgement do. Calls that are handed over to these threads and back, as those of training are, have\n\
    lines of their own. In each round they take ten turns with a plain loop over wasmtime that only instantiates\n\
    and calls, on the same threads and on an engine and a pool with the same settings; the overhead is the ratio\n\
    of calls/s. For each language the judge of `clawhost plugin new` is built in a temporary directory; a language\n\
    with missing tools is skipped and listed."
)]
pub(super) struct PluginsArgs {
    /// Measured repetitions
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Calls per measurement
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    calls: u32,
    /// Comma-separated languages to measure, or none
    #[arg(long, value_name = "LIST", default_value = "rust,c,js,python")]
    languages: String,
    /// Also make this many failing calls and report the memory they leave
    #[arg(long, value_name = "CALLS", default_value_t = 0)]
    failing: u32,
    /// Also keep this many endless calls running and report their effect on the time to first token
    #[arg(long, value_name = "CALLS", default_value_t = 0)]
    looping: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &PluginsArgs) -> Result<ExitCode> {
    let selected = languages::parse_list(&args.languages)?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let rounds = f64::from(args.rounds);
    // Rough seconds; only the proportions matter.
    let mut progress = Progress::new(
        rounds * 6.0
            + selected.len() as f64 * 15.0
            + f64::from(args.failing) / 15_000.0
            + if args.looping > 0 { 30.0 } else { 0.0 },
    );
    // First, before anything else has used memory.
    let failing = match args.failing {
        0 => None,
        calls => Some(runtime.block_on(measure_failing(calls, &mut progress))?),
    };
    let mut benches = vec![
        ComponentBench::new(NO_OP, args.calls as usize)?,
        ComponentBench::new(JUDGE, args.calls as usize / JUDGE_SHARE)?,
    ];
    let mut loss = ComponentBench::of_host(LOSS, LOSS_CALLS)?;
    for round in 1..=args.rounds {
        for bench in &mut benches {
            progress.stage(&format!(
                "{}, round {round} of {}",
                bench.component(),
                args.rounds
            ));
            runtime.block_on(bench.measure(&[1, MANY]))?;
            progress.advance(2.5);
        }
        progress.stage(&format!(
            "{LOSS} over {LOSS_TOKENS} tokens, round {round} of {}",
            args.rounds
        ));
        runtime.block_on(loss.measure(&[1]))?;
        progress.advance(1.0);
    }
    let pooled = loss.is_pooled()?;
    let mut calls: Vec<Calls> = benches.iter().flat_map(ComponentBench::calls).collect();
    calls.extend(loss.calls());
    let overhead = benches.iter().flat_map(ComponentBench::overhead).collect();
    // Free their memory for the following measurements.
    drop((benches, loss));
    let (languages, absent) = languages(&selected, &runtime, &mut progress)?;
    drop(runtime);
    let looping = match args.looping {
        0 => None,
        concurrency => Some(looping::measure(concurrency as usize, &mut progress)?),
    };
    progress.clear();
    let report = Report {
        bench: "plugins",
        rounds: args.rounds,
        threads: HostOptions::default().config.num_threads,
        pooled,
        calls,
        overhead,
        loss_tokens: LOSS_TOKENS,
        languages,
        absent,
        failing,
        looping,
    };
    print_result(args.json, &report, || table::text(&report))
}

/// A tenth of the calls runs first, so that memory kept for reuse is already allocated.
async fn measure_failing(calls: u32, progress: &mut Progress) -> Result<FailingFigures> {
    let host = compiling::host(HostOptions::default())?;
    let grants = Grants::default();
    let judge = host.load(
        NO_OP,
        embedded_plugin(NO_OP)?,
        &grants,
        Profile::Deterministic,
    )?;
    let what = format!("{calls} failing calls");
    progress.stage(&what);
    let total = calls as usize;
    failing_calls(&judge, MANY, total.div_ceil(10)).await?;
    let mut resident = Vec::from_iter(resident_bytes());
    let started = std::time::Instant::now();
    let (mut done, mut slices) = (0, 0);
    while done < total {
        let slice = total.div_ceil(SLICES).min(total - done);
        failing_calls(&judge, MANY, slice).await?;
        done += slice;
        slices += 1;
        if slices % (SLICES / MEMORY_SAMPLES) == 0 {
            resident.extend(resident_bytes());
        }
        progress.advance(slice as f64 / 15_000.0);
        progress.stage(&what);
    }
    let elapsed = started.elapsed().as_secs_f64().max(1e-9);
    Ok(FailingFigures {
        calls,
        per_second: f64::from(calls) / elapsed,
        resident_bytes: resident,
    })
}
