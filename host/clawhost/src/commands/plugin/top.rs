//! `clawhost plugin top`: cost and outcomes of plugin calls.
//!
//! Receipts are read from the journal page by page and summed, so memory does not grow with the journal, and a running
//! server is not disturbed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clawhost_journal::{Journal, now_ms};
use clawhost_plugins::CallStats;
use serde_json::{Value, json};

use crate::output::{one_line, print, print_json};

/// Receipts per page.
const PAGE: u32 = 1000;
/// Maximum length of a bar.
const BAR: usize = 20;
/// Maximum length of a displayed name.
const NAME: usize = 24;

/// Arguments of `clawhost plugin top`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost plugin top\n  clawhost plugin top --data ./clawhost-data --every 2\n  clawhost plugin top --json\n\n\
    Sums the receipts of all calls in judging and training; works while a server runs on the same data directory.\n\
    Sorted by CPU time: ticks of 10 ms, or fuel at a thousand units per microsecond, whichever is\n\
    more. Medians and 99th percentiles are accurate to 1/32."
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

/// Sums of one build of a plugin.
#[derive(Default)]
struct BuildTotals {
    world: String,
    account: CallStats,
    last_ms: i64,
}

/// Sums of all builds by name and digest, and the position in the journal.
#[derive(Default)]
struct ReceiptTotals {
    after: i64,
    receipts: u64,
    builds: BTreeMap<(String, String), BuildTotals>,
}

