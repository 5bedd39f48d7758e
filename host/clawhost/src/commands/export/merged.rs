//! `clawhost export merged`: base model and adapter merged into one model in Hugging Face layout, for servers without
//! adapter support.

use clawhost_cpu::CpuModel;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_journal::{Journal, now_ms};
use clawhost_model::{Model, ModelFiles, Quantization, TrainedWeights};
use serde_json::{Value, json};

use crate::output::print;
use crate::serve::model_files;
use crate::staging::StagingDir;

/// Arguments of `clawhost export merged`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost export merged --out ./my-model\n  \
    clawhost export merged --adapter 3 --data ./clawhost-data --model ./Qwen3-0.6B --out ./tuned\n  \
    clawhost export merged --adapter ./adapter --model ./Qwen3-0.6B --out ./tuned\n\n\
    Writes model.safetensors (f32), config, tokenizer, chat template and generation config, and provenance.json. \
    `clawhost run --model` serves the directory, and so does any server that loads Hugging Face checkpoints."
)]
pub(crate) struct MergedArgs {
    /// Version in the data directory, or a PEFT directory [default: the active version]
    #[arg(long, value_name = "VERSION|DIR")]
    adapter: Option<String>,
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
    /// Base model of the adapter: directory or GGUF file [default: the embedded model]
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Format of the base model's linear weights, as engine.quantization: none, int8 or int4
    #[arg(long, value_name = "FORMAT", default_value = "none")]
    quantization: Quantization,
    /// Output directory; must not exist yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Runs the command.
pub(crate) fn export_merged(args: &MergedArgs) -> Result<ExitCode> {
    let staging = StagingDir::create(&args.out)?;
    let files = model_files(args.model.as_deref())?;
    let base = Model::load_quantized(&files, args.quantization)?;
    let (weights, from) = load_weights(args, &base)?;
    let merged_model = match &weights {
        TrainedWeights::Lora(adapter) => base.merge_adapter(adapter)?,
        TrainedWeights::Full(model) => Model::clone(model),
    };
    write(&merged_model, &files, staging.path())?;
    staging.finish(json!({
        "base": files.name(),
        "base_digest": base.digest(),
        "adapter": from,
        "adapter_digest": weights.digest(),
        "digest": merged_model.digest(),
        "program": concat!("clawhost ", env!("CARGO_PKG_VERSION")),
        "created_ms": now_ms(),
    }))?;
    print(&format!(
        "wrote {} with {from} to {}; serve it with `clawhost run --model {1}`",
        files.name(),
        args.out.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The weights to merge, and their description.
fn load_weights(args: &MergedArgs, base: &Model) -> Result<(TrainedWeights, String)> {
    let version: Option<u64> = match &args.adapter {
        Some(value) => match value.parse() {
            Ok(version) => Some(version),
            Err(_) => {
                let weights = TrainedWeights::load(Path::new(value), base)
                    .with_context(|| format!("cannot merge --adapter {value}"))?;
                return Ok((weights, format!("the adapter in {value}")));
            }
        },
        None => None,
    };
    let journal = Journal::open_read_only(&args.data)?;
    let row = match version {
        None => journal.active_adapter()?.with_context(|| {
            format!(
                "{} has no adapter yet; pass one with --adapter",
                args.data.display()
            )
        })?,
        Some(version) => {
            let rows = journal.adapters()?;
            let newest = rows.iter().map(|row| row.version).max().unwrap_or(0);
            rows.into_iter()
                .find(|row| row.version == version)
                .with_context(|| {
                    format!(
                        "{} has no adapter version {version}; the newest is {newest}",
                        args.data.display()
                    )
                })?
        }
    };
    let recorded = row.provenance.get("base_digest").and_then(Value::as_str);
    let is_base = match recorded {
        Some(recorded) => base.has_digest(recorded)?,
        None => false,
    };
    ensure!(
        is_base,
        "adapter version {} was trained on base model {}, this is {}; pass its base model with --model, and with --quantization as engine.quantization was",
        row.version,
        recorded.unwrap_or("unknown"),
        base.digest()
    );
    let weights = TrainedWeights::load(&args.data.join(&row.path), base).with_context(|| {
        format!(
            "cannot read adapter version {}; training.keep_adapters may have removed it",
            row.version
        )
    })?;
    ensure!(
        weights.has_digest(&row.digest)?,
        "adapter version {} is damaged: its digest is {}, recorded is {}",
        row.version,
        weights.digest(),
        row.digest
    );
    Ok((weights, format!("adapter version {}", row.version)))
}

/// Writes a merged_model model, with the base model's config.json, which may have more fields than this program knows.
pub(crate) fn write(model: &Model, files: &ModelFiles, dir: &Path) -> Result<()> {
    model.save(dir)?;
    files.save_tokenizer_and_templates(dir)?;
    let mut config: Value = serde_json::from_slice(files.config())?;
    if let Some(fields) = config.as_object_mut() {
        // The weights are written as f32, whatever the base model's dtype is.
        let key = if fields.contains_key("dtype") {
            "dtype"
        } else {
            "torch_dtype"
        };
        fields.insert(key.to_owned(), "float32".into());
    }
    let path = dir.join("config.json");
    std::fs::write(&path, format!("{config:#}\n"))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use clawhost_engine::{Candidates, Sequence};
    use clawhost_model::{Adapter, LoraSpec};

    use super::*;

    fn args(dir: &Path, adapter: Option<&str>) -> MergedArgs {
        MergedArgs {
            adapter: adapter.map(str::to_owned),
            data: dir.join("data"),
            model: None,
            quantization: Quantization::None,
            out: dir.join("out"),
        }
    }

    #[test]
    fn a_merged_model_scores_like_base_and_adapter() {
        let dir = tempfile::tempdir().unwrap();
        let base = Model::load(&ModelFiles::embedded()).unwrap();
        let spec = LoraSpec {
            rank: 4,
            ..LoraSpec::default()
        };
        let mut adapter = Adapter::init(base.config(), spec, 3);
        for (_, values) in adapter.tensors_mut() {
            values.iter_mut().for_each(|value| *value += 0.004);
        }
        let peft = dir.path().join("peft");
        std::fs::create_dir(&peft).unwrap();
        adapter.save_peft(&peft, "base").unwrap();
        let args = args(dir.path(), peft.to_str());
        export_merged(&args).unwrap();

        let files = ModelFiles::from_dir(&args.out).unwrap();
        let merged_model = Model::load(&files).unwrap();
        let tokens: Vec<u32> = (1..40).map(|i| i * 11 % 400).collect();
        let sequence = [Sequence {
            tokens: &tokens,
            start: 1,
            temperature: 1.0,
            candidates: Candidates::Top(8),
        }];
        let with_adapter = base.score(Some(&adapter), &sequence).unwrap();
        let merged_scores = merged_model.score(None, &sequence).unwrap();
        let pairs = with_adapter[0]
            .candidate_logprobs
            .iter()
            .zip(&merged_scores[0].candidate_logprobs);
        let max_difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(max_difference < 1e-4, "{max_difference}");
        let embedded = ModelFiles::embedded();
        assert_eq!(files.tokenizer().unwrap(), embedded.tokenizer().unwrap());
        assert_eq!(files.template().unwrap(), embedded.template().unwrap());
        assert_eq!(files.generation_config(), embedded.generation_config());
        let config: Value = serde_json::from_slice(files.config()).unwrap();
        assert_eq!(
            config["torch_dtype"].as_str().or(config["dtype"].as_str()),
            Some("float32")
        );

        let error = export_merged(&args).unwrap_err().to_string();
        assert!(error.contains("already exists"), "{error}");
    }

    #[test]
    fn missing_adapters_are_named_in_errors() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(&dir.path().join("data")).unwrap();
        drop(journal);
        let error_of = |adapter| {
            format!(
                "{:#}",
                export_merged(&args(dir.path(), adapter)).unwrap_err()
            )
        };
        assert!(error_of(None).contains("no adapter yet"));
        assert!(error_of(Some("7")).contains("no adapter version 7"));
        assert!(error_of(Some("./nowhere")).contains("--adapter ./nowhere"));
        assert!(!dir.path().join("out").exists());
    }
}
