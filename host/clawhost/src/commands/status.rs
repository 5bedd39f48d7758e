//! `clawhost status`: the state of a data directory.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use clawhost_inspect::Status;
use clawhost_journal::{AdapterRow, Journal, ReleaseState};
use clawhost_training::describe_stale_samples;
use serde_json::{Value, json};

use crate::output::{one_line, print_result};

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
    let Status {
        counts,
        adapter,
        release,
        plugins,
        steps,
        stale,
    } = Status::read(&journal, STEPS)?;
    let counts = json!(counts);
    let stale_note = describe_stale_samples(stale);
    let value = json!({
        "counts": counts, "adapter": adapter, "standing": release, "plugins": plugins, "steps": steps,
        "stale": {"samples": stale.samples, "stale": stale.stale, "note": stale_note},
    });
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
        let _ = write!(text, "step {:<7} {}", step.id, step.outcome);
        if let Some(reason) = &step.reason {
            let _ = write!(text, " ({reason})");
        }
        let number = |key: &str| step.metrics.get(key).and_then(Value::as_f64);
        if let Some(reward) = number("reward_mean") {
            let _ = write!(text, " · mean reward {reward:+.2}");
        }
        if let Some(change) = number("change_norm") {
            let _ = write!(text, " · change {change:.3}");
        }
        let seconds = (step.ended_ms - step.started_ms) as f64 / 1e3;
        let _ = writeln!(text, " · {seconds:.1} s");
    }
    print_result(args.json, &value, || text)
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
            owner: None,
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
