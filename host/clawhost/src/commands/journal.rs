//! `clawhost journal`: whether the journal is what was written, and what to do when it is not.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use clawhost_journal::{Checked, Salvaged, check, salvage};

use crate::output::say;

/// Arguments of `clawhost journal`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  clawhost journal check --data ./clawhost-data")]
pub(crate) struct JournalArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Read all of the journal and compare it with what was acknowledged
    Check(CheckArgs),
    /// Copy what can be read of a damaged journal into a new one, and keep the damaged one
    Recover(RecoverArgs),
}

/// Arguments of `clawhost journal check`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost journal check --data ./clawhost-data\n\n\
    Changes nothing and works while a server runs on the same data directory. Exit code 1 when something is wrong."
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
    Stop the server first. The damaged files are kept in journal-damaged-<time> inside the data directory. A whole \
    journal is left alone."
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
            let checked = check(&args.data)?;
            say(&report(&checked))?;
            Ok(if checked.whole() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        What::Recover(args) => {
            let salvaged = salvage(&args.data)?;
            say(&saved(&salvaged))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn report(checked: &Checked) -> String {
    let mut text = format!(
        "{} (schema {}, {} bytes in its write-ahead log)\n",
        checked.path.display(),
        checked.schema,
        checked.log_bytes
    );
    for count in &checked.tables {
        let rows = count.rows.map_or("?".to_owned(), |rows| rows.to_string());
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  {:<12}{rows:>10} rows, {} counted",
            count.table, count.counted
        );
    }
    if let Some((found, acknowledged)) = checked.commits {
        let acknowledged =
            acknowledged.map_or("an unknown number".to_owned(), |number| number.to_string());
        let _ = writeln!(
            text,
            "  {:<12}{found:>10}, {acknowledged} acknowledged",
            "commits"
        );
    }
    if checked.whole() {
        text.push_str("whole");
        return text;
    }
    text.push_str("damaged:\n");
    for problem in &checked.problems {
        let _ = writeln!(text, "  {problem}");
    }
    text.push_str(
        "`clawhost journal recover` copies what can be read into a new journal and keeps this one; `clawhost restore` brings a backup back",
    );
    text
}

fn saved(salvaged: &Salvaged) -> String {
    let turns = salvaged.rows.get("turns").copied().unwrap_or(0);
    let mut text = format!("{turns} turns");
    if let Some(acknowledged) = salvaged.acknowledged_turns {
        let _ = write!(text, " of {acknowledged} that were acknowledged");
    }
    let _ = writeln!(
        text,
        " are in a new journal; the damaged one is kept in {}",
        salvaged.kept.display()
    );
    if salvaged.damaged_frames > 0 {
        let _ = writeln!(
            text,
            "  {} frames of the write-ahead log did not verify and were read all the same",
            salvaged.damaged_frames
        );
    }
    for (table, lost) in &salvaged.lost {
        let _ = match lost {
            1.. => writeln!(text, "  {table}: {lost} rows could not be saved"),
            _ => writeln!(text, "  {table}: {} rows more than were counted", -lost),
        };
    }
    text
}
