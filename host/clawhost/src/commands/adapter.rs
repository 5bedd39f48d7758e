//! `clawhost adapter`: export of adapters as PEFT directories, and import of these and of adapters trained with other tools.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use clawhost_journal::{AdapterOwner, Journal, OwnerError};
use clawhost_model::{Model, Quantization, TrainedWeights};
use clawhost_training::ImportRequest;
use serde_json::{Value, json};

use crate::output::print;
use crate::serve::model_files;
use crate::staging::{StagingDir, digests};

/// Arguments of `clawhost adapter`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost adapter import ./my-peft-adapter --model ./Qwen3-0.6B --data ./clawhost-data\n  \
    clawhost adapter export ./adapter-of-alice --owner key:alice --data ./clawhost-data"
)]
pub(crate) struct AdapterArgs {
    #[command(subcommand)]
    command: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Import an adapter into a data directory, so that training continues from it
    Import(ImportArgs),
    /// Export an adapter of a data directory as PEFT files
    Export(ExportArgs),
}

/// Whose adapter: none for the shared one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner(Option<AdapterOwner>);

impl FromStr for Owner {
    type Err = OwnerError;

    fn from_str(text: &str) -> Result<Self, OwnerError> {
        Ok(Self(match text {
            "shared" => None,
            text => Some(text.parse()?),
        }))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_ref().map_or("shared", AdapterOwner::as_str))
    }
}

/// Arguments of `clawhost adapter export`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  clawhost adapter export ./adapter\n  \
    clawhost adapter export ./adapter-of-alice --owner key:alice --data ./clawhost-data\n  \
    clawhost adapter import ./adapter-of-alice --owner key:alice --data ./other-data\n\n\
    Writes adapter_config.json and adapter_model.safetensors, which PEFT and servers with LoRA support load, provenance.json, and the \
    optimizer state if it is still stored, with which training continues after an import. Files whose sha256 is not the recorded one are \
    rejected. Reward baselines and preference pairs stay in the journal. Works while a server runs on the same data directory.")]
struct ExportArgs {
    /// Output directory; must not exist yet
    dir: PathBuf,
    /// Whose adapter: key:NAME, user:KEY/USER, or shared
    #[arg(long, value_name = "OWNER", default_value = "shared")]
    owner: Owner,
    /// Version to export [default: the owner's active version]
    #[arg(long, value_name = "VERSION")]
    version: Option<u64>,
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
}

/// Arguments of `clawhost adapter import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost adapter import ./my-peft-adapter --model ./Qwen3-0.6B\n  clawhost run --model ./Qwen3-0.6B\n\n\
    The adapter is copied into the data directory as its first version, based on the base model, with the sha256 of \
    every source file and, if present, the optimizer state. With --owner it becomes the adapter of an API key or a user, which a server \
    with training.adapters serves to its owner only. With --promote it becomes the \
    newest version of an owner who already has versions; this also restores an adapter from adapters/unknown. \
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
    /// Whose adapter it becomes: key:NAME, user:KEY/USER, or shared [default: shared; required if the directory's
    /// provenance.json names an owner]
    #[arg(long, value_name = "OWNER")]
    owner: Option<Owner>,
    /// Make it the newest and the active version even if the owner already has versions; a rollback returns to the previous
    /// one
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
        What::Export(args) => export(args),
    }
}

