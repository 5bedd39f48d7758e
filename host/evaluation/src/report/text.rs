//! The table and the plot for the terminal.

use crate::demo::{ArmSummary, DemoOutcome};
use crate::plot::{Series, TerminalOptions, terminal};
use crate::statistics::{Estimate, median, moving_average, window};

use super::about::SMOOTHING;

/// The figures of both arms, and the verdict.
pub fn table(outcome: &DemoOutcome) -> String {
    let (trained, control) = (&outcome.trained_summary, &outcome.control_summary);
    let wide = window(outcome.options.conversations);
    let rows = [
        row(
            &format!("first {wide} conversations"),
            trained,
            control,
            |s| interval(s.first_window),
        ),
        row(
            &format!("last {wide} conversations"),
            trained,
            control,
            |s| interval(s.last_window),
        ),
        [
            format!("gain over control, last {wide}"),
            interval(outcome.gain),
            String::new(),
        ],
        row("all conversations", trained, control, |s| interval(s.all)),
        row("until three in a row", trained, control, |s| {
            s.until_three
                .map_or_else(|| "never".into(), |n| n.to_string())
        }),
        [
            "training steps".into(),
            outcome.trained.steps.to_string(),
            outcome.control.steps.to_string(),
        ],
        [
            "adapter versions served".into(),
            outcome.trained.adapters().len().to_string(),
            outcome.control.adapters().len().to_string(),
        ],
        [
            "first text, median".into(),
            ms(&outcome.trained.first_token_ms()),
            ms(&outcome.control.first_token_ms()),
        ],
        [
            "whole reply, median".into(),
            ms(&outcome.trained.total_ms()),
            ms(&outcome.control.total_ms()),
        ],
        [
            "failed requests".into(),
            outcome.trained.failed_requests().to_string(),
            outcome.control.failed_requests().to_string(),
        ],
        [
            "seconds, including waits".into(),
            format!("{:.0}", outcome.trained.seconds),
            format!("{:.0}", outcome.control.seconds),
        ],
    ];
    let mut out = String::new();
    let header = [
        "mean score of the first reply".to_owned(),
        "trained".to_owned(),
        "control".to_owned(),
    ];
    for cells in std::iter::once(&header).chain(&rows) {
        let [name, left, right] = cells;
        let line = format!("{name:<30}  {left:<22}  {right}");
        out.push_str(line.trim_end());
        out.push('\n');
    }
    let verdict = outcome.verdict();
    if verdict.has_learned() {
        out.push_str("\nThe model learned.\n");
    } else {
        out.push_str("\nThe model did not learn:\n");
        for sentence in verdict.failed {
            out.push_str(&format!("  - {sentence}\n"));
        }
    }
    out
}

/// Both arms as centred moving averages.
pub fn plot(outcome: &DemoOutcome, options: TerminalOptions) -> String {
    terminal(&curves(outcome), options)
}

pub(super) fn curves(outcome: &DemoOutcome) -> Vec<Series> {
    [(&outcome.trained, false), (&outcome.control, true)]
        .map(|(arm, dotted)| Series {
            name: arm.name.clone(),
            values: moving_average(&arm.values(), SMOOTHING),
            dotted,
        })
        .into()
}

fn row(
    name: &str,
    trained: &ArmSummary,
    control: &ArmSummary,
    value: fn(&ArmSummary) -> String,
) -> [String; 3] {
    [name.to_owned(), value(trained), value(control)]
}

/// `0.21 (0.08 … 0.38)`; of a single value `0.21`.
pub(super) fn interval(estimate: Option<Estimate>) -> String {
    estimate.map_or_else(
        || "no reply".into(),
        |e| {
            if e.has_interval() {
                format!("{:.2} ({:.2} … {:.2})", e.mean, e.low, e.high)
            } else {
                format!("{:.2}", e.mean)
            }
        },
    )
}

fn ms(values: &[f64]) -> String {
    median(values).map_or_else(|| "none".into(), |m| format!("{m:.0} ms"))
}
