//! `clawhost env watch`: the page of a directory of artifacts.
//!
//! The commands that run episodes keep the page up to date themselves; this is for a directory whose command was killed, or was
//! of an earlier version. It serves nothing: a browser opens the page from disk.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_episodes::{ArtifactsRoot, file_url};

use crate::output::print;

/// Arguments of `clawhost env watch`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  clawhost env watch ./episodes\n\n\
    Prints the address of the page that lists the episodes of --artifacts DIR. The page is current while a\n\
    command writes to the directory; this also completes what a killed command left.")]
pub(crate) struct WatchArgs {
    /// Directory that was passed as --artifacts
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Runs the command.
pub(super) fn watch(args: &WatchArgs) -> Result<ExitCode> {
    let dir = &args.dir;
    ensure!(
        dir.is_dir(),
        "{} is not a directory; pass the one of --artifacts",
        dir.display()
    );
    let root = ArtifactsRoot::open(dir)
        .with_context(|| format!("cannot write the pages of {}", dir.display()))?;
    let index = root.index();
    // The last pass is a complete one.
    drop(root);
    print(&file_url(&index))?;
    Ok(ExitCode::SUCCESS)
}
