//! `clawhost env top`: what the environments of a server do.
//!
//! Reads the journal, so a running server is not disturbed.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clawhost_journal::{EnvironmentStats, Journal, SampleState, now_ms};
use serde_json::json;

use crate::output::{one_line, print, print_json};

/// Maximum length of a displayed name.
const NAME: usize = 24;

/// Arguments of `clawhost env top`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost env top\n  clawhost env top --data ./clawhost-data --every 2\n  clawhost env top --json\n\n\
    Shows the environments of `clawhost run --env`; works while a server runs on the same data directory.\n\
    Rates and rewards in brackets are of the last minute."
)]
pub(crate) struct TopArgs {
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
    /// Repeat every SECONDS
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    every: Option<u32>,
    /// Print one JSON object; with --every, one per line and interval
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn top(args: &TopArgs) -> Result<ExitCode> {
    let journal = Journal::open_read_only(&args.data)?;
    loop {
        let stats = journal.environment_stats()?;
        if args.json {
            // The documented JSON output: `schemas/env-top.json`.
            print_json(&json!({"at_ms": now_ms(), "environments": stats}))?;
        } else {
            let over = args.every.is_some() && std::io::stdout().is_terminal();
            let clear = if over { "\x1b[H\x1b[2J" } else { "" };
            print(&format!("{clear}{}", text(&stats)))?;
        }
        let Some(seconds) = args.every else {
            return Ok(ExitCode::SUCCESS);
        };
        wait(Duration::from_secs(seconds.into()));
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "waits for the refresh interval only"
)]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

/// The output as text: a line of figures for each environment, and one for each reason of episodes without a verdict.
fn text(environments: &[EnvironmentStats]) -> String {
    if environments.is_empty() {
        return "no environment has run; start one with `clawhost run --env FILE --tasks FILE`\n"
            .to_owned();
    }
    let mut text = format!(
        "{:<NAME$} {:>6} {:>8} {:>8} {:>7} {:>8} {:>14} {:>8} {:>7} {:>8}\n",
        "environment",
        "round",
        "running",
        "done",
        "failed",
        "per s",
        "reward",
        "trained",
        "queued",
        "dropped"
    );
    for one in environments {
        let name: String = one_line(&one.name).chars().take(NAME).collect();
        let failed: u64 = one.failed.iter().map(|(_, count)| count).sum();
        let samples = |state| one.samples.get(&state).copied().unwrap_or(0);
        let reward = |mean: Option<f64>| mean.map_or("-".to_owned(), |mean| format!("{mean:.3}"));
        let _ = writeln!(
            text,
            "{name:<NAME$} {:>6} {:>8} {:>8} {failed:>7} {:>8.2} {:>14} {:>8} {:>7} {:>8}",
            one.round,
            one.running,
            one.done,
            one.per_second,
            format!(
                "{} ({})",
                reward(one.reward_mean),
                reward(one.recent_reward_mean)
            ),
            samples(SampleState::Trained),
            samples(SampleState::Queued),
            samples(SampleState::Dropped),
        );
        for (reason, count) in &one.failed {
            let _ = writeln!(text, "  {count} × {}", one_line(reason));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_environment_has_a_line_and_its_reasons() {
        let stats = EnvironmentStats {
            name: "toolcall".to_owned(),
            round: 3,
            open: true,
            running: 8,
            done: 20,
            failed: vec![("the wall\nlimit".to_owned(), 2)],
            reward_mean: Some(-0.25),
            recent_reward_mean: None,
            per_second: 1.5,
            last_ms: Some(1),
            samples: [(SampleState::Trained, 12)].into(),
        };
        let text = text(&[stats]);
        let lines: Vec<&str> = text.lines().collect();
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(
            words,
            [
                "toolcall", "3", "8", "20", "2", "1.50", "-0.250", "(-)", "12", "0", "0"
            ]
        );
        assert!(lines[2].starts_with("  2 × the wall") && lines.len() == 3);
        assert!(super::text(&[]).contains("clawhost run --env"));
    }
}
