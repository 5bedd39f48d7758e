//! The targets of the evaluation, and whether they are met.

use super::arm::Arm;
use super::figures::Figures;
use super::outcome::PersonalizeOutcome;
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

impl PersonalizeOutcome {
    /// All targets that can be checked with the finished cells, and whether they are met.
    pub fn targets(&self) -> Vec<Target> {
        let tracks = self.options.tracks.iter();
        tracks
            .flat_map(|track| track_targets(self, *track))
            .collect()
    }

    /// Whether all cells finished and all targets are met.
    pub fn all_targets_met(&self) -> bool {
        self.failed.is_empty()
            && !self.interrupted
            && self.targets().iter().all(|target| target.met)
    }
}

/// Collects the targets of one persona.
struct Targets {
    track: Track,
    targets: Vec<Target>,
}

impl Targets {
    fn add(&mut self, description: String, met: bool, measured: String) {
        let track = self.track;
        self.targets.push(Target {
            track,
            description,
            met,
            measured,
        });
    }

    /// Adds a target that a paired difference is significantly positive.
    fn add_significant(&mut self, description: String, lead: Estimate) {
        let measured = format!("{} paired by seed", signed(lead));
        self.add(description, lead.low > 0.0, measured);
    }
}

fn track_targets(outcome: &PersonalizeOutcome, track: Track) -> Vec<Target> {
    let arms = outcome.options.arms.iter();
    let all: Vec<Figures> = arms
        .filter_map(|arm| outcome.figures(*arm, track))
        .collect();
    let learning: Vec<&Figures> = all.iter().filter(|figures| figures.arm.trains()).collect();
    let control = all.iter().find(|figures| figures.arm == Arm::CONTROL);
    let mut targets = Targets {
        track,
        targets: Vec::new(),
    };
    // The opposite of a wish may be the frozen model's default: then it starts high.
    if let Some(control) = control.filter(|_| !matches!(track, Track::Opposite(_))) {
        control_targets(&mut targets, control, outcome);
    }
    match track.wish() {
        None => hybrid_targets(&mut targets, &learning, outcome),
        Some(_) => wish_target(&mut targets, &learning, control, outcome),
    }
    for one in &learning {
        if let Some(control) = control {
            control_lead_targets(&mut targets, one, control, outcome);
        }
        if let Some(lead) = one.lead_over_other_adapter() {
            targets.add_significant(
                format!(
                    "{} scores significantly more with the person's own adapter than with the other's",
                    one.arm.name()
                ),
                lead,
            );
        }
    }
    for one in &learning {
        forgetting_targets(&mut targets, one, outcome);
    }
    targets.targets
}

/// How an arm compares with the frozen model. Where the person wants the opposite in the end, that may be the frozen model's
/// default, which the arm must not fall behind.
fn control_lead_targets(
    targets: &mut Targets,
    one: &Figures,
    control: &Figures,
    outcome: &PersonalizeOutcome,
) {
    let limit = outcome.options.bounds.latest_wish_loses_at_most;
    let arm = one.arm.name();
    if let Track::TakenBack(_) = targets.track
        && let Some(lead) = one.lead_by(control, |figures| &figures.at_mark)
    {
        let description =
            format!("{arm} scores significantly more than control before the wish is taken back");
        targets.add_significant(description, lead);
    }
    let Some(lead) = one.lead_over(control) else {
        return;
    };
    match targets.track {
        Track::TakenBack(_) => targets.add(
            format!(
                "{arm} follows the latest wish: at most {:.0} % less than control, with confidence",
                limit * 100.0
            ),
            keeps(Some(lead), limit),
            format!("{} paired by seed", signed(lead)),
        ),
        Track::Opposite(_) => {}
        _ => targets.add_significant(
            format!("{arm} scores significantly more than control"),
            lead,
        ),
    }
}

/// There is something to learn, and the frozen model does not change.
fn control_targets(targets: &mut Targets, control: &Figures, outcome: &PersonalizeOutcome) {
    let bounds = outcome.options.bounds;
    let (Some(first), Some(last)) = (control.first_window(), control.mark_window()) else {
        return;
    };
    let difference = (last.mean - first.mean).abs();
    targets.add(
        format!(
            "the frozen model starts at {:.2} or less",
            bounds.from_at_most
        ),
        first.mean <= bounds.from_at_most + EPSILON,
        format!("{:.2} in the first window", first.mean),
    );
    targets.add(
        format!("its windows differ by at most {:.2}", bounds.control_within),
        difference <= bounds.control_within + EPSILON,
        format!("{difference:.2}"),
    );
}

/// Whether the score of every seed is at least the bound, and the scores as text.
fn reaches(scores: &[Option<f64>], bound: f64) -> (bool, String) {
    let reached = |score: &Option<f64>| score.is_some_and(|v| v + EPSILON >= bound);
    let text: Vec<String> = scores.iter().map(|v| number(*v)).collect();
    (scores.iter().all(reached), text.join(" "))
}

