//! The tables for the terminal.

use crate::persona::Track;
use crate::personalize::{Figures, PersonalizeOptions, PersonalizeOutcome, ProbeChange, Target};
use crate::statistics::Estimate;

use super::super::text::interval;

/// All tables: for each persona scores, costs, forgetting and targets.
pub fn personalize_table(outcome: &PersonalizeOutcome) -> String {
    let mut out = String::new();
    if outcome.interrupted {
        out.push_str("Interrupted; partial results follow.\n\n");
    }
    for track in &outcome.options.tracks {
        out.push_str(&track_tables(outcome, *track));
        out.push('\n');
    }
    for failure in &outcome.failed {
        out.push_str(&format!("failed: {failure}\n"));
    }
    out
}

/// The tables of one persona.
pub(super) fn track_tables(outcome: &PersonalizeOutcome, track: Track) -> String {
    let options = &outcome.options;
    let (mark, window) = (options.mark(track), options.mark_window(track));
    let arms = options.arms.iter();
    let figures: Vec<Figures> = arms
        .filter_map(|arm| outcome.figures(*arm, track))
        .collect();
    let mut out = format!(
        "{}: {} conversations, {}; score of the first reply, mean over seeds (95 % interval)\n",
        track.name(),
        options.conversations(track),
        seeds(options),
    );
    if figures.is_empty() {
        out.push_str("no finished runs yet\n");
        return out;
    }
    let first = options.first_window(track).len();
    out.push_str(&scores(&figures, first, window.start + 1, mark));
    out.push('\n');
    out.push_str(&costs(&figures));
    let forgotten = forgetting(&figures);
    if !forgotten.is_empty() {
        out.push_str(&format!("\n{forgotten}"));
    }
    let targets: Vec<Target> = outcome
        .targets()
        .into_iter()
        .filter(|target| target.track == track)
        .collect();
    if !targets.is_empty() {
        out.push_str(&format!("\n{}", targets_table(&targets)));
    }
    out
}

fn scores(figures: &[Figures], first: usize, from: usize, mark: usize) -> String {
    let mut rows = vec![[
        "arm".to_owned(),
        format!("first {first}"),
        format!("{from}–{mark}"),
        "by seed".to_owned(),
        "three in a row after".to_owned(),
    ]];
    rows.extend(figures.iter().map(|one| {
        [
            one.arm.name().to_owned(),
            interval(one.first_window()),
            interval(one.mark_window()),
            list(&one.at_mark, |v| format!("{v:.2}")),
            list(&one.align, |n| n.to_string()),
        ]
    }));
    align_columns(&rows)
}

fn costs(figures: &[Figures]) -> String {
    let mut rows = vec![
        [
            "arm",
            "KL to base",
            "entropy first → last",
            "length",
            "steps",
            "tokens trained",
            "seconds",
        ]
        .map(str::to_owned),
    ];
    rows.extend(figures.iter().map(|one| {
        let estimate = |values: &[Option<f64>]| one.over_seeds(values);
        let entropy = match (estimate(&one.entropy_first), estimate(&one.entropy_last)) {
            (Some(first), Some(last)) => format!(
                "{:.3} → {:.3} ({:.3} … {:.3})",
                first.mean, last.mean, last.low, last.high
            ),
            _ => MISSING.to_owned(),
        };
        let kl = estimate(&one.kl).map(|e| format!("{:.3} ({:.3} … {:.3})", e.mean, e.low, e.high));
        let length = estimate(&one.length_drift).map(|e| {
            let [mean, low, high] = [e.mean, e.low, e.high].map(|share| share * 100.0);
            format!("{mean:+.0} % ({low:+.0} … {high:+.0})")
        });
        [
            one.arm.name().to_owned(),
            kl.unwrap_or_else(|| MISSING.to_owned()),
            entropy,
            length.unwrap_or_else(|| MISSING.to_owned()),
            list(
                &one.steps.iter().copied().map(Some).collect::<Vec<_>>(),
                |n| n.to_string(),
            ),
            one.tokens.iter().sum::<u64>().to_string(),
            format!("{:.0}", one.seconds.iter().sum::<f64>()),
        ]
    }));
    align_columns(&rows)
}

/// Rows are probes, columns arms: share of replies, and its difference from the frozen model.
fn forgetting(figures: &[Figures]) -> String {
    let learning: Vec<&Figures> = figures.iter().filter(|f| f.arm.trains()).collect();
    let probes = figures.iter().find(|f| !f.changes.is_empty());
    let Some(probes) = probes.filter(|_| !learning.is_empty()) else {
        return String::new();
    };
    let mut header = vec!["unrelated prompts".to_owned(), "frozen".to_owned()];
    header.extend(learning.iter().map(|one| one.arm.name().to_owned()));
    let mut rows = vec![header];
    for ProbeChange { name, .. } in &probes.changes {
        let change_of = |one: &&&Figures| one.changes.iter().find(|c| c.name == *name).cloned();
        let changes: Vec<Option<ProbeChange>> =
            learning.iter().map(|one| change_of(&one)).collect();
        let base = changes.iter().flatten().find_map(|change| change.base);
        let mut row = vec![
            name.clone(),
            base.map_or_else(|| MISSING.to_owned(), |v| format!("{v:.2}")),
        ];
        row.extend(changes.iter().map(|change| {
            change.as_ref().map_or_else(
                || MISSING.to_owned(),
                |c| {
                    let moved = c.change.map_or_else(String::new, signed);
                    format!("{:.2} {moved}", c.after).trim_end().to_owned()
                },
            )
        }));
        rows.push(row);
    }
    align_columns(&rows)
}

fn targets_table(targets: &[Target]) -> String {
    let rows: Vec<[String; 3]> = targets
        .iter()
        .map(|target| {
            let status = if target.met { "met" } else { "MISSED" };
            [
                status.to_owned(),
                target.description.clone(),
                target.measured.clone(),
            ]
        })
        .collect();
    align_columns(&rows)
}

fn seeds(options: &PersonalizeOptions) -> String {
    match (options.first_seed, options.seeds) {
        (first, 0 | 1) => format!("seed {first}"),
        (first, count) => format!("seeds {first}–{}", first + u64::from(count - 1)),
    }
}

/// Placeholder of a missing figure.
const MISSING: &str = "–";

fn signed(estimate: Estimate) -> String {
    format!("{:+.2} … {:+.2}", estimate.low, estimate.high)
}

fn list<T: Copy>(values: &[Option<T>], show: impl Fn(T) -> String) -> String {
    let shown: Vec<String> = values
        .iter()
        .map(|value| value.map_or_else(|| MISSING.to_owned(), &show))
        .collect();
    shown.join(" ")
}

/// Formats rows as lines with aligned columns.
fn align_columns<R: AsRef<[String]>>(rows: &[R]) -> String {
    let widest = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..widest).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.as_ref().iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        out.push_str(line.join("  ").trim_end());
        out.push('\n');
    }
    out
}
