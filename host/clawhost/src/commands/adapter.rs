//! `clawhost adapter`: import of adapters trained with other tools.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use clawhost_journal::Journal;
use clawhost_model::{Model, Quantization, TrainedWeights};
use clawhost_training::ImportRequest;
use serde_json::{Value, json};

use crate::output::print;
use crate::serve::model_files;
use crate::staging::digests;

/// Arguments of `clawhost adapter`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost adapter import ./my-peft-adapter --model ./Qwen3-0.6B --data ./clawhost-data"
)]
pub(crate) struct AdapterArgs {
    #[command(subcommand)]
    command: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Import an adapter into a data directory, so that training continues from it
    Import(ImportArgs),
}

/// Arguments of `clawhost adapter import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost adapter import ./my-peft-adapter --model ./Qwen3-0.6B\n  clawhost run --model ./Qwen3-0.6B\n\n\
    The adapter is copied into the data directory as its first version, based on the base model, with the sha256 of \
    every source file and, if present, the optimizer state. With --promote it becomes the \
    newest version of a data directory that already has versions; this also restores an adapter from adapters/unknown. \
    Plain LoRA on linear layers is supported, in any precision; rank-stabilised LoRA keeps \
    its scale. Anything else (DoRA, biases, other modules, per-layer ranks) is rejected with its name. \
    With training.parameters = \"full\" pass a whole model directory of the same shape."
)]
pub(crate) struct ImportArgs {
    /// PEFT directory: adapter_config.json and adapter_model.safetensors
    dir: PathBuf,
    /// Data directory; created if missing, must not be in use by a server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
    /// Make it the newest and the active version even if the data directory already has versions; a rollback returns to
    /// the previous one
    #[arg(long)]
    promote: bool,
    /// Base model of the adapter: directory or GGUF file [default: the embedded model]
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Format of the base model's linear weights, as engine.quantization: none, int8 or int4
    #[arg(long, value_name = "FORMAT", default_value = "none")]
    quantization: Quantization,
}

/// Runs the command.
pub(crate) fn adapter(args: &AdapterArgs) -> Result<ExitCode> {
    match &args.command {
        What::Import(args) => import(args),
    }
}

fn import(args: &ImportArgs) -> Result<ExitCode> {
    let files = model_files(args.model.as_deref())?;
    let base = Model::load_quantized(&files, args.quantization)?;
    let weights = TrainedWeights::load(&args.dir, &base)
        .with_context(|| format!("cannot import {}", args.dir.display()))?;
    let journal = Journal::open(&args.data)?;
    let origin = json!({
        "directory": args.dir.canonicalize().unwrap_or_else(|_| args.dir.clone()),
        "files": digests(&args.dir)?,
        "provenance": provenance(&args.dir)?,
        "base": files.name(),
    });
    let request = ImportRequest {
        weights: &weights,
        from: Some(&args.dir),
        files: Some(&files),
        origin: &origin,
        promote: args.promote,
    };
    let imported = clawhost_training::import_adapter(&journal, &base, &args.data, &request)?;
    let release = journal.release_state()?;
    let note = if release.version == imported.version {
        String::new()
    } else {
        format!("; version {} is pinned and stays active", release.version)
    };
    print(&format!(
        "imported {} as adapter version {} of {}, sha256 {}{note}",
        args.dir.display(),
        imported.version,
        args.data.display(),
        imported.digest
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The directory's provenance.json, if there is one.
fn provenance(dir: &Path) -> Result<Value> {
    let path = dir.join("provenance.json");
    if !path.exists() {
        return Ok(Value::Null);
    }
    std::fs::read(&path)
        .map_err(anyhow::Error::from)
        .and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
        .with_context(|| {
            format!(
                "cannot read {}; remove it to import without it",
                path.display()
            )
        })
}

#[cfg(test)]
mod tests {
    use clawhost_model::{Adapter, LoraSpec, ModelFiles};

    use super::*;

    #[test]
    fn an_imported_adapter_becomes_version_1_only_in_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        let base = Model::load(&ModelFiles::embedded()).unwrap();
        let adapter = Adapter::init(base.config(), LoraSpec::default(), 3);
        let peft = dir.path().join("peft");
        std::fs::create_dir(&peft).unwrap();
        adapter.save_peft(&peft, "base").unwrap();
        let args = ImportArgs {
            dir: peft.clone(),
            data: dir.path().join("data"),
            promote: false,
            model: None,
            quantization: Quantization::None,
        };
        import(&args).unwrap();
        let row = {
            let journal = Journal::open(&args.data).unwrap();
            journal.active_adapter().unwrap().unwrap()
        };
        assert_eq!((row.version, row.parent), (1, 0));
        assert_eq!(row.digest, adapter.digest());
        let bytes = std::fs::read(peft.join("adapter_model.safetensors")).unwrap();
        let recorded = &row.provenance["imported"]["files"]["adapter_model.safetensors"];
        assert_eq!(*recorded, clawhost_plugins::digest(&bytes));
        let copied = args.data.join(&row.path).join("adapter_config.json");
        assert!(copied.is_file());
        let error = import(&args).unwrap_err().to_string();
        assert!(error.contains("version 1"), "{error}");
    }
}
