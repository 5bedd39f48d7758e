//! The tables for the terminal.

use crate::persona::Track;
use crate::personalize::{
    Arm, Figures, PersonalizeOptions, PersonalizeOutcome, ProbeChange, Target,
};
use crate::statistics::Estimate;

use super::super::columns::align_columns;
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
    if let Track::TakenBack(_) = track {
        out.push_str(&format!(
            "the wish is taken back after {} conversations; from then on, and on fresh tasks, the opposite is scored\n",
            track.mark()
        ));
    }
    if let Some(other) = track.other() {
        out.push_str(&format!(
            "shares a server with {}, each with an API key of their own; fresh tasks also with the other's adapter and with the base model\n",
            other.name()
        ));
    }
    out.push_str(&scores(&figures, options, track));
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

/// The scores of all arms. Columns that no arm has a value for are left out.
fn scores(figures: &[Figures], options: &PersonalizeOptions, track: Track) -> String {
    let (mark, window) = (options.mark(track), options.mark_window(track));
    let mut columns: Vec<(String, Vec<String>)> = Vec::new();
    let mut add = |header: String, cell: &dyn Fn(&Figures) -> String| {
        columns.push((header, figures.iter().map(cell).collect()));
    };
    add("arm".to_owned(), &|one| one.arm.name().to_owned());
    add(
        format!("first {}", options.first_window(track).len()),
        &|one| interval(one.first_window()),
    );
    add(format!("{}–{mark}", window.start + 1), &|one| {
        interval(one.mark_window())
    });
    if options.last_window(track) != window {
        let last = options.last_window(track).len();
        add(format!("last {last}"), &|one| {
            interval(one.score_over_seeds(&one.last))
        });
    }
    if figures
        .iter()
        .any(|one| one.fresh.iter().any(Option::is_some))
    {
        add(format!("{} fresh", options.fresh), &|one| {
            interval(one.score_over_seeds(&one.fresh))
        });
    }
    for (header, fresh) in [
        (
            "other's adapter",
            (|one| &one.fresh_other) as fn(&Figures) -> &[Option<f64>],
        ),
        ("base", |one| &one.fresh_base),
    ] {
        if figures
            .iter()
            .any(|one| fresh(one).iter().any(Option::is_some))
        {
            add(header.to_owned(), &|one| {
                let estimate = one.score_over_seeds(fresh(one));
                estimate.map_or_else(|| MISSING.to_owned(), |e| interval(Some(e)))
            });
        }
    }
    for (header, factor) in [
        (
            "style",
            (|one| &one.style) as fn(&Figures) -> &[Option<f64>],
        ),
        ("correct", |one| &one.correctness),
    ] {
        add(header.to_owned(), &|one| {
            let estimate = one.score_over_seeds(factor(one));
            estimate.map_or_else(|| MISSING.to_owned(), |e| format!("{:.2}", e.mean))
        });
    }
    if figures.iter().any(|one| one.opposite().is_some()) {
        add("asked for the contrary".to_owned(), &|one| {
            one.opposite().map_or_else(
                || MISSING.to_owned(),
                |change| format!("{:.2}", change.after),
            )
        });
    }
    add("by seed".to_owned(), &|one| {
        list(one.after(), |v| format!("{v:.2}"))
    });
    add("three in a row after".to_owned(), &|one| {
        list(&one.align, |n| n.to_string())
    });
    if figures.iter().any(|one| !one.realign.is_empty()) {
        add("again after".to_owned(), &|one| {
            list(&one.realign, |n| n.to_string())
        });
    }
    if figures
        .iter()
        .any(|one| one.prompt_tokens.iter().any(Option::is_some))
    {
        add("prompt tokens".to_owned(), &|one| {
            one.over_seeds(&one.prompt_tokens)
                .map_or_else(|| MISSING.to_owned(), |e| format!("{:.0}", e.mean))
        });
    }
    let mut rows: Vec<Vec<String>> =
        vec![columns.iter().map(|(header, _)| header.clone()).collect()];
    for at in 0..figures.len() {
        rows.push(columns.iter().map(|(_, cells)| cells[at].clone()).collect());
    }
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
    let nats = |e: Estimate| {
        if e.has_interval() {
            format!("{:.3} ({:.3} … {:.3})", e.mean, e.low, e.high)
        } else {
            format!("{:.3}", e.mean)
        }
    };
    rows.extend(figures.iter().map(|one| {
        let estimate = |values: &[Option<f64>]| one.over_seeds(values);
        let entropy = match (estimate(&one.entropy_first), estimate(&one.entropy_last)) {
            (Some(first), Some(last)) => format!("{:.3} → {}", first.mean, nats(last)),
            _ => MISSING.to_owned(),
        };
        let length = estimate(&one.length_drift).map(|e| {
            let [mean, low, high] = [e.mean, e.low, e.high].map(|share| share * 100.0);
            if e.has_interval() {
                format!("{mean:+.0} % ({low:+.0} … {high:+.0})")
            } else {
                format!("{mean:+.0} %")
            }
        });
        [
            one.arm.name().to_owned(),
            estimate(&one.kl).map_or_else(|| MISSING.to_owned(), nats),
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
    let learning: Vec<&Figures> = figures
        .iter()
        .filter(|f| f.arm != Arm::CONTROL && !f.changes.is_empty())
        .collect();
    let probes = figures.iter().find(|f| !f.changes.is_empty());
    let Some(probes) = probes.filter(|_| !learning.is_empty()) else {
        return String::new();
    };
    let mut header = vec!["unrelated prompts".to_owned(), "frozen".to_owned()];
    header.extend(learning.iter().map(|one| one.arm.name().to_owned()));
    let mut rows = vec![header];
    for ProbeChange { name, counts, .. } in &probes.changes {
        let change_of = |one: &&&Figures| one.changes.iter().find(|c| c.name == *name).cloned();
        let changes: Vec<Option<ProbeChange>> =
            learning.iter().map(|one| change_of(&one)).collect();
        let base = changes.iter().flatten().find_map(|change| change.base);
        let mut row = vec![
            if *counts {
                name.clone()
            } else {
                format!("{name} (base at chance, left out)")
            },
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
    if !estimate.has_interval() {
        return format!("{:+.2}", estimate.mean);
    }
    format!("{:+.2} … {:+.2}", estimate.low, estimate.high)
}

fn list<T: Copy>(values: &[Option<T>], show: impl Fn(T) -> String) -> String {
    let shown: Vec<String> = values
        .iter()
        .map(|value| value.map_or_else(|| MISSING.to_owned(), &show))
        .collect();
    shown.join(" ")
}
