//! `clawhost sft`: supervised fine-tuning on recorded conversations.

mod dataset;
mod report;

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_config::{DeviceChoice, Dtype, TrainableParameters};
use clawhost_engine::{Engine, EngineOptions};
use clawhost_journal::now_ms;
use clawhost_model::{Adapter, LoraSpec, Quantization, TrainedWeights};
use clawhost_training::sft::{ChatFormat, SftOptions, fine_tune};
use serde_json::json;

use self::dataset::Source;
use self::report::{DataReport, SftReport, finite, show_progress};
use super::export::merged;
use super::renamed;
use crate::device;
use crate::output::print_result;
use crate::serve::model_files;
use crate::staging::StagingDir;

/// Arguments of `clawhost sft`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost sft --data chats.jsonl --out ./my-adapter\n  \
    clawhost sft --data chats.jsonl --model ./Qwen3-0.6B --epochs 3 --holdout 0.1 --out ./my-adapter\n  \
    clawhost run --model ./Qwen3-0.6B --adapter ./my-adapter\n\n\
    Each line is one conversation: {\"messages\": [{\"role\": \"user\", \"content\": \"…\"}, {\"role\": \"assistant\", \"content\": \"…\"}], \
    \"tools\": […]}. Assistant messages and tool calls are trained on, except those with \"weight\": 0. \
    Prompts are rendered with the model's chat template, as in serving."
)]
pub(crate) struct SftArgs {
    /// Conversations, one JSON object per line
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Output directory; must not exist yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Model directory or GGUF file [default: the embedded model]
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// PEFT adapter to continue from [default: a new one]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["rank", "alpha", "full"])]
    adapter: Option<PathBuf>,
    /// Train all weights and write a valid model instead of an adapter
    #[arg(long, conflicts_with_all = ["rank", "alpha"])]
    full: bool,
    /// Passes over the conversations
    #[arg(long, default_value_t = 1)]
    epochs: usize,
    /// Conversations per update
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Peak learning rate, decayed to 0 [default: 1e-4, with --full 1e-5; thirteen times that for the embedded model]
    #[arg(long, value_name = "RATE")]
    lr: Option<f64>,
    /// Updates of linear learning rate warmup
    #[arg(long, value_name = "N", default_value_t = 0)]
    warmup: u64,
    /// LoRA rank of a new adapter [default: 16]
    #[arg(long)]
    rank: Option<usize>,
    /// LoRA alpha of a new adapter [default: twice the rank]
    #[arg(long)]
    alpha: Option<f32>,
    /// Share of the conversations held out for evaluation, 0 to 0.5
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    holdout: f64,
    /// Skip conversations longer than the context instead of stopping at the first one
    #[arg(long)]
    skip_long: bool,
    /// Tokens per forward and backward pass; memory grows with it
    #[arg(long, value_name = "TOKENS", default_value_t = 4096)]
    micro_batch_tokens: usize,
    #[arg(long = "pass-tokens", hide = true, value_parser = renamed("--micro-batch-tokens TOKENS"))]
    _pass_tokens: Option<Infallible>,
    /// Device that runs the model: auto, cpu, cuda:N, or several GPUs as in cuda:0,1
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
    /// Format of the base model's linear weights, as engine.quantization: none, int8 or int4
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "none",
        conflicts_with = "full"
    )]
    quantization: Quantization,
    /// Seed of the order, the held-out split and the initialisation of a new adapter
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn sft(args: &SftArgs) -> Result<ExitCode> {
    ensure!(
        (0.0..=0.5).contains(&args.holdout),
        "--holdout {} must be between 0 and 0.5",
        args.holdout
    );
    let staging = StagingDir::create(&args.out)?;
    let options = options(args);
    options.validate()?;
    let files = model_files(args.model.as_deref())?;
    let engine_options = EngineOptions {
        quantization: args.quantization,
        ..EngineOptions::default()
    };
    let configured = (Dtype::Auto, args.quantization, TrainableParameters::Lora);
    let device = device::choose(args.device, Dtype::Auto)?.for_checkpoint(&files, configured);
    let engine = device.start(&files, engine_options)?;
    engine.model().wait_for_digest()?;
    let source = Source {
        path: &args.data,
        skip_long: args.skip_long,
        holdout: args.holdout,
        seed: args.seed,
    };
    let dataset = dataset::read(&source, &ChatFormat::from_engine(&engine))?;
    let initial = initial_weights(args, &engine)?;
    let base = Arc::clone(engine.model());
    let initial_digest = initial.digest();
    let tuned = fine_tune(
        &**engine.backend(),
        &initial,
        &dataset.train,
        &dataset.held_out,
        &options,
        |progress| {
            show_progress(progress);
            ControlFlow::Continue(())
        },
    )?;
    engine.shutdown();
    match &tuned.weights {
        TrainedWeights::Lora(adapter) => {
            adapter.save_peft(staging.path(), &format!("sha256:{}", base.digest()))?;
        }
        TrainedWeights::Full(model) => merged::write(model, &files, staging.path())?,
    }
    let result = SftReport {
        base: files.name(),
        base_digest: base.digest(),
        began_with: initial_digest,
        digest: tuned.weights.digest(),
        change_norm: finite(tuned.weights.delta_norm(&initial)),
        data: DataReport {
            file: args
                .data
                .file_name()
                .expect("a file that was read has a name")
                .to_string_lossy(),
            sha256: &dataset.digest,
            conversations: dataset.counts.0,
            held_out: dataset.counts.1,
            skipped: dataset.skipped,
            sequences: dataset.train.len(),
        },
        updates: tuned.steps,
        tokens: tuned.tokens.0,
        trained_tokens: tuned.tokens.1,
        loss_first: finite(tuned.losses.0),
        loss_last: finite(tuned.losses.1),
        held_out_before: tuned.held_out_before,
        held_out_after: tuned.held_out,
        seconds: tuned.time.as_secs_f64(),
    };
    staging.finish(json!({
        "supervised": result,
        "configuration": options,
        "program": concat!("clawhost ", env!("CARGO_PKG_VERSION")),
        "created_ms": now_ms(),
    }))?;
    print_result(args.json, &result, || {
        result.summary(args.model.as_deref(), args.full, &args.out)
    })
}

