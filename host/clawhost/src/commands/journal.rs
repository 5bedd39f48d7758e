//! `clawhost journal`: integrity check and recovery of the journal.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use clawhost_journal::{CheckReport, RecoveryReport, check, recover_journal};

use crate::output::print;

/// Arguments of `clawhost journal`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  clawhost journal check --data ./clawhost-data")]
pub(crate) struct JournalArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Verify the whole journal against its recorded row counts and commits
    Check(CheckArgs),
    /// Copy what is readable from a damaged journal into a new one; the damaged one is kept
    Recover(RecoverArgs),
}

/// Arguments of `clawhost journal check`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost journal check --data ./clawhost-data\n\n\
    Changes nothing and works while a server runs on the same data directory. Exit code 1 if the journal is damaged."
)]
pub(crate) struct CheckArgs {
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
}

/// Arguments of `clawhost journal recover`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost journal recover --data ./clawhost-data\n\n\
    Stop the server first. The damaged files are kept in journal-damaged-<time> inside the data directory. An intact \
    journal is not changed."
)]
pub(crate) struct RecoverArgs {
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
}

/// Runs the command.
pub(crate) fn journal(args: &JournalArgs) -> Result<ExitCode> {
    match &args.what {
        What::Check(args) => {
            let report = check(&args.data)?;
            print(&check_text(&report))?;
            Ok(if report.is_intact() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        What::Recover(args) => {
            let recovery = recover_journal(&args.data)?;
            print(&recovery_text(&recovery))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check_text(report: &CheckReport) -> String {
    let mut text = format!(
        "{} (schema {}, {} bytes in the write-ahead log)\n",
        report.path.display(),
        report.schema,
        report.log_bytes
    );
    for count in &report.tables {
        let rows = count.rows.map_or("?".to_owned(), |rows| rows.to_string());
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  {:<12}{rows:>10} rows, {} counted",
            count.table, count.counted
        );
    }
    if let Some((found, acknowledged)) = report.commits {
        let acknowledged =
            acknowledged.map_or("an unknown number".to_owned(), |number| number.to_string());
        let _ = writeln!(
            text,
            "  {:<12}{found:>10}, {acknowledged} acknowledged",
            "commits"
        );
    }
    if report.is_intact() {
        text.push_str("intact");
        return text;
    }
    text.push_str("damaged:\n");
    for problem in &report.problems {
        let _ = writeln!(text, "  {problem}");
    }
    text.push_str(
        "`clawhost journal recover` copies what is readable into a new journal and keeps this one; `clawhost restore` restores a backup",
    );
    text
}

fn recovery_text(recovery: &RecoveryReport) -> String {
    let turns = recovery.rows.get("turns").copied().unwrap_or(0);
    let mut text = format!("{turns} turns");
    if let Some(acknowledged) = recovery.acknowledged_turns {
        let _ = write!(text, " of {acknowledged} acknowledged");
    }
    let _ = writeln!(
        text,
        " were copied into a new journal; the damaged one is kept in {}",
        recovery.damaged_dir.display()
    );
    if recovery.damaged_frames > 0 {
        let _ = writeln!(
            text,
            "  {} frames of the write-ahead log failed their checksum and were read anyway",
            recovery.damaged_frames
        );
    }
    for (table, lost) in &recovery.lost {
        let _ = match lost {
            1.. => writeln!(text, "  {table}: {lost} rows could not be recovered"),
            _ => writeln!(text, "  {table}: {} more rows than counted", -lost),
        };
    }
    text
}
