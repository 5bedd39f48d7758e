//! What was promised, and whether it holds.

use super::figures::Figures;
use super::outcome::PersonalizeOutcome;
use super::plan::Arm;
use crate::persona::Track;
use crate::statistics::Estimate;

/// One promise about one persona.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aim {
    /// Who talked.
    pub track: Track,
    /// What was promised.
    pub says: String,
    /// Whether it holds.
    pub holds: bool,
    /// What was found.
    pub found: String,
}

/// Means of 0/1 scores are sums of twelfths: compare with a hair of tolerance, or a bound could fail for
/// its last bit.
const HAIR: f64 = 1e-9;

/// All promises that can be told from the cells that there are.
pub(super) fn aims(outcome: &PersonalizeOutcome) -> Vec<Aim> {
    let tracks = outcome.options.tracks.iter();
    tracks.flat_map(|track| of_track(outcome, *track)).collect()
}

fn of_track(outcome: &PersonalizeOutcome, track: Track) -> Vec<Aim> {
    let bounds = outcome.options.bounds;
    let figures = |arm| outcome.figures(arm, track);
    let mark = outcome.options.mark(track);
    let mut aims = Vec::new();
    let mut add = |says: String, holds: bool, found: String| {
        aims.push(Aim {
            track,
            says,
            holds,
            found,
        });
    };
    let control = figures(Arm::Control);
    let all: Vec<Figures> = outcome
        .options
        .arms
        .iter()
        .filter_map(|a| figures(*a))
        .collect();
    let learning = || all.iter().filter(|figures| figures.arm.learns());

    if let Some(control) = &control
        && let (Some(first), Some(last)) = (control.first_window(), control.mark_window())
    {
        let moved = (last.mean - first.mean).abs();
        add(
            format!(
                "the frozen policy starts at {:.2} or less",
                bounds.from_at_most
            ),
            first.mean <= bounds.from_at_most + HAIR,
            format!("{:.2} in the first window", first.mean),
        );
        add(
            format!("its windows differ by at most {:.2}", bounds.control_within),
            moved <= bounds.control_within + HAIR,
            format!("{moved:.2}"),
        );
    }
    if let Some(hybrid) = figures(Arm::Hybrid) {
        let there = hybrid.at_mark.iter().flatten();
        let reached = there
            .clone()
            .filter(|v| **v + HAIR >= bounds.at_least)
            .count();
        let scores: Vec<String> = hybrid.at_mark.iter().map(|v| number(*v)).collect();
        add(
            format!(
                "hybrid scores at least {:.2} within {mark} conversations on every seed",
                bounds.at_least
            ),
            reached == hybrid.seeds.len(),
            scores.join(" "),
        );
        for other in [Arm::Binary, Arm::Opd] {
            let lead = figures(other).and_then(|other| hybrid.lead_over(&other));
            if let Some(lead) = lead {
                add(
                    format!("hybrid is not seen to be worse than {}", other.name()),
                    lead.high + HAIR >= 0.0,
                    format!("{} seed by seed", signed(lead)),
                );
            }
        }
    }
    if let Some(low) = control.as_ref().and_then(Figures::mark_window) {
        for one in learning() {
            let Some(high) = one.mark_window() else {
                continue;
            };
            add(
                format!("{} beats control, intervals apart", one.arm.name()),
                high.low > low.high,
                format!("from {:.2} against up to {:.2}", high.low, low.high),
            );
        }
    }
    for one in learning() {
        let all = || one.changes.iter().filter_map(|c| Some((c, c.change?)));
        let worst = all().min_by(|a, b| a.1.mean.total_cmp(&b.1.mean));
        if let Some((worst, change)) = worst {
            add(
                format!(
                    "{} is not seen to lose more than {:.0} % of what was not at stake",
                    one.arm.name(),
                    bounds.forgets_at_most * 100.0
                ),
                all().all(|(_, c)| c.high + HAIR >= -bounds.forgets_at_most),
                format!("worst: {}, {}", worst.name, signed(change)),
            );
        }
    }
    aims
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "no reply".to_owned(), |v| format!("{v:.2}"))
}

/// `+0.03 (-0.01 … +0.08)`
fn signed(estimate: Estimate) -> String {
    format!(
        "{:+.2} ({:+.2} … {:+.2})",
        estimate.mean, estimate.low, estimate.high
    )
}
