//! `clawhost explain step`: the samples of a step and how much each moved.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clawhost_inspect::explain_step;
use clawhost_journal::{Journal, StepId};
use serde_json::Value;

use crate::output::{one_line, print_result, shorten};

/// Maximum characters of a text line.
const WIDTH: usize = 100;

/// Column heads and widths.
const COLUMNS: [(&str, usize); 9] = [
    ("sample", 8),
    ("turn", 8),
    ("reward", 8),
    ("advantage", 10),
    ("gap", 8),
    ("tokens", 7),
    ("log-prob", 9),
    ("moved", 8),
    ("share", 7),
];

/// Explains one step, or the last one.
pub(in crate::commands) fn explain(
    journal: &Journal,
    step: Option<StepId>,
    data: &Path,
    json: bool,
) -> Result<ExitCode> {
    let last = || -> Result<StepId> {
        let steps = journal.steps(1)?;
        let last = steps.first().with_context(|| {
            format!(
                "no training step in {} yet; `clawhost status` lists what is recorded",
                data.display()
            )
        })?;
        Ok(last.id)
    };
    let step = step.map_or_else(last, Ok)?;
    let step = explain_step(journal, step)?.with_context(|| {
        format!(
            "no step {step} in {}; `clawhost status` lists the last steps",
            data.display()
        )
    })?;
    print_result(json, &step, || text(&step))
}

/// Formats a finished or a planned step as text.
pub(in crate::commands) fn text(step: &Value) -> String {
    let mut out = String::new();
    let word = |path: &str| step.pointer(path).and_then(Value::as_str).unwrap_or("");
    let number = |path: &str| step.pointer(path).and_then(Value::as_f64);
    let metric = |name: &str| number(&format!("/metrics/{name}"));
    let seconds = number("/ended_ms")
        .zip(number("/started_ms"))
        .map_or(0.0, |(ended, started)| (ended - started) / 1e3);
    let mut line = |head: &str, text: String| {
        let _ = writeln!(out, "{head:<10} {text}");
    };
    let head = match step.get("step").and_then(Value::as_i64) {
        Some(step) => format!("step {step}"),
        None => "next step".to_owned(),
    };
    line(&head, format!("{} · {seconds:.1} s", word("/outcome")));
    line("", one_line(word("/why")));
    if number("/adapter_after/version").is_some() {
        let version = |path: &str| {
            let digest: String = word(&format!("{path}/digest")).chars().take(12).collect();
            match (number(&format!("{path}/version")), digest.is_empty()) {
                (Some(0.0) | None, _) => "the base model".to_owned(),
                (Some(version), true) => format!("version {version}"),
                (Some(version), false) => format!("version {version} ({digest}…)"),
            }
        };
        line(
            "adapter",
            format!(
                "{} → {}",
                version("/adapter_before"),
                version("/adapter_after")
            ),
        );
    }
    if let Some((first, last)) = metric("loss_first").zip(metric("loss_last")) {
        let updates = metric("updates").unwrap_or(0.0);
        line(
            "loss",
            format!("{first:.4} → {last:.4} over {updates} updates"),
        );
    }
    let parts: Vec<String> = [
        ("gradient_norm", "gradient norm"),
        ("change_norm", "adapter change"),
        ("kl_old", "KL to the previous policy"),
        ("kl_reference", "KL to the base model"),
        ("clip_fraction", "clipped"),
        ("entropy", "entropy"),
        ("staleness_mean", "staleness"),
    ]
    .iter()
    .filter_map(|(name, label)| Some(format!("{label} {}", short(metric(name)?))))
    .collect();
    if !parts.is_empty() {
        line("metrics", parts.join(" · "));
    }
    write_table(&mut out, step);
    write_dropped(&mut out, step);
    out
}

/// The samples that were trained on, sorted by share.
fn write_table(out: &mut String, step: &Value) {
    let mut samples: Vec<&Value> = items(step, "samples").collect();
    if samples.is_empty() {
        return;
    }
    let share = |sample: &Value| number(sample, "share").unwrap_or(0.0);
    samples.sort_by(|a, b| share(b).total_cmp(&share(a)));
    out.push('\n');
    for (head, width) in COLUMNS {
        let _ = write!(out, "{head:>width$}");
    }
    out.push('\n');
    for sample in samples {
        let cells = [
            count(sample, "sample"),
            count(sample, "turn"),
            number(sample, "reward").map_or_else(|| "hint".to_owned(), |r| format!("{r:+.2}")),
            signed(sample, "advantage"),
            signed(sample, "gap"),
            count(sample, "tokens"),
            signed(sample, "logprob_before"),
            signed(sample, "moved"),
            number(sample, "share").map_or_else(absent, |s| format!("{:.0} %", s * 100.0)),
        ];
        for ((_, width), cell) in COLUMNS.iter().zip(cells) {
            let _ = write!(out, "{cell:>width$}");
        }
        out.push('\n');
        for (head, path) in [
            ("prompt", "/asked"),
            ("reply", "/reply"),
            ("hint", "/hint/text"),
        ] {
            if let Some(text) = sample.pointer(path).and_then(Value::as_str) {
                let _ = writeln!(out, "{:>8} {}", head, shorten(text, WIDTH));
            }
        }
    }
}

