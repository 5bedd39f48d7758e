//! `clawhost status`: the state of a data directory.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use clawhost_journal::{AdapterRow, Journal, ReleaseState};
use clawhost_training::describe_stale_samples;
use serde_json::{Value, json};

use crate::output::{print, print_json};
use crate::plugin_reload::STATUS_KEY;
use crate::usage::one_line;

/// Arguments of `clawhost status`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  clawhost status --data ./clawhost-data\n\nWorks while a server runs on the same data directory."
)]
pub(crate) struct StatusArgs {
    /// Data directory of the server
    #[arg(long, value_name = "DIR", default_value = "clawhost-data")]
    data: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Number of steps shown.
const STEPS: u32 = 10;

/// The stored plugin status of the last server.
fn plugins(journal: &Journal) -> Result<Vec<Value>> {
    let status = journal.meta(STATUS_KEY)?;
    Ok(status
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default())
}

/// The served version, and whether it is pinned.
fn serving(adapter: Option<&AdapterRow>, release: &ReleaseState) -> String {
    let what = match adapter {
        Some(row) => {
            let digest: String = row.digest.chars().take(12).collect();
            format!("version {}, digest {digest}…", row.version)
        }
        None if *release == ReleaseState::default() => {
            "the base model; no adapter has been published yet".to_owned()
        }
        None => "the base model".to_owned(),
    };
    if release.pinned {
        format!(
            "{what}, pinned; training continues from version {}",
            release.head
        )
    } else {
        what
    }
}

/// Runs the command.
pub(crate) fn status(args: &StatusArgs) -> Result<ExitCode> {
    let journal = Journal::open_read_only(&args.data)?;
    let counts = json!(journal.counts()?);
    let adapter = journal.active_adapter()?;
    let release = journal.release_state()?;
    let steps = journal.steps(STEPS)?;
    let plugins = plugins(&journal)?;
    let stale = journal.stale_count()?;
    let stale_note = describe_stale_samples(stale);
    if args.json {
        print_json(&json!({
            "counts": counts, "adapter": adapter, "standing": release, "plugins": plugins, "steps": steps,
            "stale": {"samples": stale.samples, "stale": stale.stale, "note": stale_note},
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for (name, value) in counts.as_object().into_iter().flatten() {
        let value = match value {
            Value::Object(map) if map.is_empty() => continue,
            Value::Object(map) => {
                let parts: Vec<String> = map.iter().map(|(k, v)| format!("{v} {k}")).collect();
                parts.join(", ")
            }
            other => other.to_string(),
        };
        let _ = writeln!(text, "{name:<12} {value}");
    }
    let _ = writeln!(
        text,
        "{:<12} {}",
        "serving",
        serving(adapter.as_ref(), &release)
    );
    if let Some(note) = stale_note {
        let _ = writeln!(text, "{:<12} {note}", "stale");
    }
    for plugin in &plugins {
        let word = |key: &str| plugin.get(key).and_then(Value::as_str).unwrap_or_default();
        let digest: String = word("digest").chars().take(12).collect();
        let (kind, name) = (one_line(word("kind")), one_line(word("name")));
        let _ = writeln!(text, "{kind:<12} {name}, digest {digest}…");
        let reason = |key: &str| plugin.pointer(key).and_then(Value::as_str).map(one_line);
        if let Some(reason) = reason("/revoked/reason") {
            let _ = writeln!(text, "{:<12} unloaded: {reason}", "");
        }
        if let Some(reason) = reason("/refused/reason") {
            let _ = writeln!(text, "{:<12} a newer build was rejected: {reason}", "");
        }
    }
    for step in steps.iter().rev() {
        let reason = step
            .reason
            .as_deref()
            .map(|r| format!(" ({r})"))
            .unwrap_or_default();
        let number = |key: &str| step.metrics.get(key).and_then(Value::as_f64);
        let reward = number("reward_mean")
            .map(|r| format!(" · mean reward {r:+.2}"))
            .unwrap_or_default();
        let change = number("change_norm")
            .map(|n| format!(" · change {n:.3}"))
            .unwrap_or_default();
        let seconds = (step.ended_ms - step.started_ms) as f64 / 1e3;
        let _ = writeln!(
            text,
            "step {:<7} {}{reason}{reward}{change} · {seconds:.1} s",
            step.id, step.outcome
        );
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_version_is_shown_with_the_version_training_continues_from() {
        let row = AdapterRow {
            version: 3,
            parent: 2,
            digest: "ab".repeat(32),
            path: String::new(),
            provenance: Value::Null,
            created_ms: 0,
            state: "active".to_owned(),
            step: None,
        };
        let mut release = ReleaseState::default();
        assert!(serving(None, &release).ends_with("no adapter has been published yet"));
        release.line = 4;
        assert_eq!(serving(None, &release), "the base model");
        release.version = 3;
        release.head = 5;
        assert_eq!(
            serving(Some(&row), &release),
            "version 3, digest abababababab…"
        );
        release.pinned = true;
        assert_eq!(
            serving(Some(&row), &release),
            "version 3, digest abababababab…, pinned; training continues from version 5"
        );
    }
}
