//! `clawhost export merged`: base and adapter as one model in Hugging Face layout, for those who serve no adapters.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_journal::{Journal, now_ms};
use clawhost_policy::{Learned, Model, ModelFiles};
use serde_json::{Value, json};

use crate::output::say;
use crate::placing::Place;

/// Arguments of `clawhost export merged`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost export merged --out ./my-model\n  \
    clawhost export merged --adapter 3 --data ./clawhost-data --model ./Qwen3-0.6B --out ./tuned\n  \
    clawhost export merged --adapter ./adapter --model ./Qwen3-0.6B --out ./tuned\n\n\
    Writes model.safetensors (f32), config, tokenizer, chat template and generation config, and where they came from. \
    `clawhost run --model` serves the directory, and so does whatever reads Hugging Face checkpoints."
)]
pub(crate) struct MergedArgs {
    /// Version in the data directory, or a PEFT directory [default: the version that is active]
    #[arg(long, value_name = "VERSION|DIR")]
    adapter: Option<String>,
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
    /// Model directory that the adapter was made for [default: the embedded policy]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Directory for the model; must not be there yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Runs the command.
pub(crate) fn merged(args: &MergedArgs) -> Result<ExitCode> {
    let place = Place::begin(&args.out)?;
    let files = match &args.model {
        Some(dir) => ModelFiles::dir(dir)?,
        None => ModelFiles::embedded(),
    };
    let base = Model::load(&files)?;
    let (learned, from) = learned(args, &base)?;
    let whole = match &learned {
        Learned::Lora(adapter) => base.merged(adapter)?,
        Learned::Full(model) => Model::clone(model),
    };
    write(&whole, &files, place.path())?;
    place.finish(json!({
        "base": files.name(),
        "base_digest": base.digest(),
        "adapter": from,
        "adapter_digest": learned.digest(),
        "digest": whole.digest(),
        "program": concat!("clawhost ", env!("CARGO_PKG_VERSION")),
        "created_ms": now_ms(),
    }))?;
    say(&format!(
        "{} with {from} written to {}. Serve it: clawhost run --model {1}",
        files.name(),
        args.out.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What is merged, and what it is called.
fn learned(args: &MergedArgs, base: &Model) -> Result<(Learned, String)> {
    let version: Option<u64> = match &args.adapter {
        Some(named) => match named.parse() {
            Ok(version) => Some(version),
            Err(_) => {
                let learned = Learned::load(Path::new(named), base)
                    .with_context(|| format!("--adapter {named} cannot be merged"))?;
                return Ok((learned, format!("the adapter in {named}")));
            }
        },
        None => None,
    };
    let journal = Journal::open_read_only(&args.data)?;
    let row = match version {
        None => journal.active_adapter()?.with_context(|| {
            format!(
                "{} has no adapter yet; name one with --adapter",
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
    ensure!(
        recorded == Some(base.digest()),
        "version {} was trained on base model {}, this is {}; name the model of that time with --model",
        row.version,
        recorded.unwrap_or("unknown"),
        base.digest()
    );
    let learned = Learned::load(&args.data.join(&row.path), base).with_context(|| {
        format!(
            "version {} cannot be read; was it let go by training.keep_adapters?",
            row.version
        )
    })?;
    ensure!(
        learned.digest() == row.digest,
        "version {} is not what the journal recorded: its digest is {}, recorded is {}",
        row.version,
        learned.digest(),
        row.digest
    );
    Ok((learned, format!("adapter version {}", row.version)))
}

/// A whole model, with the base's own config.json where that says more than the shape.
pub(crate) fn write(model: &Model, files: &ModelFiles, dir: &Path) -> Result<()> {
    model.save(dir)?;
    files.save_text(dir)?;
    let mut config: Value = serde_json::from_slice(files.config())?;
    if let Some(fields) = config.as_object_mut() {
        // Whatever the base was kept in, this is f32.
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
    use clawhost_policy::{Adapter, Candidates, LoraSpec, Sequence};

    use super::*;

    fn args(dir: &Path, adapter: Option<&str>) -> MergedArgs {
        MergedArgs {
            adapter: adapter.map(str::to_owned),
            data: dir.join("data"),
            model: None,
            out: dir.join("out"),
        }
    }

    #[test]
    fn a_merged_model_is_served_as_base_and_adapter_were() {
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
        merged(&args).unwrap();

        let files = ModelFiles::dir(&args.out).unwrap();
        let whole = Model::load(&files).unwrap();
        let tokens: Vec<u32> = (1..40).map(|i| i * 11 % 400).collect();
        let sequence = [Sequence {
            tokens: &tokens,
            start: 1,
            temperature: 1.0,
            candidates: Candidates::Top(8),
        }];
        let apart = base.score(Some(&adapter), &sequence).unwrap();
        let together = whole.score(None, &sequence).unwrap();
        let pairs = apart[0]
            .candidate_logprobs
            .iter()
            .zip(&together[0].candidate_logprobs);
        let far = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < 1e-4, "{far}");
        let embedded = ModelFiles::embedded();
        assert_eq!(files.tokenizer().unwrap(), embedded.tokenizer().unwrap());
        assert_eq!(files.template().unwrap(), embedded.template().unwrap());
        assert_eq!(files.generation(), embedded.generation());
        let config: Value = serde_json::from_slice(files.config()).unwrap();
        assert_eq!(
            config["torch_dtype"].as_str().or(config["dtype"].as_str()),
            Some("float32")
        );

        let error = merged(&args).unwrap_err().to_string();
        assert!(error.contains("is there already"), "{error}");
    }

    #[test]
    fn what_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(&dir.path().join("data")).unwrap();
        drop(journal);
        let said = |adapter| format!("{:#}", merged(&args(dir.path(), adapter)).unwrap_err());
        assert!(said(None).contains("no adapter yet"));
        assert!(said(Some("7")).contains("no adapter version 7"));
        assert!(said(Some("./nowhere")).contains("--adapter ./nowhere"));
        assert!(!dir.path().join("out").exists());
    }
}
