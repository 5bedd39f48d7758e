//! `clawhost bench plugins`: what plugin calls cost here, beside the engine alone.

mod calls;
mod languages;
mod looping;
mod table;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use clawhost_plugins::measure::{LOSS_TOKENS, Sample, failing_calls, resident_bytes};
use clawhost_plugins::{Grants, HostOptions, Profile};
use serde::Serialize;

use self::calls::{Calls, Overhead, Side};
use self::languages::{Absent, InLanguage, languages};
use self::looping::Looping;
use crate::compiling;
use crate::output::{say, say_json};
use crate::progress::Progress;

/// A judge that does next to nothing, so that what is left is the host.
const NO_OP: &str = "judge-minimal";
/// The judge that is used when none is named.
const JUDGE: &str = "judge-next-state";
/// It works for its verdict: fewer calls tell as much.
const JUDGE_SHARE: usize = 5;
const LOSS: &str = "loss-ppo-clip";
const LOSS_CALLS: usize = 50;
/// Calls at a time in the second measurement of each pair.
const MANY: usize = 256;
/// Looks at the memory while calls fail; to each belong ten at the clock.
const LOOKS: usize = 10;
const SLICES: usize = 10 * LOOKS;

/// Flags of `clawhost bench plugins`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  clawhost bench plugins\n  clawhost bench plugins --rounds 1 --languages rust,c --json\n  clawhost bench plugins --rounds 1 --languages none --failing 1000000 --looping 1000\n\n\
    Every call runs in a fresh instance, with all limits, checks and its receipt. Beside it, in turns, runs a plain loop over\n\
    wasmtime that only instantiates and calls; the overhead is its calls/s over ours. For each language the judge of\n\
    `clawhost plugin new` is built in a folder that is removed again; a language whose tools are missing is left out and named."
)]
pub(super) struct PluginsArgs {
    /// Repetitions that count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Calls of each measurement
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    calls: u32,
    /// Languages to measure, with commas, or none
    #[arg(long, value_name = "LIST", default_value = "rust,c,js,python")]
    languages: String,
    /// Make this many calls that fail as well, and say what memory they leave behind
    #[arg(long, value_name = "CALLS", default_value_t = 0)]
    failing: u32,
    /// Keep this many endless calls running, and say what they do to the time to the first token
    #[arg(long, value_name = "CALLS", default_value_t = 0)]
    looping: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// All that was measured.
#[derive(Serialize)]
struct Report {
    bench: &'static str,
    rounds: u32,
    threads: usize,
    pooled: bool,
    calls: Vec<Calls>,
    overhead: Vec<Overhead>,
    loss_tokens: usize,
    languages: Vec<InLanguage>,
    absent: Vec<Absent>,
    failing: Option<Failing>,
    looping: Option<Looping>,
}

/// Resident memory under many failing calls.
#[derive(Serialize)]
struct Failing {
    calls: u32,
    per_second: f64,
    /// Bytes, before the calls and after each tenth of them; empty where the system does not tell.
    resident_bytes: Vec<u64>,
}

/// Runs the command.
pub(super) fn run(args: &PluginsArgs) -> Result<ExitCode> {
    let wanted = languages::wanted(&args.languages)?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
    let rounds = f64::from(args.rounds);
    // In seconds, roughly; only their proportions matter.
    let mut progress = Progress::new(
        rounds * 6.0
            + wanted.len() as f64 * 15.0
            + f64::from(args.failing) / 15_000.0
            + if args.looping > 0 { 30.0 } else { 0.0 },
    );
    // First, before anything else has used memory.
    let failing = match args.failing {
        0 => None,
        calls => Some(runtime.block_on(fail(calls, &mut progress))?),
    };
    let mut sides = vec![
        Side::new(NO_OP, args.calls as usize)?,
        Side::new(JUDGE, args.calls as usize / JUDGE_SHARE)?,
    ];
    let mut loss = Side::of_host(LOSS, LOSS_CALLS)?;
    for round in 1..=args.rounds {
        for side in &mut sides {
            progress.stage(&format!(
                "{}, round {round} of {}",
                side.component(),
                args.rounds
            ));
            runtime.block_on(side.measure(&[1, MANY]))?;
            progress.done(2.5);
        }
        progress.stage(&format!(
            "{LOSS} over {LOSS_TOKENS} tokens, round {round} of {}",
            args.rounds
        ));
        runtime.block_on(loss.measure(&[1]))?;
        progress.done(1.0);
    }
    let pooled = loss.is_pooled()?;
    let mut calls: Vec<Calls> = sides.iter().flat_map(Side::calls).collect();
    calls.extend(loss.calls());
    let overhead = sides.iter().flat_map(Side::overhead).collect();
    // Their memory is wanted for what follows.
    drop((sides, loss));
    let (languages, absent) = languages(&wanted, &runtime, &mut progress)?;
    drop(runtime);
    let looping = match args.looping {
        0 => None,
        at_once => Some(looping::measure(at_once as usize, &mut progress)?),
    };
    progress.end();
    let report = Report {
        bench: "plugins",
        rounds: args.rounds,
        threads: HostOptions::default().threads,
        pooled,
        calls,
        overhead,
        loss_tokens: LOSS_TOKENS,
        languages,
        absent,
        failing,
        looping,
    };
    if args.json {
        say_json(&report)?;
    } else {
        say(&table::text(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A component inside this program.
fn embedded(name: &str) -> Result<&'static [u8]> {
    clawhost_plugins::embedded(name).with_context(|| format!("{name} is not in this program"))
}

/// A tenth of the calls first, so that memory that is kept for reuse is there.
async fn fail(calls: u32, progress: &mut Progress) -> Result<Failing> {
    let host = compiling::host(HostOptions::default())?;
    let none = Grants::default();
    let judge = host.load(NO_OP, embedded(NO_OP)?, &none, Profile::Deterministic)?;
    let what = format!("{calls} failing calls");
    progress.stage(&what);
    let calls = calls as usize;
    failing_calls(&judge, MANY, calls.div_ceil(10)).await?;
    let mut resident = Vec::from_iter(resident_bytes());
    let begun = std::time::Instant::now();
    let (mut made, mut slices) = (0, 0);
    while made < calls {
        let slice = calls.div_ceil(SLICES).min(calls - made);
        failing_calls(&judge, MANY, slice).await?;
        made += slice;
        slices += 1;
        if slices % (SLICES / LOOKS) == 0 {
            resident.extend(resident_bytes());
        }
        progress.done(slice as f64 / 15_000.0);
        progress.stage(&what);
    }
    let took = begun.elapsed().as_secs_f64().max(1e-9);
    Ok(Failing {
        calls: u32::try_from(calls).unwrap_or(u32::MAX),
        per_second: calls as f64 / took,
        resident_bytes: resident,
    })
}

/// The input for a component, made once.
async fn sample(plugin: &clawhost_plugins::Plugin) -> Result<Arc<Sample>> {
    let sample = Sample::of(plugin).await;
    Ok(Arc::new(sample.with_context(|| {
        format!("{} does not say what it needs", plugin.name())
    })?))
}
