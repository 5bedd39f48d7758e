//! The tables that a terminal shows.

use crate::persona::Track;
use crate::personalize::{Aim, Change, Figures, PersonalizeOptions, PersonalizeOutcome};
use crate::statistics::Estimate;

use super::super::text::interval;

/// All tables: for each persona scores, costs, what was forgotten, and what was promised.
pub fn personalize_table(outcome: &PersonalizeOutcome) -> String {
    let mut out = String::new();
    if outcome.interrupted {
        out.push_str("Interrupted: this is what there is so far.\n\n");
    }
    for track in &outcome.options.tracks {
        out.push_str(&of_track(outcome, *track));
        out.push('\n');
    }
    for failure in &outcome.failed {
        out.push_str(&format!("failed: {failure}\n"));
    }
    out
}

/// The tables of one persona.
pub(super) fn of_track(outcome: &PersonalizeOutcome, track: Track) -> String {
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
        out.push_str("nothing has ended yet\n");
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
    let aims: Vec<Aim> = outcome
        .aims()
        .into_iter()
        .filter(|aim| aim.track == track)
        .collect();
    if !aims.is_empty() {
        out.push_str(&format!("\n{}", promises(&aims)));
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
    columns(&rows)
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
        let over = |values: &[Option<f64>]| one.over_seeds(values);
        let entropy = match (over(&one.entropy_first), over(&one.entropy_last)) {
            (Some(first), Some(last)) => format!(
                "{:.3} → {:.3} ({:.3} … {:.3})",
                first.mean, last.mean, last.low, last.high
            ),
            _ => NOTHING.to_owned(),
        };
        let kl = over(&one.kl).map(|e| format!("{:.3} ({:.3} … {:.3})", e.mean, e.low, e.high));
        let length = over(&one.length_drift).map(|e| {
            let [mean, low, high] = [e.mean, e.low, e.high].map(|share| share * 100.0);
            format!("{mean:+.0} % ({low:+.0} … {high:+.0})")
        });
        [
            one.arm.name().to_owned(),
            kl.unwrap_or_else(|| NOTHING.to_owned()),
            entropy,
            length.unwrap_or_else(|| NOTHING.to_owned()),
            list(
                &one.steps.iter().copied().map(Some).collect::<Vec<_>>(),
                |n| n.to_string(),
            ),
            one.tokens.iter().sum::<u64>().to_string(),
            format!("{:.0}", one.seconds.iter().sum::<f64>()),
        ]
    }));
    columns(&rows)
}

/// Lines are probes, columns arms: share of replies, and its difference to the frozen policy.
fn forgetting(figures: &[Figures]) -> String {
    let learning: Vec<&Figures> = figures.iter().filter(|f| f.arm.learns()).collect();
    let probed = figures.iter().find(|f| !f.changes.is_empty());
    let Some(probed) = probed.filter(|_| !learning.is_empty()) else {
        return String::new();
    };
    let mut header = vec!["not at stake".to_owned(), "frozen".to_owned()];
    header.extend(learning.iter().map(|one| one.arm.name().to_owned()));
    let mut rows = vec![header];
    for Change { name, .. } in &probed.changes {
        let of = |one: &&&Figures| one.changes.iter().find(|c| c.name == *name).cloned();
        let changes: Vec<Option<Change>> = learning.iter().map(|one| of(&one)).collect();
        let base = changes.iter().flatten().find_map(|change| change.base);
        let mut row = vec![
            name.clone(),
            base.map_or_else(|| NOTHING.to_owned(), |v| format!("{v:.2}")),
        ];
        row.extend(changes.iter().map(|change| {
            change.as_ref().map_or_else(
                || NOTHING.to_owned(),
                |c| {
                    let moved = c.change.map_or_else(String::new, signed);
                    format!("{:.2} {moved}", c.after).trim_end().to_owned()
                },
            )
        }));
        rows.push(row);
    }
    columns(&rows)
}

fn promises(aims: &[Aim]) -> String {
    let rows: Vec<[String; 3]> = aims
        .iter()
        .map(|aim| {
            let holds = if aim.holds { "holds" } else { "DOES NOT HOLD" };
            [holds.to_owned(), aim.says.clone(), aim.found.clone()]
        })
        .collect();
    columns(&rows)
}

fn seeds(options: &PersonalizeOptions) -> String {
    match (options.first_seed, options.seeds) {
        (first, 0 | 1) => format!("seed {first}"),
        (first, count) => format!("seeds {first}–{}", first + u64::from(count - 1)),
    }
}

/// For what there is no figure of.
const NOTHING: &str = "–";

fn signed(estimate: Estimate) -> String {
    format!("{:+.2} … {:+.2}", estimate.low, estimate.high)
}

fn list<T: Copy>(values: &[Option<T>], show: impl Fn(T) -> String) -> String {
    let shown: Vec<String> = values
        .iter()
        .map(|value| value.map_or_else(|| NOTHING.to_owned(), &show))
        .collect();
    shown.join(" ")
}

/// Rows as lines, each column as wide as its widest cell.
fn columns<R: AsRef<[String]>>(rows: &[R]) -> String {
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