/// Runs the command.
pub(crate) fn top(args: &TopArgs) -> Result<ExitCode> {
    let journal = Journal::open_read_only(&args.data)?;
    let mut totals = ReceiptTotals::default();
    loop {
        totals.read_new(&journal)?;
        let now = now_ms();
        if args.json {
            print_json(&totals.to_json(now))?;
        } else {
            let over = args.every.is_some() && std::io::stdout().is_terminal();
            let clear = if over { "\x1b[H\x1b[2J" } else { "" };
            print(&format!("{clear}{}", totals.text(now)))?;
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

impl ReceiptTotals {
    /// Adds the receipts recorded since the last call.
    fn read_new(&mut self, journal: &Journal) -> Result<()> {
        loop {
            let page = journal.receipts_after(self.after, PAGE)?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            self.after = last.id;
            for one in &page {
                self.add(&one.receipt, one.ms);
            }
        }
    }

    fn add(&mut self, receipt: &Value, ms: i64) {
        let word = |key: &str| {
            let text = receipt.get(key).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let build = self
            .builds
            .entry((word("plugin"), word("digest")))
            .or_default();
        if build.account.add_recorded(receipt) {
            self.receipts += 1;
            build.world = word("world");
            build.last_ms = build.last_ms.max(ms);
        }
    }

    /// The builds that were called with their names and digests, most CPU time first.
    fn by_cost(&self) -> Vec<(&str, &str, &BuildTotals)> {
        let builds = self.builds.iter().filter(|(_, b)| b.account.calls() > 0);
        let mut builds: Vec<_> = builds
            .map(|((plugin, digest), build)| (plugin.as_str(), digest.as_str(), build))
            .collect();
        builds.sort_by_key(|(_, _, build)| std::cmp::Reverse(build.account.cpu_us));
        builds
    }

    /// The documented JSON output: `schemas/plugin-top.json`.
    fn to_json(&self, now_ms: i64) -> Value {
        let plugins = self.by_cost().into_iter().map(|(plugin, digest, build)| {
            let mut line = json!({"plugin": plugin, "digest": digest, "world": build.world});
            let (line_fields, stats) = (line.as_object_mut(), build.account.to_json());
            line_fields.expect("a line is an object").extend(stats);
            line["last_ms"] = build.last_ms.into();
            line
        });
        let plugins: Vec<Value> = plugins.collect();
        json!({"at_ms": now_ms, "receipts": self.receipts, "plugins": plugins})
    }

    /// The output as text: a line of figures for each build, and one with its outcomes.
    fn text(&self, now_ms: i64) -> String {
        let builds = self.by_cost();
        if builds.is_empty() {
            return "no plugin has been called yet\n".to_owned();
        }
        let total: u64 = builds.iter().map(|(_, _, b)| b.account.cpu_us).sum();
        let mut text = format!(
            "{:<NAME$} {:<12} {:>9} {:>9} {:>9} {:>9} {:>9}  CPU\n",
            "plugin", "digest", "calls", "p50", "p99", "wait p99", "memory"
        );
        for (plugin, digest, build) in builds {
            let account = &build.account;
            let name: String = one_line(plugin).chars().take(NAME).collect();
            let digest: String = one_line(digest).chars().take(12).collect();
            let _ = writeln!(
                text,
                "{name:<NAME$} {digest:<12} {:>9} {:>9} {:>9} {:>9} {:>9}  {:<BAR$} {}",
                account.calls(),
                time(account.wall.quantile_us(0.5)),
                time(account.wall.quantile_us(0.99)),
                time(account.queued.quantile_us(0.99)),
                format!("{} KiB", account.peak_memory_bytes >> 10),
                bar(account.cpu_us, total),
                time(account.cpu_us),
            );
            let mut more = vec![format!("{} ok", account.ok)];
            for (kinds, label) in [(&account.refused, "refused"), (&account.faults, "fault")] {
                let kinds = kinds.iter();
                more.extend(kinds.map(|(kind, n)| format!("{n} {label} {}", one_line(kind))));
            }
            for (count, label) in [
                (account.deadline_exceeded, "deadline exceeded"),
                (account.host_calls, "host calls"),
                (account.model_calls, "model calls"),
                (account.model_tokens, "tokens"),
                (account.http_calls, "HTTP calls"),
                (account.log_lines_dropped, "log lines dropped"),
            ] {
                if count > 0 {
                    more.push(format!("{count} {label}"));
                }
            }
            more.push(format!("last {} ago", age(now_ms - build.last_ms)));
            let _ = writeln!(text, "  {}", more.join(" · "));
        }
        text
    }
}

/// A share as a bar, at least one character if it is not zero.
fn bar(part: u64, total: u64) -> String {
    let length = (part as f64 / total.max(1) as f64 * BAR as f64).round() as usize;
    let least = usize::from(part > 0);
    "█".repeat(length.clamp(least, BAR))
}

fn time(us: u64) -> String {
    match us {
        0..10_000 => format!("{us} µs"),
        10_000..10_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

fn age(ms: i64) -> String {
    match ms.max(0) / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(plugin: &str, fuel: u64, outcome: Value) -> Value {
        json!({"plugin": plugin, "digest": "d".repeat(64), "world": "judge-plugin", "call": "r/1/0",
            "profile": "deterministic", "ticks": 0, "fuel": fuel, "peak_memory_bytes": 65536, "host_calls": 2,
            "model_calls": 0, "model_tokens": 0, "http_calls": 0, "log_lines_dropped": 0, "queued_us": 3,
            "wall_us": 40, "outcome": outcome})
    }

    #[test]
    fn builds_are_sorted_by_cpu_time_and_faults_are_listed() {
        let mut totals = ReceiptTotals::default();
        totals.add(&receipt("cheap", 1_000_000, json!({"is": "ok"})), 5);
        for kind in ["cpu", "trap", "cpu"] {
            let fault = json!({"is": "fault", "kind": kind});
            totals.add(&receipt("expensive", 9_000_000, fault), 7);
        }
        totals.add(&json!({"not": "a receipt"}), 9);
        let report = totals.to_json(10);
        assert_eq!(
            (&report["receipts"], &report["plugins"][0]["plugin"]),
            (&json!(4), &json!("expensive"))
        );
        assert_eq!(report["plugins"].as_array().unwrap().len(), 2);
        let output = totals.text(10);
        let lines: Vec<&str> = output.lines().collect();
        assert!(
            lines[1].starts_with("expensive") && lines[1].contains(&"█".repeat(19)),
            "{output}"
        );
        assert!(
            lines[2].contains("0 ok · 2 fault cpu · 1 fault trap · 6 host calls"),
            "{output}"
        );
        assert!(
            lines[3].starts_with("cheap") && lines[3].contains("40 µs"),
            "{output}"
        );
        assert!(ReceiptTotals::default().text(0).contains("no plugin"));
    }
}
