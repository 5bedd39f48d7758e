//! `clawhost backup` and `clawhost restore`: a data directory at one instant, and back.

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
use crate::output::say;
use crate::placing::Place;

/// Name of the file that lists a backup.
const MANIFEST: &str = "backup.json";
/// Name of the database, here and in a data directory.
const JOURNAL: &str = "journal.sqlite";
/// The form of the manifest that this program writes and reads.
const FORM: u32 = 1;

/// Arguments of `clawhost backup`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost backup /backups/monday --data ./clawhost-data\n\n\
    Works while a server runs on the same data directory, and holds nothing up: the journal is copied as it is at one \
    instant, with every adapter that it knows. What is in adapters/unknown is not copied."
)]
pub(crate) struct BackupArgs {
    /// Directory to write; must not be there yet, or be empty
    dest: PathBuf,
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
}

/// Arguments of `clawhost restore`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  mv clawhost-data damaged-data\n  clawhost restore /backups/monday --data ./clawhost-data\n\n\
    Every file is compared with the sha256 that the backup recorded. A data directory that holds anything is refused: \
    move it away first, nothing is overwritten."
)]
pub(crate) struct RestoreArgs {
    /// Directory that `clawhost backup` wrote
    backup: PathBuf,
    /// Data directory to make; must not be there yet, or be empty
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
}

/// What a backup holds.
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
    let place = Place::begin(&args.dest)?;
    let work = place.path();
    private::restrict(work).with_context(|| format!("cannot protect {}", work.display()))?;
    // Before the instant, because retention may take parts away from an older adapter right after it.
    let early = journal.adapters()?;
    for row in &early {
        copy_adapter(&args.data, work, row)?;
    }
    journal.backup(&work.join(JOURNAL))?;
    let copied = Journal::open_read_only(work)?;
    let rows = copied.adapters()?;
    let known = |row: &&AdapterRow| early.iter().all(|other| other.version != row.version);
    for row in rows.iter().filter(known) {
        copy_adapter(&args.data, work, row)?;
    }
    let standing = copied.standing()?;
    for row in &rows {
        let needed = [standing.version, standing.head].contains(&row.version);
        check_adapter(work, row, needed)?;
    }
    let turns = copied.counts()?.turns;
    drop(copied);
    let mut files = BTreeMap::new();
    list(work, "", &mut files)?;
    let manifest = Manifest {
        form: FORM,
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
    place.put()?;
    let open = turns.get(&TurnState::Generating).copied().unwrap_or(0);
    let open = match open {
        0 => String::new(),
        open => format!(", {open} of them still being generated"),
    };
    say(&format!(
        "{} holds {} turns{open} and {} adapters; `clawhost restore {}` brings them back",
        args.dest.display(),
        manifest.turns,
        manifest.adapters,
        args.dest.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `clawhost restore`.
pub(crate) fn restore(args: &RestoreArgs) -> Result<ExitCode> {
    let listed = args.backup.join(MANIFEST);
    let manifest: Manifest = fs::read(&listed)
        .map_err(anyhow::Error::from)
        .and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
        .with_context(|| {
            format!(
                "cannot read {}; name a directory that `clawhost backup` wrote",
                listed.display()
            )
        })?;
    ensure!(
        manifest.form == FORM,
        "{} has form {}, this program reads {FORM}: use the clawhost that wrote it, or a newer one",
        listed.display(),
        manifest.form
    );
    let place = Place::begin(&args.data)
        .context("nothing was restored, because nothing is overwritten; move the directory away or name another with --data")?;
    let work = place.path();
    private::restrict(work).with_context(|| format!("cannot protect {}", work.display()))?;
    for (name, digest) in &manifest.files {
        let relative = Path::new(name);
        let inside = relative
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)));
        ensure!(
            inside,
            "{} names {name}, which is no path inside it",
            listed.display()
        );
        let (from, to) = (args.backup.join(relative), work.join(relative));
        if let Some(parent) = to.parent() {
            private::create_dir(parent)
                .with_context(|| format!("cannot make {}", parent.display()))?;
        }
        copy(&from, &to)?;
        let found = sha256(&to)?;
        ensure!(
            found == *digest,
            "{} has sha256 {found}, the backup recorded {digest}: it is damaged; use another backup",
            from.display()
        );
    }
    // What cannot be served is refused here and not at the next start.
    drop(Journal::open(work)?);
    flush_dirs(work)?;
    place.put()?;
    say(&format!(
        "{} holds {} turns and {} adapters again",
        args.data.display(),
        manifest.turns,
        manifest.adapters
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Copies the directory of a recorded adapter, as far as retention has left it.
fn copy_adapter(data: &Path, work: &Path, row: &AdapterRow) -> Result<()> {
    copy_dir(&data.join(&row.path), &work.join(&row.path))
}

/// Compares a copied adapter with what its step recorded. Retention may have let go of a part, unless it is needed.
fn check_adapter(work: &Path, row: &AdapterRow, needed: bool) -> Result<()> {
    let recorded = row.provenance.get("files").and_then(Value::as_object);
    for (name, digest) in recorded.into_iter().flatten() {
        let path = work.join(&row.path).join(name);
        if !path.exists() {
            ensure!(
                !needed,
                "adapter version {} is not whole: {name} is missing; the server cannot go on from it either",
                row.version
            );
            continue;
        }
        let found = sha256(&path)?;
        ensure!(
            digest.as_str() == Some(found.as_str()),
            "adapter version {} is damaged: {name} has sha256 {found}, recorded is {digest}",
            row.version
        );
    }
    Ok(())
}

/// The files below a directory with their sha256.
fn list(dir: &Path, below: &str, files: &mut BTreeMap<String, String>) -> Result<()> {
    let unreadable = || format!("cannot read {}", dir.display());
    for entry in fs::read_dir(dir).with_context(unreadable)? {
        let path = entry.with_context(unreadable)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{below}{name}");
        if path.is_dir() {
            list(&path, &format!("{name}/"), files)?;
        } else {
            files.insert(name, sha256(&path)?);
        }
    }
    Ok(())
}
