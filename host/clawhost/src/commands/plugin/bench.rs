//! `clawhost plugin bench`: cost of one component's calls on this machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_config::component_name;
use clawhost_plugins::measure::{self, CallLatencies, Callers, Sample};
use clawhost_plugins::{Grants, Kind, Profile};
use serde::Serialize;

use super::load::ReadingFlags;
use crate::compiling;
use crate::granting;
use crate::output::{print, print_json};
use crate::plugin_file::PluginFiles;

/// Arguments of `clawhost plugin bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost plugin bench judge.wasm --concurrency 1 --concurrency 256 --json\n\n\
    Every call runs in a fresh instance, with all limits and checks, on a conversation of 2 KB; a loss on a\n\
    microbatch of 65,536 tokens, an environment from reset to close. Capabilities are not granted,\n\
    because waiting for a model or the network is not the plugin's cost. Queueing counts in p50 and p99, not in run."
)]
pub(crate) struct BenchArgs {
    /// Component file, or oci://REGISTRY/NAME@sha256:DIGEST
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    configuration: ReadingFlags,
    /// Calls per measurement
    #[arg(long, value_name = "N", default_value_t = 2000)]
    calls: usize,
    /// Concurrent calls; can be repeated, each value is measurement
    #[arg(long, value_name = "N", default_values_t = [1])]
    concurrency: Vec<usize>,
    /// Use the fast profile (epoch ticks and clocks) instead of fuel
    #[arg(long)]
    fast: bool,
    /// Call from the threads that run the plugin, as judgements do, instead of handing over each call
    #[arg(long)]
    on_plugin_threads: bool,
    /// Print one JSON object per measurement and line
    #[arg(long)]
    json: bool,
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Measurement<'a> {
    plugin: &'a str,
    sha256: &'a str,
    kind: Kind,
    profile: Profile,
    load_ms: f64,
    #[serde(flatten)]
    latencies: CallLatencies,
}

/// Runs the command.
pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode> {
    ensure!(args.calls > 0, "--calls must be at least 1");
    ensure!(
        args.concurrency.iter().all(|n| (1..=4096).contains(n)),
        "--concurrency must be between 1 and 4096"
    );
    let config = args.configuration.load()?;
    let bytes = PluginFiles::new(&config).read(&args.file)?;
    let host = compiling::host(config.plugins.host.into())?;
    let profile = if args.fast {
        Profile::Fast
    } else {
        Profile::Deterministic
    };
    let started = Instant::now();
    let plugin = host
        .load(
            &component_name(&args.file),
            &bytes,
            &Grants::default(),
            profile,
        )
        .map_err(granting::benchmark_error)
        .with_context(|| format!("cannot measure {}", args.file.display()))?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    let runtime = tokio::runtime::Runtime::new()?;
    let sample = runtime.block_on(Sample::for_plugin(&plugin));
    let sample = Arc::new(sample.context("the loss does not declare its inputs")?);
    if !args.json {
        print(&format!(
            "{} {}, {profile}, loaded in {load_ms:.1} ms\n\n{:>11} {:>11} {:>11} {:>11} {:>11} {:>12} {:>12} {:>7}",
            plugin.kind(),
            plugin.name(),
            "concurrency",
            "run p50 µs",
            "run p99 µs",
            "p50 µs",
            "p99 µs",
            "calls/s",
            "peak bytes",
            "failed"
        ))?;
    }
    let callers = match args.on_plugin_threads {
        true => Callers::OnPluginThreads,
        false => Callers::OtherThreads,
    };
    for &concurrency in &args.concurrency {
        let measurement = Measurement {
            plugin: plugin.name(),
            sha256: plugin.digest(),
            kind: plugin.kind(),
            profile,
            load_ms,
            latencies: runtime.block_on(measure::measure_calls(
                &plugin,
                &sample,
                callers,
                concurrency,
                args.calls,
            )),
        };
        if args.json {
            print_json(&measurement)?;
        } else {
            let latencies = &measurement.latencies;
            print(&format!(
                "{:>11} {:>11.1} {:>11.1} {:>11.1} {:>11.1} {:>12.0} {:>12} {:>7}",
                latencies.concurrency,
                latencies.run_p50_us,
                latencies.run_p99_us,
                latencies.p50_us,
                latencies.p99_us,
                latencies.per_second,
                latencies.peak_bytes,
                latencies.failed
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