/// Where the score after training comes from.
fn measured_on(outcome: &PersonalizeOutcome, track: Track) -> String {
    let (fresh, mark) = (outcome.options.fresh, outcome.options.mark(track));
    match fresh {
        0 => format!("within {mark} conversations"),
        _ => format!(
            "on {fresh} fresh tasks after {} conversations",
            outcome.options.conversations(track)
        ),
    }
}

fn hybrid_targets(targets: &mut Targets, learning: &[&Figures], outcome: &PersonalizeOutcome) {
    let of_arm = |arm| learning.iter().find(|figures| figures.arm == arm);
    let Some(hybrid) = of_arm(Arm::HYBRID) else {
        return;
    };
    let bound = outcome.options.bounds.at_least;
    let (reached, scores) = reaches(hybrid.after(), bound);
    let on = measured_on(outcome, hybrid.track);
    targets.add(
        format!("hybrid scores at least {bound:.2} {on} on every seed"),
        reached,
        scores,
    );
    for other in [Arm::BINARY, Arm::OPD] {
        if let Some(lead) = of_arm(other).and_then(|other| hybrid.lead_over(other)) {
            targets.add(
                format!("hybrid is not significantly worse than {}", other.name()),
                lead.high + EPSILON >= 0.0,
                format!("{} paired by seed", signed(lead)),
            );
        }
    }
}

/// The numbers together: replies have the form of the wish by default and are as often about the question as the frozen
/// model's, and an explicit request for the opposite still wins.
fn wish_target(
    targets: &mut Targets,
    learning: &[&Figures],
    control: Option<&Figures>,
    outcome: &PersonalizeOutcome,
) {
    if learning.is_empty() {
        return;
    }
    let bounds = outcome.options.bounds;
    let reached = learning.iter().filter(|one| {
        let keeps = one
            .opposite()
            .is_none_or(|change| keeps(change.change, bounds.opposite_loses_at_most));
        let answers = control.is_none_or(|control| answers_as_often(one, control, outcome));
        reaches(&one.style, bounds.at_least).0 && answers && keeps
    });
    let names: Vec<&str> = reached.map(|one| one.arm.name()).collect();
    let on = measured_on(outcome, targets.track);
    let wish = match targets.track {
        Track::TakenBack(_) => "the latest wish",
        Track::Opposite(_) => "the opposite of the wish",
        _ => "the wish",
    };
    targets.add(
        format!(
            "an arm has the form of {wish} at {:.2} or more {on} on every seed, answers as often, and still follows explicit requests",
            bounds.at_least
        ),
        !names.is_empty(),
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        },
    );
}

/// Whether the share of replies about the question is not below that of the frozen model by more than the limit.
fn answers_as_often(one: &Figures, control: &Figures, outcome: &PersonalizeOutcome) -> bool {
    let share = |figures: &Figures| figures.score_over_seeds(&figures.correctness);
    match (share(one), share(control)) {
        (Some(own), Some(base)) => {
            let kept = 1.0 - outcome.options.bounds.answers_lose_at_most;
            own.mean + EPSILON >= base.mean * kept
        }
        _ => false,
    }
}

fn forgetting_targets(targets: &mut Targets, one: &Figures, outcome: &PersonalizeOutcome) {
    let bounds = outcome.options.bounds;
    let arm = one.arm.name();
    if let Some(opposite) = one.opposite()
        && let Some(change) = opposite.change
    {
        let limit = bounds.opposite_loses_at_most;
        targets.add(
            format!(
                "{arm} follows {} at most {:.0} % less, with confidence",
                opposite.name,
                limit * 100.0
            ),
            keeps(Some(change), limit),
            signed(change),
        );
    }
    if let Some(skills) = one.skills {
        let limit = bounds.forgets_at_most;
        let probes = one
            .changes
            .iter()
            .filter(|change| change.counts && !change.opposite);
        let changes = probes.filter_map(|probe| Some((probe, probe.change?)));
        let worst = changes.min_by(|a, b| a.1.mean.total_cmp(&b.1.mean));
        let worst = worst.map_or_else(String::new, |(probe, change)| {
            format!("; worst: {}, {}", probe.name, signed(change))
        });
        targets.add(
            format!(
                "{arm} loses at most {:.0} % on unrelated prompts, with confidence",
                limit * 100.0
            ),
            keeps(Some(skills), limit),
            format!("{}{worst}", signed(skills)),
        );
    }
}

/// Whether the lower end of a change shows that no more than `limit` was lost. Without an interval nothing is shown.
fn keeps(change: Option<Estimate>, limit: f64) -> bool {
    change.is_some_and(|change| change.low + EPSILON >= -limit)
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "no reply".to_owned(), |v| format!("{v:.2}"))
}

/// `+0.03 (-0.01 … +0.08)`
fn signed(estimate: Estimate) -> String {
    if !estimate.has_interval() {
        return format!("{:+.2} (one seed, no interval)", estimate.mean);
    }
    format!(
        "{:+.2} ({:+.2} … {:+.2})",
        estimate.mean, estimate.low, estimate.high
    )
}