fn write_dropped(out: &mut String, step: &Value) {
    let mut samples = items(step, "dropped").peekable();
    if samples.peek().is_none() {
        return;
    }
    out.push_str("\ndropped\n");
    for sample in samples {
        let reason = sample.get("reason").and_then(Value::as_str);
        let _ = writeln!(
            out,
            "  sample {} of turn {}: {}",
            count(sample, "sample"),
            count(sample, "turn"),
            one_line(reason.unwrap_or("no reason recorded"))
        );
    }
}

fn items<'a>(step: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    step.get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn number(value: &Value, name: &str) -> Option<f64> {
    value.get(name)?.as_f64()
}

fn absent() -> String {
    "–".to_owned()
}

fn count(value: &Value, name: &str) -> String {
    number(value, name).map_or_else(absent, |n| format!("{n:.0}"))
}

fn signed(value: &Value, name: &str) -> String {
    number(value, name).map_or_else(absent, |n| format!("{n:+.3}"))
}

/// A number with four significant digits or in scientific notation.
fn short(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        size if (1e-3..1e4).contains(&size) => format!("{number:.4}"),
        _ => format!("{number:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn step() -> Value {
        json!({
            "step": 12, "outcome": "published", "reason": null, "started_ms": 1_000, "ended_ms": 4_250,
            "adapter_before": {"version": 0, "digest": null},
            "adapter_after": {"version": 1, "digest": "abcdef0123456789"},
            "why": "It trained 2 and dropped 1 samples; adapter version 1 came of it.",
            "metrics": {"loss_first": 0.25, "loss_last": 0.125, "updates": 2, "gradient_norm": 0.5, "kl_old": 1e-7},
            "samples": [
                {"sample": 3, "turn": 7, "reward": 1.0, "advantage": 0.5, "tokens": 9, "share": 0.25,
                 "logprob_before": -4.0, "moved": 0.5, "hint": null, "asked": "What is\n7 + 8?", "reply": "15"},
                {"sample": 4, "turn": 8, "reward": null, "advantage": -0.1, "gap": -0.2, "tokens": 5, "share": 0.75,
                 "hint": {"hint": 1, "source": "plugin:h", "text": "be brief"}}
            ],
            "dropped": [{"sample": 5, "turn": 9, "reward": 0.0, "reason": "stale: too old"}],
            "forgotten": 0
        })
    }

    #[test]
    fn a_step_is_a_table_sorted_by_share() {
        let text = text(&step());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "step 12    published · 3.2 s");
        assert!(
            lines[2].contains("the base model → version 1 (abcdef012345…)"),
            "{text}"
        );
        assert_eq!(lines[3], "loss       0.2500 → 0.1250 over 2 updates");
        assert!(
            lines[4].contains("KL to the previous policy 1.00e-7"),
            "{text}"
        );
        let row = |of: &str| lines.iter().position(|line| line.contains(of)).unwrap();
        assert!(row("75 %") < row("25 %"), "{text}");
        let by_hint: Vec<&str> = lines[row("75 %")].split_whitespace().collect();
        assert_eq!(
            by_hint,
            [
                "4", "8", "hint", "-0.100", "-0.200", "5", "–", "–", "75", "%"
            ]
        );
        assert_eq!(lines[row("75 %") + 1], "    hint be brief");
        assert_eq!(lines[row("25 %") + 1], "  prompt What is 7 + 8?");
        assert!(
            text.ends_with("\ndropped\n  sample 5 of turn 9: stale: too old\n"),
            "{text}"
        );
    }

    #[test]
    fn unrecorded_values_are_omitted() {
        let mut bare = step();
        bare["metrics"] = json!({});
        bare["samples"] = json!([]);
        bare["dropped"] = json!([]);
        bare["adapter_after"] = Value::Null;
        assert_eq!(text(&bare).lines().count(), 2, "{}", text(&bare));
    }
}
