//! The targets of the evaluation, and whether they are met.

use super::figures::Figures;
use super::outcome::PersonalizeOutcome;
use super::plan::Arm;
use crate::persona::Track;
use crate::statistics::Estimate;

/// One target for one persona.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The persona.
    pub track: Track,
    /// Description of the target.
    pub description: String,
    /// Whether it is met.
    pub met: bool,
    /// The measured value.
    pub measured: String,
}

/// Means of 0/1 scores are sums of twelfths; tolerates rounding of the last bit.
const EPSILON: f64 = 1e-9;

/// All targets that can be checked with the finished cells.
pub(super) fn targets(outcome: &PersonalizeOutcome) -> Vec<Target> {
    let tracks = outcome.options.tracks.iter();
    tracks
        .flat_map(|track| track_targets(outcome, *track))
        .collect()
}

fn track_targets(outcome: &PersonalizeOutcome, track: Track) -> Vec<Target> {
    let bounds = outcome.options.bounds;
    let figures = |arm| outcome.figures(arm, track);
    let mark = outcome.options.mark(track);
    let mut targets = Vec::new();
    let mut add = |description: String, met: bool, measured: String| {
        targets.push(Target {
            track,
            description,
            met,
            measured,
        });
    };
    let control = figures(Arm::Control);
    let figures_of_arms: Vec<Figures> = outcome
        .options
        .arms
        .iter()
        .filter_map(|a| figures(*a))
        .collect();
    let learning = || {
        figures_of_arms
            .iter()
            .filter(|figures| figures.arm.trains())
    };

    if let Some(control) = &control
        && let (Some(first), Some(last)) = (control.first_window(), control.mark_window())
    {
        let difference = (last.mean - first.mean).abs();
        add(
            format!(
                "the frozen model starts at {:.2} or less",
                bounds.from_at_most
            ),
            first.mean <= bounds.from_at_most + EPSILON,
            format!("{:.2} in the first window", first.mean),
        );
        add(
            format!("its windows differ by at most {:.2}", bounds.control_within),
            difference <= bounds.control_within + EPSILON,
            format!("{difference:.2}"),
        );
    }
    if let Some(hybrid) = figures(Arm::Hybrid) {
        let scores_at_mark = hybrid.at_mark.iter().flatten();
        let reached = scores_at_mark
            .clone()
            .filter(|v| **v + EPSILON >= bounds.at_least)
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
                    format!("hybrid is not significantly worse than {}", other.name()),
                    lead.high + EPSILON >= 0.0,
                    format!("{} paired by seed", signed(lead)),
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
                format!("{} beats control with disjoint intervals", one.arm.name()),
                high.low > low.high,
                format!(
                    "lower end {:.2} against upper end {:.2}",
                    high.low, low.high
                ),
            );
        }
    }
    for one in learning() {
        let changes = || one.changes.iter().filter_map(|c| Some((c, c.change?)));
        let worst = changes().min_by(|a, b| a.1.mean.total_cmp(&b.1.mean));
        if let Some((worst, change)) = worst {
            add(
                format!(
                    "{} does not significantly lose more than {:.0} % on unrelated prompts",
                    one.arm.name(),
                    bounds.forgets_at_most * 100.0
                ),
                changes().all(|(_, c)| c.high + EPSILON >= -bounds.forgets_at_most),
                format!("worst: {}, {}", worst.name, signed(change)),
            );
        }
    }
    targets
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
