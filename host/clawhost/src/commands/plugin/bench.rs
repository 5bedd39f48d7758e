//! `clawhost plugin bench`: what calls of one component cost on this machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_plugins::measure::{self, Sample, Spread};
use clawhost_plugins::{Grants, HostOptions, Kind, Profile};
use serde::Serialize;

use crate::compiling;
use crate::granting;
use crate::output::{say, say_json};
use crate::serve::{plugin_name, read_plugin};

/// Arguments of `clawhost plugin bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost plugin bench judge.wasm --concurrency 1 --concurrency 256 --json\n\n\
    Every call runs in a fresh instance, with all limits and checks, on a conversation of 2 KB; a loss on a\n\
    microbatch of 65,536 tokens, an environment from reset to close. What a plugin could reach is not granted here,\n\
    because waiting for a model or the network is not its cost. Waiting for others counts in p50 and p99, not in run."
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

/// One measurement.
#[derive(Debug, Serialize)]
struct Measured<'a> {
    plugin: &'a str,
    sha256: &'a str,
    kind: Kind,
    profile: Profile,
    load_ms: f64,
    #[serde(flatten)]
    spread: Spread,
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
    let host = compiling::host(HostOptions::default())?;
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
        .map_err(granting::withheld)
        .with_context(|| format!("{} cannot be measured", args.file.display()))?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    let runtime = tokio::runtime::Runtime::new()?;
    let sample = runtime.block_on(Sample::of(&plugin));
    let sample = Arc::new(sample.context("the loss does not say what it needs")?);
    if !args.json {
        say(&format!(
            "{} {}, {profile}, loaded in {load_ms:.1} ms\n\n{:>11} {:>11} {:>11} {:>11} {:>11} {:>12} {:>12} {:>7}",
            plugin.kind(),
            plugin.name(),
            "at a time",
            "run p50 µs",
            "run p99 µs",
            "p50 µs",
            "p99 µs",
            "calls/s",
            "peak bytes",
            "failed"
        ))?;
    }
    for &concurrency in &args.concurrency {
        let measured = Measured {
            plugin: plugin.name(),
            sha256: plugin.digest(),
            kind: plugin.kind(),
            profile,
            load_ms,
            spread: runtime.block_on(measure::calls(&plugin, &sample, concurrency, args.calls)),
        };
        if args.json {
            say_json(&measured)?;
        } else {
            let spread = &measured.spread;
            say(&format!(
                "{:>11} {:>11.1} {:>11.1} {:>11.1} {:>11.1} {:>12.0} {:>12} {:>7}",
                spread.concurrency,
                spread.run_p50_us,
                spread.run_p99_us,
                spread.p50_us,
                spread.p99_us,
                spread.per_second,
                spread.peak_bytes,
                spread.failed
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
