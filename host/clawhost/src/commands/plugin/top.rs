//! `clawhost plugin top`: what plugins cost and how their calls ended.
//!
//! The receipts are read from the journal page by page and added up, so the size of the record does not matter, and
//! a look at a server that runs disturbs nobody.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clawhost_journal::{Journal, now_ms};
use clawhost_plugins::Account;
use serde_json::{Value, json};

use crate::output::{say, say_json};
use crate::usage::one_line;

/// Receipts that are held at a time.
const PAGE: u32 = 1000;
/// Characters of the longest bar.
const BAR: usize = 20;
/// Characters of a name that are shown.
const NAME: usize = 24;

/// Arguments of `clawhost plugin top`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost plugin top\n  clawhost plugin top --data ./clawhost-data --every 2\n  clawhost plugin top --json\n\n\
    Reads the receipts of all calls that judged turns or trained; works while a server runs on the same data directory.\n\
    Those that use the most CPU time come first: ticks of 10 ms, or fuel at a thousand units a microsecond where that is\n\
    more. Medians and 99th percentiles are within a thirty-second."
)]
pub(crate) struct TopArgs {
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
    /// Look again and again, with this many seconds in between
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    every: Option<u32>,
    /// Print one JSON object; with --every, one a look, each on a line
    #[arg(long)]
    json: bool,
}

/// One build of one plugin.
#[derive(Default)]
struct Build {
    world: String,
    account: Account,
    last_ms: i64,
}

/// All builds by name and digest, and how far the journal was read.
#[derive(Default)]
struct Reading {
    after: i64,
    receipts: u64,
    builds: BTreeMap<(String, String), Build>,
}

