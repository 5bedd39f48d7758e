//! `clawhost adapter`: adapters that come from elsewhere.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use clawhost_journal::Journal;
use clawhost_policy::{Learned, Model, ModelFiles};
use clawhost_training::Import;
use serde_json::{Value, json};

use crate::output::say;
use crate::placing::digests;

/// Arguments of `clawhost adapter`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost adapter import ./my-peft-adapter --model ./Qwen3-0.6B --data ./clawhost-data"
)]
pub(crate) struct AdapterArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Begin a data directory with an adapter, so that learning goes on from it
    Import(ImportArgs),
}

/// Arguments of `clawhost adapter import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost adapter import ./my-peft-adapter --model ./Qwen3-0.6B\n  clawhost run --model ./Qwen3-0.6B\n\n\
    The adapter is copied into the data directory as its first version, made from the base model, with the sha256 of \
    every file that it came from, and with the optimizer's state where that lies beside it. With --promote it becomes the \
    newest version of a data directory that has some already: so an adapter comes back that lies in adapters/unknown. Plain LoRA on linear layers is taken, in any precision; a rank-stabilised one keeps \
    its scale. Whatever is more than that (DoRA, biases, further modules, ranks of single layers) is refused by name. \
    With training.parameters = \"full\" a whole model directory of the same shape is taken."
)]
pub(crate) struct ImportArgs {
    /// PEFT directory: adapter_config.json and adapter_model.safetensors
    dir: PathBuf,
    /// Data directory to begin with it; made when missing, and not in use by a server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
    /// Make it the newest version, and the one that is served, also where the data directory has versions already; a
    /// rollback returns to what was served before
    #[arg(long)]
    promote: bool,
    /// Model directory that the adapter was made for [default: the embedded policy]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn adapter(args: &AdapterArgs) -> Result<ExitCode> {
    match &args.what {
        What::Import(args) => import_one(args),
    }
}

fn import_one(args: &ImportArgs) -> Result<ExitCode> {
    let files = match &args.model {
        Some(dir) => ModelFiles::dir(dir)?,
        None => ModelFiles::embedded(),
    };
    let base = Model::load(&files)?;
    let learned = Learned::load(&args.dir, &base)
        .with_context(|| format!("{} cannot be imported", args.dir.display()))?;
    let journal = Journal::open(&args.data)?;
    let origin = json!({
        "directory": args.dir.canonicalize().unwrap_or_else(|_| args.dir.clone()),
        "files": digests(&args.dir)?,
        "provenance": provenance(&args.dir),
        "base": files.name(),
    });
    let import = Import {
        learned: &learned,
        from: Some(&args.dir),
        files: Some(&files),
        origin: &origin,
        promote: args.promote,
    };
    let imported = clawhost_training::import(&journal, &base, &args.data, &import)?;
    let standing = journal.standing()?;
    let held = if standing.version == imported.version {
        String::new()
    } else {
        format!("; version {} is pinned and stays served", standing.version)
    };
    say(&format!(
        "{} is adapter version {} of {} now, sha256 {}{held}",
        args.dir.display(),
        imported.version,
        args.data.display(),
        imported.digest
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What the directory says of itself, when it was written by this program.
fn provenance(dir: &Path) -> Value {
    std::fs::read(dir.join("provenance.json"))
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use clawhost_policy::{Adapter, LoraSpec};

    use super::*;

    #[test]
    fn an_adapter_becomes_the_first_version_and_no_other() {
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
        };
        import_one(&args).unwrap();
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
        let error = import_one(&args).unwrap_err().to_string();
        assert!(error.contains("version 1"), "{error}");
    }
}