fn export(args: &ExportArgs) -> Result<ExitCode> {
    let journal = Journal::open_read_only(&args.data)?;
    let staging = StagingDir::create(&args.dir)?;
    let owner = args.owner.0.as_ref();
    let row = clawhost_training::export_adapter(
        &journal,
        &args.data,
        owner,
        args.version,
        staging.path(),
    )?;
    staging.commit()?;
    print(&format!(
        "exported adapter version {} of {} ({}) to {}, sha256 {}",
        row.version,
        args.data.display(),
        args.owner,
        args.dir.display(),
        row.digest
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn import(args: &ImportArgs) -> Result<ExitCode> {
    let files = model_files(args.model.as_deref())?;
    let base = Model::load_quantized(&files, args.quantization)?;
    let weights = TrainedWeights::load(&args.dir, &base)
        .with_context(|| format!("cannot import {}", args.dir.display()))?;
    let provenance = provenance(&args.dir)?;
    let owner = owner(args, &provenance)?;
    let journal = Journal::open(&args.data)?;
    let origin = json!({
        "directory": args.dir.canonicalize().unwrap_or_else(|_| args.dir.clone()),
        "files": digests(&args.dir)?,
        "provenance": provenance,
        "base": files.name(),
    });
    let request = ImportRequest {
        weights: &weights,
        from: Some(&args.dir),
        files: Some(&files),
        origin: &origin,
        owner: owner.0.as_ref(),
        promote: args.promote,
    };
    let imported = clawhost_training::import_adapter(&journal, &base, &args.data, &request)?;
    let release = journal.release_state_of(owner.0.as_ref())?;
    let note = if release.version == imported.version {
        String::new()
    } else {
        format!("; version {} is pinned and stays active", release.version)
    };
    print(&format!(
        "imported {} as adapter version {} of {} ({owner}), sha256 {}{note}",
        args.dir.display(),
        imported.version,
        args.data.display(),
        imported.digest
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Whose adapter it becomes. What was one person's does not become everybody's without being asked for.
fn owner(args: &ImportArgs, provenance: &Value) -> Result<Owner> {
    match (&args.owner, provenance.get("owner").and_then(Value::as_str)) {
        (Some(owner), _) => Ok(owner.clone()),
        (None, None) => Ok(Owner(None)),
        (None, Some(recorded)) => bail!(
            "{} is the adapter of {recorded}; pass --owner {recorded}, another owner, or --owner shared to serve it to everybody",
            args.dir.display()
        ),
    }
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

    /// Writes an adapter of another tool to `peft`, and returns the arguments that import it into `data`.
    fn foreign(dir: &Path) -> (Adapter, ImportArgs) {
        let base = Model::load(&ModelFiles::embedded()).unwrap();
        let adapter = Adapter::init(base.config(), LoraSpec::default(), 3);
        let peft = dir.join("peft");
        std::fs::create_dir(&peft).unwrap();
        adapter.save_peft(&peft, "base").unwrap();
        (adapter, import_args(peft, dir.join("data"), None))
    }

    fn import_args(dir: PathBuf, data: PathBuf, owner: Option<&str>) -> ImportArgs {
        ImportArgs {
            dir,
            data,
            owner: owner.map(|owner| owner.parse().unwrap()),
            promote: false,
            model: None,
            quantization: Quantization::None,
        }
    }

    #[test]
    fn an_imported_adapter_becomes_version_1_only_in_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (adapter, args) = foreign(dir.path());
        import(&args).unwrap();
        let row = {
            let journal = Journal::open(&args.data).unwrap();
            journal.active_adapter().unwrap().unwrap()
        };
        assert_eq!((row.version, row.parent), (1, 0));
        assert_eq!(row.digest, adapter.digest());
        let bytes = std::fs::read(args.dir.join("adapter_model.safetensors")).unwrap();
        let recorded = &row.provenance["imported"]["files"]["adapter_model.safetensors"];
        assert_eq!(*recorded, clawhost_plugins::digest(&bytes));
        let copied = args.data.join(&row.path).join("adapter_config.json");
        assert!(copied.is_file());
        let error = import(&args).unwrap_err().to_string();
        assert!(error.contains("version 1"), "{error}");
    }

    #[test]
    fn the_adapter_of_an_owner_moves_to_another_server() {
        let dir = tempfile::tempdir().unwrap();
        let (adapter, mut args) = foreign(dir.path());
        // Another owner may have versions already.
        import(&args).unwrap();
        args.owner = Some("key:ann".parse().unwrap());
        import(&args).unwrap();
        let out = dir.path().join("of-ann");
        let export_args = |owner: &str, version| ExportArgs {
            dir: out.clone(),
            owner: owner.parse().unwrap(),
            version,
            data: args.data.clone(),
        };
        let error = export(&export_args("key:bob", None))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("adapters of key:ann, shared: name one with --owner"),
            "{error}"
        );
        let error = export(&export_args("key:ann", Some(1))).unwrap_err();
        assert!(error.to_string().contains("--owner shared"), "{error}");
        assert!(!out.exists(), "nothing is left of a failed export");
        export(&export_args("key:ann", None)).unwrap();
        for file in [
            "adapter_config.json",
            "adapter_model.safetensors",
            "optimizer.safetensors",
            "provenance.json",
        ] {
            assert!(out.join(file).is_file(), "{file}");
        }

        let other = dir.path().join("other");
        let error = import(&import_args(out.clone(), other.clone(), None)).unwrap_err();
        assert!(error.to_string().contains("--owner key:ann"), "{error}");
        import(&import_args(out.clone(), other.clone(), Some("key:anna"))).unwrap();
        let journal = Journal::open(&other).unwrap();
        let anna = AdapterOwner::of_key("anna");
        let row = journal.active_adapter_of(Some(&anna)).unwrap().unwrap();
        assert_eq!((row.version, &row.digest), (1, &adapter.digest()));
        assert_eq!(row.provenance["owner"], "key:anna");
        assert_eq!(row.provenance["imported"]["provenance"]["owner"], "key:ann");
        assert_eq!(
            journal.active_adapter().unwrap(),
            None,
            "nobody else is served it"
        );
    }

    #[test]
    fn a_damaged_adapter_is_not_exported() {
        let dir = tempfile::tempdir().unwrap();
        let (_, args) = foreign(dir.path());
        import(&args).unwrap();
        let stored = args.data.join("adapters/v000001/adapter_config.json");
        std::fs::write(stored, "{}").unwrap();
        let out = dir.path().join("out");
        let exported = export(&ExportArgs {
            dir: out.clone(),
            owner: Owner(None),
            version: None,
            data: args.data,
        });
        let error = exported.unwrap_err().to_string();
        assert!(error.contains("adapter_config.json has sha256"), "{error}");
        assert!(!out.exists());
    }
}
