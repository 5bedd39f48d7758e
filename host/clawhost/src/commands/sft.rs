//! `clawhost sft`: an adapter from recorded conversations.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clawhost_journal::now_ms;
use clawhost_policy::{Adapter, Engine, EngineOptions, Learned, LoraSpec, ModelFiles};
use clawhost_training::sft::{ChatError, ChatExample, ChatFormat, SftOptions, SftProgress, tune};
use serde_json::{Value, json};

use super::export::merged;
use crate::output::{say, say_json};
use crate::placing::Place;

/// Arguments of `clawhost sft`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost sft --data chats.jsonl --out ./my-adapter\n  \
    clawhost sft --data chats.jsonl --model ./Qwen3-0.6B --epochs 3 --holdout 0.1 --out ./my-adapter\n  \
    clawhost run --model ./Qwen3-0.6B --adapter ./my-adapter\n\n\
    A line is one conversation: {\"messages\": [{\"role\": \"user\", \"content\": \"…\"}, {\"role\": \"assistant\", \"content\": \"…\"}], \
    \"tools\": […]}. The assistant's messages train, its tool calls too; an assistant message with \"weight\": 0 is read only. \
    Prompts are written with the model's chat template, as the server writes them."
)]
pub(crate) struct SftArgs {
    /// Conversations, one JSON object a line
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Directory for what is learned; must not be there yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Model directory [default: the embedded policy]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// PEFT adapter to go on from [default: a new one]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["rank", "alpha", "full"])]
    adapter: Option<PathBuf>,
    /// Train all weights and write a whole model instead of an adapter
    #[arg(long, conflicts_with_all = ["rank", "alpha"])]
    full: bool,
    /// Times that the conversations are gone through
    #[arg(long, default_value_t = 1)]
    epochs: usize,
    /// Conversations in one update
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Peak learning rate; it falls to 0 at the end [default: 1e-4, with --full 1e-5; thirteen times that for the
    /// embedded policy]
    #[arg(long, value_name = "RATE")]
    lr: Option<f64>,
    /// Updates over which the rate rises
    #[arg(long, value_name = "N", default_value_t = 0)]
    warmup: u64,
    /// Inner width of a new adapter [default: 16]
    #[arg(long)]
    rank: Option<usize>,
    /// Scale numerator of a new adapter [default: twice the rank]
    #[arg(long)]
    alpha: Option<f32>,
    /// Share of the conversations that is kept out of training to measure on, 0 to 0.5
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    holdout: f64,
    /// Leave out conversations that are longer than the context, instead of stopping at the first
    #[arg(long)]
    skip_long: bool,
    /// Tokens in one forward and backward pass; memory grows with it
    #[arg(long, value_name = "TOKENS", default_value_t = 4096)]
    pass_tokens: usize,
    /// Decides the order, what is held out, and where a new adapter begins
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print what came of it as one JSON object
    #[arg(long)]
    json: bool,
}

/// The conversations of a file as tokens.
#[derive(Debug, Default)]
struct Lines {
    train: Vec<ChatExample>,
    held_out: Vec<ChatExample>,
    /// Conversations in each.
    counts: (usize, usize),
    skipped: usize,
    digest: String,
}

/// Runs the command.
pub(crate) fn sft(args: &SftArgs) -> Result<ExitCode> {
    ensure!(
        (0.0..=0.5).contains(&args.holdout),
        "--holdout {} must be between 0 and 0.5",
        args.holdout
    );
    let place = Place::begin(&args.out)?;
    let options = options(args);
    options.validate()?;
    let files = match &args.model {
        Some(dir) => ModelFiles::dir(dir)?,
        None => ModelFiles::embedded(),
    };
    let engine = Engine::load(&files, EngineOptions::default())?;
    let lines = read(args, &ChatFormat::of(&engine))?;
    let learned = beginning(args, &engine)?;
    let base = Arc::clone(engine.model());
    let started = learned.digest();
    let tuned = tune(
        &base,
        learned,
        &lines.train,
        &lines.held_out,
        &options,
        |progress| {
            show(progress);
            ControlFlow::Continue(())
        },
    )?;
    engine.shutdown();
    match &tuned.learned {
        Learned::Lora(adapter) => {
            adapter.save_peft(place.path(), &format!("sha256:{}", base.digest()))?;
        }
        Learned::Full(model) => merged::write(model, &files, place.path())?,
    }
    let result = json!({
        "base": files.name(),
        "base_digest": base.digest(),
        "began_with": started,
        "digest": tuned.learned.digest(),
        "change_norm": finite(tuned.learned.delta_norm(&beginning(args, &engine)?)),
        "data": {
            "file": args.data.file_name().unwrap_or_default().to_string_lossy(),
            "sha256": lines.digest,
            "conversations": lines.counts.0,
            "held_out": lines.counts.1,
            "skipped": lines.skipped,
            "sequences": lines.train.len(),
        },
        "updates": tuned.steps,
        "tokens": tuned.tokens.0,
        "trained_tokens": tuned.tokens.1,
        "loss_first": finite(tuned.losses.0),
        "loss_last": finite(tuned.losses.1),
        "held_out_before": tuned.held_out_before,
        "held_out_after": tuned.held_out,
        "seconds": tuned.time.as_secs_f64(),
    });
    place.finish(json!({
        "supervised": result,
        "configuration": options,
        "program": concat!("clawhost ", env!("CARGO_PKG_VERSION")),
        "created_ms": now_ms(),
    }))?;
    if args.json {
        say_json(&result)?;
    } else {
        say(&told(args, &result))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn options(args: &SftArgs) -> SftOptions {
    let mut options = SftOptions {
        epochs: args.epochs,
        batch: args.batch,
        pass_tokens: args.pass_tokens,
        seed: args.seed,
        ..SftOptions::default()
    };
    let suits = if args.full { 1e-5 } else { 1e-4 };
    // The embedded policy is a thousand times smaller than what the general rates are made for.
    let suits = if args.model.is_none() {
        13.0 * suits
    } else {
        suits
    };
    options.optimizer.learning_rate = args.lr.unwrap_or(suits);
    options.optimizer.warmup = args.warmup;
    options
}

/// What training starts from.
fn beginning(args: &SftArgs, engine: &Engine) -> Result<Learned> {
    let model = engine.model();
    if args.full {
        return Ok(Learned::Full(Arc::clone(model)));
    }
    if let Some(dir) = &args.adapter {
        let adapter = Adapter::load_peft(dir, model.config())
            .with_context(|| format!("--adapter {} cannot be used", dir.display()))?;
        return Ok(Learned::Lora(Arc::new(adapter)));
    }
    let rank = args.rank.unwrap_or(16);
    ensure!(
        (1..=1024).contains(&rank),
        "--rank {rank} must be 1 to 1024"
    );
    let alpha = args.alpha.unwrap_or(rank as f32 * 2.0);
    ensure!(
        alpha > 0.0 && alpha.is_finite(),
        "--alpha {alpha} must be more than 0"
    );
    let spec = LoraSpec {
        rank,
        alpha,
        ..LoraSpec::default()
    };
    let adapter = Adapter::init(model.config(), spec, args.seed);
    Ok(Learned::Lora(Arc::new(adapter)))
}

/// Reads the file; a line that cannot be used is named.
fn read(args: &SftArgs, format: &ChatFormat<'_>) -> Result<Lines> {
    let path = args.data.display();
    let bytes = std::fs::read(&args.data).with_context(|| format!("cannot read {path}"))?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| {
            let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            anyhow::anyhow!("{path}, line {line}: it is not valid UTF-8")
        })?
        .trim_start_matches('\u{feff}');
    let mut lines = Lines {
        digest: clawhost_plugins::digest(&bytes),
        ..Lines::default()
    };
    for (number, line) in (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let conversation: Value = serde_json::from_str(line)
            .with_context(|| format!("{path}, line {number}: it is no JSON"))?;
        let examples = match format.examples(&conversation) {
            Ok(examples) => examples,
            Err(ChatError::TooLong { .. }) if args.skip_long => {
                lines.skipped += 1;
                continue;
            }
            Err(error @ ChatError::TooLong { .. }) => {
                bail!(
                    "{path}, line {number}: {error}; shorten it, or leave such lines out with --skip-long"
                )
            }
            Err(error) => bail!("{path}, line {number}: {error}"),
        };
        if held_out(number, args) {
            lines.counts.1 += 1;
            lines.held_out.extend(examples);
        } else {
            lines.counts.0 += 1;
            lines.train.extend(examples);
        }
    }
    ensure!(
        !lines.train.is_empty(),
        "{path} has no conversation to train on"
    );
    Ok(lines)
}

/// Whether a line is kept out: decided by its number and the seed alone, so that a file that grows keeps what it held out.
fn held_out(number: u64, args: &SftArgs) -> bool {
    let mut mixed = number ^ args.seed.rotate_left(32);
    // SplitMix64 (Steele, Lea, Flood 2014).
    mixed = mixed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^= mixed >> 31;
    (mixed >> 11) as f64 / (1_u64 << 53) as f64 <= args.holdout && args.holdout > 0.0
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// One line on a terminal; elsewhere one at the end of each epoch, and every fifty updates.
fn show(progress: &SftProgress) {
    let live = std::io::stderr().is_terminal();
    let milestone = progress.held_out.is_some() || progress.step == progress.steps;
    if !live && !milestone && !progress.step.is_multiple_of(50) {
        return;
    }
    let left = progress.left.as_secs();
    let held_out = progress
        .held_out
        .map(|loss| format!(" · held-out {loss:.4}"))
        .unwrap_or_default();
    let line = format!(
        "epoch {} · update {}/{} · loss {:.4}{held_out} · {:.0} tokens/s · {}:{:02} left",
        progress.epoch,
        progress.step,
        progress.steps,
        progress.loss,
        progress.tokens_per_second,
        left / 60,
        left % 60
    );
    let mut err = std::io::stderr().lock();
    // A courtesy: a closed terminal must not end the work.
    let _ = match (live, milestone) {
        (true, false) => write!(err, "\r\x1b[2K{line}").and_then(|()| err.flush()),
        (true, true) => writeln!(err, "\r\x1b[2K{line}"),
        (false, _) => writeln!(err, "{line}"),
    };
}

fn told(args: &SftArgs, result: &Value) -> String {
    let number = |key: &str| result.get(key).and_then(Value::as_f64);
    let mut text = format!(
        "{} updates on {} conversations, loss {:.4}",
        number("updates").unwrap_or(0.0),
        result
            .pointer("/data/conversations")
            .and_then(Value::as_u64)
            .unwrap_or(0),
        number("loss_last").unwrap_or(f64::NAN),
    );
    if let (Some(before), Some(after)) = (number("held_out_before"), number("held_out_after")) {
        text.push_str(&format!(
            ", held-out {before:.4} before and {after:.4} after"
        ));
    }
    let model = args
        .model
        .as_deref()
        .map(|dir: &Path| format!(" --model {}", dir.display()))
        .unwrap_or_default();
    let serve = if args.full {
        format!("clawhost run --model {}", args.out.display())
    } else {
        format!("clawhost run{model} --adapter {}", args.out.display())
    };
    text.push_str(&format!(
        "\nWritten to {}. Serve it: {serve}",
        args.out.display()
    ));
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SftArgs,
    }

    fn args(dir: &Path, more: &[&str]) -> SftArgs {
        let data = dir.join("chats.jsonl");
        let out = dir.join("out");
        let words = ["sft", "--data"].map(str::to_owned).into_iter();
        let words = words
            .chain([
                data.display().to_string(),
                "--out".to_owned(),
                out.display().to_string(),
            ])
            .chain(more.iter().map(|word| (*word).to_owned()));
        Line::parse_from(words).args
    }

    fn chats(count: usize) -> String {
        (0..count)
            .map(|n| {
                let talk = json!({"messages": [
                    {"role": "user", "content": format!("Tell me about {n}.")},
                    {"role": "assistant", "content": format!("So {n}, and that is all!")},
                ]});
                format!("{talk}\n")
            })
            .collect()
    }

    #[test]
    fn an_adapter_is_written_that_loads_and_says_where_it_came_from() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("chats.jsonl"),
            format!("\u{feff}{}\n", chats(40)),
        )
        .unwrap();
        let args = args(
            dir.path(),
            &[
                "--holdout",
                "0.25",
                "--epochs",
                "2",
                "--batch",
                "8",
                "--rank",
                "4",
                "--json",
            ],
        );
        sft(&args).unwrap();
        let base = clawhost_policy::Model::load(&ModelFiles::embedded()).unwrap();
        let learned = Learned::load(&args.out, &base).unwrap();
        let text = std::fs::read_to_string(args.out.join("provenance.json")).unwrap();
        let provenance: Value = serde_json::from_str(&text).unwrap();
        let made = &provenance["supervised"];
        assert_eq!(made["digest"], learned.digest());
        assert_eq!(made["base_digest"], base.digest());
        assert!(
            made["held_out_after"].as_f64() < made["held_out_before"].as_f64(),
            "{made}"
        );
        let data = &made["data"];
        let (train, held) = (data["conversations"].as_u64(), data["held_out"].as_u64());
        assert_eq!(train.unwrap() + held.unwrap(), 40);
        assert!((4..=18).contains(&held.unwrap()), "{data}");
        assert!(provenance["files"]["adapter_model.safetensors"].is_string());
        let error = sft(&args).unwrap_err().to_string();
        assert!(error.contains("is there already"), "{error}");
    }

    #[test]
    fn a_bad_line_is_named_with_its_number_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("chats.jsonl");
        let whole = chats(2);
        let long = json!({"messages": [
            {"role": "user", "content": "one ".repeat(40_000)},
            {"role": "assistant", "content": "x"},
        ]});
        for (content, part) in [
            (format!("{whole}not json\n"), "line 3: it is no JSON"),
            (
                format!("{whole}\n{{\"messages\": []}}\n"),
                "line 4: `messages` must be",
            ),
            (format!("{whole}{long}\n"), "line 3: "),
            ("\n\n".to_owned(), "no conversation to train on"),
        ] {
            std::fs::write(&file, content).unwrap();
            let error = format!("{:#}", sft(&args(dir.path(), &[])).unwrap_err());
            assert!(error.contains(part), "{error}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        std::fs::write(&file, b"{}\n\xff\n").unwrap();
        let error = sft(&args(dir.path(), &[])).unwrap_err().to_string();
        assert!(error.contains("line 2: it is not valid UTF-8"), "{error}");
        std::fs::write(&file, format!("{whole}{long}\n")).unwrap();
        let error = sft(&args(dir.path(), &[])).unwrap_err().to_string();
        assert!(error.contains("--skip-long"), "{error}");
    }
}