/// Runs the command.
pub(crate) fn top(args: &TopArgs) -> Result<ExitCode> {
    let journal = Journal::open_read_only(&args.data)?;
    let mut reading = Reading::default();
    loop {
        reading.go_on(&journal)?;
        let shown = reading.shown();
        if args.json {
            say_json(&shown)?;
        } else {
            let over = args.every.is_some() && std::io::stdout().is_terminal();
            let clear = if over { "\x1b[H\x1b[2J" } else { "" };
            say(&format!("{clear}{}", text(&shown)))?;
        }
        let Some(seconds) = args.every else {
            return Ok(ExitCode::SUCCESS);
        };
        pause(Duration::from_secs(seconds.into()));
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the time between two looks is all that is waited for"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

impl Reading {
    /// Adds what was recorded since the last look.
    fn go_on(&mut self, journal: &Journal) -> Result<()> {
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

    /// The documented shape: `schemas/plugin-top.json`.
    fn shown(&self) -> Value {
        let mut builds: Vec<_> = self
            .builds
            .iter()
            .filter(|(_, build)| build.account.calls() > 0)
            .collect();
        builds.sort_by_key(|(_, build)| std::cmp::Reverse(build.account.cpu_us));
        let plugins: Vec<Value> = builds
            .into_iter()
            .map(|((plugin, digest), build)| {
                let account = &build.account;
                json!({
                    "plugin": plugin,
                    "digest": digest,
                    "world": build.world,
                    "calls": account.calls(),
                    "ok": account.ok,
                    "refused": account.refused,
                    "faults": account.faults,
                    "deadline_exceeded": account.deadline_exceeded,
                    "wall_p50_us": account.wall.quantile_us(0.5),
                    "wall_p99_us": account.wall.quantile_us(0.99),
                    "wall_total_us": account.wall.total_us(),
                    "queued_p50_us": account.queued.quantile_us(0.5),
                    "queued_p99_us": account.queued.quantile_us(0.99),
                    "cpu_us": account.cpu_us,
                    "ticks": account.ticks,
                    "fuel": account.fuel,
                    "peak_memory_bytes": account.peak_memory_bytes,
                    "host_calls": account.host_calls,
                    "model_calls": account.model_calls,
                    "model_tokens": account.model_tokens,
                    "http_calls": account.http_calls,
                    "log_lines_dropped": account.log_lines_dropped,
                    "last_ms": build.last_ms,
                })
            })
            .collect();
        json!({"at_ms": now_ms(), "receipts": self.receipts, "plugins": plugins})
    }
}

/// The shape for people: a line of figures for each build, and one of what went wrong or out.
fn text(shown: &Value) -> String {
    let plugins = shown.get("plugins").and_then(Value::as_array);
    let plugins = plugins.map(Vec::as_slice).unwrap_or_default();
    if plugins.is_empty() {
        return "no plugin has been called yet\n".to_owned();
    }
    let number = |of: &Value, key: &str| of.get(key).and_then(Value::as_u64).unwrap_or(0);
    let word = |of: &Value, key: &str| {
        let text = of.get(key).and_then(Value::as_str);
        one_line(text.unwrap_or_default())
    };
    let all: u64 = plugins.iter().map(|one| number(one, "cpu_us")).sum();
    let now = shown.get("at_ms").and_then(Value::as_i64).unwrap_or(0);
    let mut text = format!(
        "{:<NAME$} {:<12} {:>9} {:>9} {:>9} {:>9} {:>9}  CPU\n",
        "plugin", "digest", "calls", "p50", "p99", "wait p99", "memory"
    );
    for one in plugins {
        let name: String = word(one, "plugin").chars().take(NAME).collect();
        let digest: String = word(one, "digest").chars().take(12).collect();
        let cpu = number(one, "cpu_us");
        let _ = writeln!(
            text,
            "{name:<NAME$} {digest:<12} {:>9} {:>9} {:>9} {:>9} {:>9}  {:<BAR$} {}",
            number(one, "calls"),
            time(number(one, "wall_p50_us")),
            time(number(one, "wall_p99_us")),
            time(number(one, "queued_p99_us")),
            format!("{} KiB", number(one, "peak_memory_bytes") >> 10),
            bar(cpu, all),
            time(cpu),
        );
        let mut more = vec![format!("{} ok", number(one, "ok"))];
        for (key, said) in [("refused", "refused"), ("faults", "fault")] {
            for (kind, count) in one
                .get(key)
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                more.push(format!("{count} {said} {}", one_line(kind)));
            }
        }
        for (key, said) in [
            ("deadline_exceeded", "deadline exceeded"),
            ("host_calls", "host calls"),
            ("model_calls", "model calls"),
            ("model_tokens", "tokens"),
            ("http_calls", "HTTP calls"),
            ("log_lines_dropped", "log lines dropped"),
        ] {
            let count = number(one, key);
            if count > 0 {
                more.push(format!("{count} {said}"));
            }
        }
        let last = one.get("last_ms").and_then(Value::as_i64).unwrap_or(now);
        more.push(format!("last {} ago", age(now - last)));
        let _ = writeln!(text, "  {}", more.join(" · "));
    }
    text
}

/// A share as a bar; whatever is more than nothing is seen.
fn bar(part: u64, all: u64) -> String {
    let length = (part as f64 / all.max(1) as f64 * BAR as f64).round() as usize;
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
    fn the_dearest_comes_first_and_what_went_wrong_is_named() {
        let mut reading = Reading::default();
        reading.add(&receipt("cheap", 1_000_000, json!({"is": "ok"})), 5);
        for kind in ["cpu", "trap", "cpu"] {
            let fault = json!({"is": "fault", "kind": kind});
            reading.add(&receipt("dear", 9_000_000, fault), 7);
        }
        reading.add(&json!({"not": "a receipt"}), 9);
        let shown = reading.shown();
        assert_eq!(
            (&shown["receipts"], &shown["plugins"][0]["plugin"]),
            (&json!(4), &json!("dear"))
        );
        assert_eq!(shown["plugins"].as_array().unwrap().len(), 2);
        let told = text(&shown);
        let lines: Vec<&str> = told.lines().collect();
        assert!(
            lines[1].starts_with("dear") && lines[1].contains(&"█".repeat(19)),
            "{told}"
        );
        assert!(
            lines[2].contains("0 ok · 2 fault cpu · 1 fault trap · 6 host calls"),
            "{told}"
        );
        assert!(
            lines[3].starts_with("cheap") && lines[3].contains("40 µs"),
            "{told}"
        );
        assert!(text(&Reading::default().shown()).contains("no plugin"));
    }
}