fn options(args: &SftArgs) -> SftOptions {
    let mut options = SftOptions {
        num_epochs: args.epochs,
        batch_size: args.batch,
        micro_batch_tokens: args.micro_batch_tokens,
        seed: args.seed,
        ..SftOptions::default()
    };
    let default_rate = if args.full { 1e-5 } else { 1e-4 };
    // The embedded model is a thousand times smaller than the models that the general rates are chosen for.
    let default_rate = if args.model.is_none() {
        13.0 * default_rate
    } else {
        default_rate
    };
    options.optimizer.learning_rate = args.lr.unwrap_or(default_rate);
    options.optimizer.warmup_steps = args.warmup;
    options
}

/// The initial weights.
fn initial_weights(args: &SftArgs, engine: &Engine) -> Result<TrainedWeights> {
    let model = engine.model();
    if args.full {
        return Ok(TrainedWeights::Full(model.in_memory()?));
    }
    if let Some(dir) = &args.adapter {
        let adapter = Adapter::load_peft(dir, model.config())
            .with_context(|| format!("cannot load --adapter {}", dir.display()))?;
        return Ok(TrainedWeights::Lora(Arc::new(adapter)));
    }
    let rank = args.rank.unwrap_or(16);
    ensure!(
        (1..=1024).contains(&rank),
        "--rank {rank} must be between 1 and 1024"
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
    Ok(TrainedWeights::Lora(Arc::new(adapter)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;
    use clawhost_model::ModelFiles;
    use serde_json::Value;

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
    fn sft_writes_a_loadable_adapter_with_provenance() {
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
        let base = clawhost_model::Model::load(&ModelFiles::embedded()).unwrap();
        let weights = TrainedWeights::load(&args.out, &base).unwrap();
        let text = std::fs::read_to_string(args.out.join("provenance.json")).unwrap();
        let provenance: Value = serde_json::from_str(&text).unwrap();
        let result = &provenance["supervised"];
        assert_eq!(result["digest"], weights.digest());
        assert_eq!(result["base_digest"], base.digest());
        assert!(
            result["held_out_after"].as_f64() < result["held_out_before"].as_f64(),
            "{result}"
        );
        let data = &result["data"];
        let (train, held) = (data["conversations"].as_u64(), data["held_out"].as_u64());
        assert_eq!(train.unwrap() + held.unwrap(), 40);
        assert!((4..=18).contains(&held.unwrap()), "{data}");
        assert!(provenance["files"]["adapter_model.safetensors"].is_string());
        let error = sft(&args).unwrap_err().to_string();
        assert!(error.contains("already exists"), "{error}");
    }

    #[test]
    fn a_renamed_flag_names_its_new_name() {
        let words = ["sft", "--data", "a", "--out", "b", "--pass-tokens", "64"];
        let error = Line::try_parse_from(words).err().unwrap().to_string();
        assert!(error.contains("--micro-batch-tokens"), "{error}");
    }

    #[test]
    fn errors_name_the_line_and_leave_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("chats.jsonl");
        let valid = chats(2);
        let long = json!({"messages": [
            {"role": "user", "content": "one ".repeat(40_000)},
            {"role": "assistant", "content": "x"},
        ]});
        for (content, part) in [
            (format!("{valid}not json\n"), "line 3: not valid JSON"),
            (
                format!("{valid}\n{{\"messages\": []}}\n"),
                "line 4: `messages` must be",
            ),
            (format!("{valid}{long}\n"), "line 3: "),
            ("\n\n".to_owned(), "no conversation to train on"),
        ] {
            std::fs::write(&file, content).unwrap();
            let error = format!("{:#}", sft(&args(dir.path(), &[])).unwrap_err());
            assert!(error.contains(part), "{error}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        std::fs::write(&file, b"{}\n\xff\n").unwrap();
        let error = sft(&args(dir.path(), &[])).unwrap_err().to_string();
        assert!(error.contains("line 2: not valid UTF-8"), "{error}");
        std::fs::write(&file, format!("{valid}{long}\n")).unwrap();
        let error = sft(&args(dir.path(), &[])).unwrap_err().to_string();
        assert!(error.contains("--skip-long"), "{error}");
    }
}
