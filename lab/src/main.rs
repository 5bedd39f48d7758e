//! Pretrains a checkpoint from a recipe.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use clawhost_lab::corpus::Recipe;
use clawhost_lab::train_checkpoint;

/// Pretrain a checkpoint from a recipe, and write it with a model card.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example:\n  cargo run --release --manifest-path lab/Cargo.toml -- embedded --out ./my-policy\n  \
    clawhost run --model ./my-policy\n\nTakes about an hour on two cores. The same recipe and seed give the same checkpoint."
)]
struct Arguments {
    /// Recipe file (TOML), or `embedded` for the recipe of the embedded model
    recipe: String,
    /// Output directory; created if missing, must be empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Threads; 0 = all. Does not affect the result
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print the measurements as one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let args = Arguments::parse();
    let recipe = match args.recipe.as_str() {
        "embedded" => Recipe::embedded()?,
        path => Recipe::load(path.as_ref())?,
    };
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot create directory {}", args.out.display()))?;
    let is_not_empty = std::fs::read_dir(&args.out)?.next().is_some();
    anyhow::ensure!(
        !is_not_empty,
        "{} is not empty; pass a new directory with --out",
        args.out.display()
    );
    let live = std::io::stderr().is_terminal();
    let card = train_checkpoint(&recipe, &args.out, args.threads, |p| {
        let milestone = p.held_out.is_some() || p.step == 1;
        if live || milestone || p.step.is_multiple_of(50) {
            let left = p.left.as_secs();
            let held_out = p
                .held_out
                .map(|l| format!(" · held-out {l:.4}"))
                .unwrap_or_default();
            let line = format!(
                "step {}/{} · loss {:.4}{held_out} · {:.0} tokens/s · {}:{:02} left",
                p.step,
                p.steps,
                p.loss,
                p.tokens_per_second,
                left / 60,
                left % 60
            );
            let mut err = std::io::stderr().lock();
            // Progress output is best effort: a closed terminal must not end an hour of training.
            let _ = if live && !milestone {
                write!(err, "\r\x1b[2K{line}").and_then(|()| err.flush())
            } else if live {
                writeln!(err, "\r\x1b[2K{line}")
            } else {
                writeln!(err, "{line}")
            };
        }
        ControlFlow::Continue(())
    })?;
    let text = if args.json {
        serde_json::to_string(&card)?
    } else {
        format!(
            "{}\nWritten to {}; serve it with `clawhost run --model {1}`",
            card.to_markdown(),
            args.out.display()
        )
    };
    writeln!(std::io::stdout(), "{text}").context("cannot print the model card")
}
