//! `clawhost backup` and `clawhost restore`: consistent copies of a data directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_journal::{AdapterRow, Journal, TurnState, now_ms, private};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::copying::{copy, copy_dir, flush, flush_dirs, sha256};
use crate::output::print;
use crate::staging::StagingDir;

/// File name of a backup's manifest.
const MANIFEST: &str = "backup.json";
/// File name of the database, in a backup and in a data directory.
const JOURNAL: &str = "journal.sqlite";
/// Format version of the manifest.
const FORMAT: u32 = 1;

/// Arguments of `clawhost backup`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost backup /backups/monday --data ./clawhost-data\n\n\
    Works while a server runs on the same data directory, without blocking it: the backup is a consistent snapshot of the \
    journal with every adapter it lists. Files in adapters/unknown are not copied."
)]
pub(crate) struct BackupArgs {
    /// Directory to write; must not exist yet, or be empty
    dest: PathBuf,
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
}

/// Arguments of `clawhost restore`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  mv clawhost-data damaged-data\n  clawhost restore /backups/monday --data ./clawhost-data\n\n\
    Every file is verified against the sha256 in the backup. Nothing is overwritten: a data directory that is not empty \
    is an error, so move it away first."
)]
pub(crate) struct RestoreArgs {
    /// Directory written by `clawhost backup`
    backup: PathBuf,
    /// Data directory to create; must not exist yet, or be empty
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
}

/// Manifest of a backup.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    form: u32,
    program: String,
    created_ms: i64,
    turns: u64,
    adapters: u64,
    /// sha256 by path in the backup.
    files: BTreeMap<String, String>,
}

/// Runs `clawhost backup`.
pub(crate) fn backup(args: &BackupArgs) -> Result<ExitCode> {
    let journal = Journal::open_read_only(&args.data)?;
    let staging = StagingDir::create(&args.dest)?;
    let work = staging.path();
    private::restrict(work).with_context(|| format!("cannot protect {}", work.display()))?;
    // Copied before the snapshot too, because retention may remove files of an older adapter right after it.
    let adapters_before = journal.adapters()?;
    for row in &adapters_before {
        copy_adapter(&args.data, work, row)?;
    }
    journal.backup(&work.join(JOURNAL))?;
    let snapshot = Journal::open_read_only(work)?;
    let rows = snapshot.adapters()?;
    let is_new = |row: &&AdapterRow| {
        adapters_before
            .iter()
            .all(|other| other.version != row.version)
    };
    for row in rows.iter().filter(is_new) {
        copy_adapter(&args.data, work, row)?;
    }
    let release = snapshot.release_state()?;
    for row in &rows {
        let needed = [release.version, release.head].contains(&row.version);
        check_adapter(work, row, needed)?;
    }
    let turns = snapshot.counts()?.turns;
    drop(snapshot);
    let mut files = BTreeMap::new();
    list(work, "", &mut files)?;
    let manifest = Manifest {
        form: FORMAT,
        program: concat!("clawhost ", env!("CARGO_PKG_VERSION")).to_owned(),
        created_ms: now_ms(),
        turns: turns.values().sum(),
        adapters: rows.len() as u64,
        files,
    };
    let path = work.join(MANIFEST);
    private::create_file(&path)
        .and_then(|file| Ok(serde_json::to_writer_pretty(file, &manifest)?))
        .and_then(|()| flush(&path))
        .with_context(|| format!("cannot write {}", path.display()))?;
    flush_dirs(work)?;
    staging.commit()?;
    let open = turns.get(&TurnState::Generating).copied().unwrap_or(0);
    let open = match open {
        0 => String::new(),
        open => format!(", {open} of them still generating"),
    };
    print(&format!(
        "{} contains {} turns{open} and {} adapters; restore it with `clawhost restore {}`",
        args.dest.display(),
        manifest.turns,
        manifest.adapters,
        args.dest.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `clawhost restore`.
pub(crate) fn restore(args: &RestoreArgs) -> Result<ExitCode> {
    let manifest_path = args.backup.join(MANIFEST);
    let manifest: Manifest = fs::read(&manifest_path)
        .map_err(anyhow::Error::from)
        .and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
        .with_context(|| {
            format!(
                "cannot read {}; pass a directory written by `clawhost backup`",
                manifest_path.display()
            )
        })?;
    ensure!(
        manifest.form == FORMAT,
        "{} has format version {}, this clawhost reads version {FORMAT}; use the clawhost that wrote it, or a newer one",
        manifest_path.display(),
        manifest.form
    );
    let staging = StagingDir::create(&args.data)
        .context("cannot restore over existing data; move the directory away or pass another one with --data")?;
    let work = staging.path();
    private::restrict(work).with_context(|| format!("cannot protect {}", work.display()))?;
    for (name, digest) in &manifest.files {
        let relative = Path::new(name);
        let inside = relative
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)));
        ensure!(
            inside,
            "{} lists {name}, which is not a path inside the backup",
            manifest_path.display()
        );
        let (from, to) = (args.backup.join(relative), work.join(relative));
        if let Some(parent) = to.parent() {
            private::create_dir(parent)
                .with_context(|| format!("cannot create directory {}", parent.display()))?;
        }
        copy(&from, &to)?;
        let found = sha256(&to)?;
        ensure!(
            found == *digest,
            "{} is damaged: sha256 is {found}, the backup recorded {digest}; use another backup",
            from.display()
        );
    }
    // Open it once, so that a journal that cannot be served is rejected now and not at the next start.
    drop(Journal::open(work)?);
    flush_dirs(work)?;
    staging.commit()?;
    print(&format!(
        "restored {} with {} turns and {} adapters",
        args.data.display(),
        manifest.turns,
        manifest.adapters
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Copies the directory of a recorded adapter, without the files that retention has removed.
fn copy_adapter(data: &Path, work: &Path, row: &AdapterRow) -> Result<()> {
    copy_dir(&data.join(&row.path), &work.join(&row.path))
}

/// Verifies a snapshot adapter against its recorded digests. Retention may have removed files, unless the adapter is
/// needed.
fn check_adapter(work: &Path, row: &AdapterRow, needed: bool) -> Result<()> {
    let recorded = row.provenance.get("files").and_then(Value::as_object);
    for (name, digest) in recorded.into_iter().flatten() {
        let path = work.join(&row.path).join(name);
        if !path.exists() {
            ensure!(
                !needed,
                "adapter version {} is incomplete: {name} is missing; the server cannot use it either",
                row.version
            );
            continue;
        }
        let found = sha256(&path)?;
        ensure!(
            digest.as_str() == Some(found.as_str()),
            "adapter version {} is damaged: sha256 of {name} is {found}, recorded is {digest}",
            row.version
        );
    }
    Ok(())
}

/// Lists the files in a directory tree with their sha256.
fn list(dir: &Path, prefix: &str, files: &mut BTreeMap<String, String>) -> Result<()> {
    let unreadable = || format!("cannot read {}", dir.display());
    for entry in fs::read_dir(dir).with_context(unreadable)? {
        let path = entry.with_context(unreadable)?.path();
        let name = path
            .file_name()
            .expect("an entry has a name")
            .to_string_lossy();
        let name = format!("{prefix}{name}");
        if path.is_dir() {
            list(&path, &format!("{name}/"), files)?;
        } else {
            files.insert(name, sha256(&path)?);
        }
    }
    Ok(())
}
