//! `clawhost bench`: what this machine does, each figure with its median and spread.
//!
//! Each room measures itself; here the loads are chosen and the figures printed. What only a whole server
//! has (streams over HTTP) is measured here too.

mod plugins;
mod serve;
mod soak;
mod streaming;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use clawhost_journal::Journal;
use clawhost_journal::measure::append_turns;
use clawhost_policy::measure::Spread;
use clawhost_policy::{Model, ModelFiles};
use clawhost_training::measure::{TrainLoad, updates};
use clawhost_training::{Parameters, TrainingOptions};
use serde_json::{Value, json};

use crate::output::{say, say_json};

/// Arguments of `clawhost bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost bench serve\n  clawhost bench plugins --json\n\n\
    Close other programs first; each figure is a median with the lowest and highest beside it."
)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Clone, Subcommand)]
enum What {
    /// Tokens/s of decoding and of prompts, time to first token, what a second turn saves, the roofline, beside a peer
    Serve(serve::ServeArgs),
    /// Training tokens/s of a step, and the most memory that the process took
    #[command(
        after_help = "Examples:\n  clawhost bench train --json\n  clawhost bench train --parameters full --samples 4 --prompt-tokens 512 --reply-tokens 512"
    )]
    Train(TrainArgs),
    /// What plugin calls cost: beside a bare wasmtime loop, in each language, under failing and looping calls
    Plugins(plugins::PluginsArgs),
    /// A whole server under streams that never pause, with a new adapter every few seconds: errors, versions, memory, gaps
    Soak(soak::SoakArgs),
    /// Turns/s that the journal takes in
    #[command(after_help = "Example:\n  clawhost bench journal --json")]
    Journal(Shared),
}

/// Flags of every measurement.
#[derive(Debug, Clone, Args)]
struct Shared {
    /// Model directory instead of the policy inside this program
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Repetitions that count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Flags of `bench train`.
#[derive(Debug, Clone, Args)]
struct TrainArgs {
    #[command(flatten)]
    shared: Shared,
    /// What an update changes
    #[arg(long, value_enum, default_value_t = Trained::Lora)]
    parameters: Trained,
    /// Samples in the batch
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    samples: u32,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt_tokens: u32,
    /// Tokens of each reply; these train
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    reply_tokens: u32,
}

/// What an update changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Trained {
    /// An adapter of rank 16 on all linear layers
    Lora,
    /// Every weight
    Full,
}

/// One figure of a table.
struct Figure {
    name: String,
    unit: &'static str,
    spread: Spread,
}

/// Runs the command.
pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode> {
    let (what, shared, figures) = match &args.what {
        What::Serve(args) => ("serve", &args.shared, serve::serving(args)?),
        What::Train(args) => ("train", &args.shared, training(args)?),
        What::Plugins(args) => return plugins::run(args),
        What::Soak(args) => return soak::run(args),
        What::Journal(shared) => ("journal", shared, journal(shared)?),
    };
    if shared.json {
        let rows: Vec<Value> = figures
            .iter()
            .map(|f| json!({"name": f.name, "unit": f.unit, "median": f.spread.median, "low": f.spread.low, "high": f.spread.high}))
            .collect();
        say_json(&json!({"bench": what, "rounds": shared.rounds, "figures": rows}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = figures.iter().map(|f| f.name.len()).max().unwrap_or(0);
    for f in &figures {
        say(&format!(
            "{:width$}  {:>12} {}  (lowest {}, highest {})",
            f.name,
            number(f.spread.median),
            f.unit,
            number(f.spread.low),
            number(f.spread.high)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

fn counted(streams: usize) -> String {
    format!("{streams} stream{}", if streams == 1 { "" } else { "s" })
}

fn files(shared: &Shared) -> Result<ModelFiles> {
    Ok(match &shared.model {
        Some(dir) => ModelFiles::dir(dir)?,
        None => ModelFiles::embedded(),
    })
}

fn journal(shared: &Shared) -> Result<Vec<Figure>> {
    const TURNS: u32 = 500;
    let dir = std::env::temp_dir().join(format!("clawhost-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let measured = || -> Result<Vec<f64>> {
        let journal = Journal::open(&dir)?;
        append_turns(&journal, TURNS)?;
        let mut rates = Vec::new();
        for _ in 0..shared.rounds {
            let seconds: f64 = append_turns(&journal, TURNS)?.iter().sum();
            rates.push(f64::from(TURNS) / seconds);
        }
        Ok(rates)
    };
    let rates = measured();
    std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    Ok(vec![Figure {
        name: "turns recorded (arrival and reply)".to_owned(),
        unit: "turns/s",
        spread: Spread::of(&rates?),
    }])
}

fn training(args: &TrainArgs) -> Result<Vec<Figure>> {
    let model = Model::load(&files(&args.shared)?)?;
    let (kind, parameters) = match args.parameters {
        Trained::Lora => ("LoRA update", Parameters::Lora),
        Trained::Full => ("update of all parameters", Parameters::Full),
    };
    let load = TrainLoad {
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
    let measured = updates(&model, &load)?;
    let most = resident("VmHWM:");
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
        figure("whole step".to_owned(), "ms", measured.round_ms),
    ];
    for (name, mib) in [
        ("memory of the process with the model loaded", before),
        ("most memory of the process", most),
    ] {
        figures.extend(mib.map(|mib| figure(name.to_owned(), "MiB", Spread::of(&[mib]))));
    }
    Ok(figures)
}

/// A line of what the system tells about this process, in MiB; none where it does not.
fn resident(line: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let told = status.lines().find_map(|one| one.strip_prefix(line))?;
    let kib: f64 = told.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}
