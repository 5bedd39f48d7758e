//! `clawhost bench`: benchmarks of this machine, each figure with median and spread.
//!
//! The crates contain the measurements; this module selects the workloads and prints the figures. Measurements that
//! need a whole server (streaming over HTTP) are here.

mod figures;
mod model;
mod plugins;
mod serve;
mod shapes;
mod soak;
mod streaming;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use clawhost_engine::measure::Spread;
use clawhost_journal::Journal;
use clawhost_journal::bench::append_turns;
use clawhost_training::measure::{TrainWorkload, measure_updates};
use clawhost_training::{TrainableParameters, TrainingOptions};
use serde_json::json;

use self::figures::{Figure, Shared, number, resident};
use self::model::ModelFlags;
use crate::output::print_result;

/// Arguments of `clawhost bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost bench serve\n  clawhost bench plugins --json\n\n\
    Close other programs first; each figure is a median with the lowest and highest value."
)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Subcommand)]
enum Command {
    /// Decode and prefill tokens/s, time to first token, prefix cache gain, roofline; optionally compared with a peer
    Serve(serve::ServeArgs),
    /// Training tokens/s of a step, and peak memory
    #[command(
        after_help = "Examples:\n  clawhost bench train --json\n  clawhost bench train --parameters full --samples 4 --prompt-tokens 512 --reply-tokens 512"
    )]
    Train(TrainArgs),
    /// Cost of plugin calls: compared with a bare wasmtime loop, per language, and under failing and looping calls
    Plugins(plugins::PluginsArgs),
    /// A whole server under continuous streams with a new adapter every few seconds: errors, versions, memory, gaps
    Soak(soak::SoakArgs),
    /// Turns/s that the journal records
    #[command(after_help = "Example:\n  clawhost bench journal --json")]
    Journal(Shared),
}

/// Flags of `bench train`.
#[derive(Debug, Clone, Args)]
struct TrainArgs {
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    shared: Shared,
    /// Parameters to train
    #[arg(long, value_enum, default_value_t = TrainedParameters::Lora)]
    parameters: TrainedParameters,
    /// Samples per batch
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    samples: u32,
    /// Tokens per prompt
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt_tokens: u32,
    /// Tokens per reply (trained on)
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    reply_tokens: u32,
}

/// The trained parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum TrainedParameters {
    /// LoRA adapter of rank 16 on all linear layers
    Lora,
    /// All weights
    Full,
}

/// Runs the command.
pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode> {
    let (command, shared, figures) = match &args.command {
        Command::Serve(args) => ("serve", &args.shared, serve::serving(args)?),
        Command::Train(args) => ("train", &args.shared, training(args)?),
        Command::Plugins(args) => return plugins::run(args),
        Command::Soak(args) => return soak::run(args),
        Command::Journal(shared) => ("journal", shared, journal(shared)?),
    };
    let value = json!({"bench": command, "rounds": shared.rounds, "figures": figures});
    print_result(shared.json, &value, || {
        let width = figures.iter().map(|f| f.name.len()).max();
        let width = width.expect("every benchmark has a figure");
        let lines = figures.iter().map(|f| {
            format!(
                "{:width$}  {:>12} {}  (lowest {}, highest {})\n",
                f.name,
                number(f.spread.median),
                f.unit,
                number(f.spread.low),
                number(f.spread.high)
            )
        });
        lines.collect()
    })
}

fn journal(shared: &Shared) -> Result<Vec<Figure>> {
    const TURNS: u32 = 500;
    let dir = tempfile::tempdir().context("cannot create a temporary directory")?;
    let journal = Journal::open(dir.path())?;
    append_turns(&journal, TURNS)?;
    let mut rates = Vec::new();
    for _ in 0..shared.rounds {
        let seconds: f64 = append_turns(&journal, TURNS)?.iter().sum();
        rates.push(f64::from(TURNS) / seconds);
    }
    Ok(vec![Figure {
        name: "turns recorded (request and reply)".to_owned(),
        unit: "turns/s",
        spread: Spread::of(&rates),
    }])
}

fn training(args: &TrainArgs) -> Result<Vec<Figure>> {
    let (kind, parameters) = match args.parameters {
        TrainedParameters::Lora => ("LoRA update", TrainableParameters::Lora),
        TrainedParameters::Full => ("update of all parameters", TrainableParameters::Full),
    };
    let backend = args.model.backend(0, parameters)?;
    let load = TrainWorkload {
        rounds: args.shared.rounds as usize,
        samples: args.samples as usize,
        prompt_tokens: args.prompt_tokens as usize,
        reply_tokens: args.reply_tokens as usize,
        options: TrainingOptions {
            parameters,
            ..TrainingOptions::default()
        },
    };
    let before = resident("VmRSS:");
    let measured = measure_updates(&*backend, &load)?;
    let peak = resident("VmHWM:");
    let figure = |name: String, unit, spread| Figure { name, unit, spread };
    let tokens = args.prompt_tokens.saturating_add(args.reply_tokens);
    let mut figures = vec![
        figure(
            format!("{kind}, {} samples of {tokens} tokens", args.samples),
            "tokens/s",
            measured.tokens_per_second,
        ),
        figure(kind.to_owned(), "ms", measured.update_ms),
        figure(
            "scoring the reference".to_owned(),
            "ms",
            measured.reference_ms,
        ),
        figure("training step".to_owned(), "ms", measured.round_ms),
    ];
    for (name, mib) in [
        ("resident memory with the model loaded", before),
        ("peak resident memory", peak),
    ] {
        figures.extend(mib.map(|mib| figure(name.to_owned(), "MiB", Spread::of(&[mib]))));
    }
    Ok(figures)
}
