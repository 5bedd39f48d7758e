//! The plots of the operator page.

use std::fmt;

use super::chart::{Plot, Series, Shape, running_mean};
use crate::events::snapshot::Snapshot;
use clawhost_inspect::StepRow;

const NO_VERDICTS: &str = "No verdicts yet.";
const NO_STEPS: &str = "No training steps yet.";

/// A series by step: its name and its value.
type Metric = (&'static str, fn(&StepRow) -> Option<f64>);

/// Writes all plots.
pub(super) fn write(page: &mut String, snapshot: &Snapshot) -> fmt::Result {
    let rewards = &snapshot.records.rewards;
    let numbered = |values: Vec<f64>| {
        let values = values.into_iter().enumerate();
        values
            .map(|(index, value)| ((index + 1) as f64, value))
            .collect()
    };
    plot(
        "Rewards of judged replies",
        "reply",
        NO_VERDICTS,
        vec![
            series(
                "reward",
                Shape::Dots,
                numbered(rewards.iter().map(|reward| f64::from(*reward)).collect()),
            ),
            series("mean", Shape::Line, numbered(running_mean(rewards))),
        ],
    )
    .write(page)?;
    let Some(operator) = &snapshot.operator else {
        return Ok(());
    };
    let steps = &operator.records.steps;
    by_step("Mean reward", steps, &[("mean", |step| step.reward_mean)]).write(page)?;
    by_step(
        "KL divergence",
        steps,
        &[
            ("reference", |step| step.kl_reference),
            ("old", |step| step.kl_old),
        ],
    )
    .write(page)?;
    by_step(
        "Loss",
        steps,
        &[
            ("last", |step| step.loss_last),
            ("first", |step| step.loss_first),
        ],
    )
    .write(page)?;
    by_step(
        "Gradient norm",
        steps,
        &[("norm", |step| step.gradient_norm)],
    )
    .write(page)?;
    let releases = operator.records.releases.iter();
    let mut versions: Vec<(f64, f64)> = releases
        .map(|release| (release.ms as f64, release.version as f64))
        .collect();
    if let Some((_, version)) = versions.last().copied() {
        versions.push((clawhost_journal::now_ms() as f64, version));
    }
    plot(
        "Active adapter version",
        "time",
        "The base model is active.",
        vec![series("version", Shape::Steps, versions)],
    )
    .write(page)
}

fn by_step(title: &'static str, steps: &[StepRow], metrics: &[Metric]) -> Plot {
    let lines = metrics.iter().map(|(name, value)| {
        let points = steps
            .iter()
            .filter_map(|step| Some((step.id.0 as f64, value(step)?)));
        series(name, Shape::Line, points.collect())
    });
    plot(title, "step", NO_STEPS, lines.collect())
}

fn plot(title: &'static str, x: &'static str, empty: &'static str, series: Vec<Series>) -> Plot {
    Plot {
        title,
        x,
        empty,
        series,
    }
}

fn series(name: &'static str, shape: Shape, points: Vec<(f64, f64)>) -> Series {
    Series {
        name,
        shape,
        points,
    }
}
