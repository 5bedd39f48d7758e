//! The result of the evaluation and its JSON form.

use serde_json::{Map, Value, json};

use super::cell::CellRecord;
use super::figures::Figures;
use super::plan::{Arm, PersonalizeOptions};
use super::targets::{Target, targets};
use crate::persona::Track;
use crate::statistics::Estimate;

/// All finished cells.
#[derive(Debug, Clone, PartialEq)]
pub struct PersonalizeOutcome {
    /// Options of the run.
    pub options: PersonalizeOptions,
    /// The finished cells, in the order of arms, personas and seeds.
    pub cells: Vec<CellRecord>,
    /// Failed cells, with the reason.
    pub failed: Vec<String>,
    /// Whether the run was interrupted before all cells finished.
    pub interrupted: bool,
    /// Total wall time in seconds.
    pub seconds: f64,
}

impl PersonalizeOutcome {
    /// Sorts the records, which may be in any order.
    pub fn new(
        options: PersonalizeOptions,
        mut cells: Vec<CellRecord>,
        failed: Vec<String>,
        interrupted: bool,
        seconds: f64,
    ) -> PersonalizeOutcome {
        cells.sort_by_key(|record| record.cell);
        PersonalizeOutcome {
            options,
            cells,
            failed,
            interrupted,
            seconds,
        }
    }

    /// The records of one arm with one persona, by seed.
    pub fn cells_of(&self, arm: Arm, track: Track) -> impl Iterator<Item = &CellRecord> {
        let matches = move |r: &&CellRecord| r.cell.arm == arm && r.cell.track == track;
        self.cells.iter().filter(matches)
    }

    /// The figures of one arm with one persona; `None` without finished cells.
    pub fn figures(&self, arm: Arm, track: Track) -> Option<Figures> {
        Figures::new(self, arm, track)
    }

    /// The targets and whether they are met.
    pub fn targets(&self) -> Vec<Target> {
        targets(self)
    }

    /// Whether all cells finished and all targets are met.
    pub fn all_targets_met(&self) -> bool {
        self.failed.is_empty()
            && !self.interrupted
            && self.targets().iter().all(|target| target.met)
    }

    /// The result as a JSON object.
    pub fn json(&self) -> Value {
        let options = &self.options;
        let mut arms = Map::new();
        for arm in &options.arms {
            let mut tracks = Map::new();
            for track in &options.tracks {
                if let Some(figures) = self.figures(*arm, *track) {
                    let reached = options.mark(*track) == track.mark();
                    tracks.insert(track.name().to_owned(), figures_json(&figures, reached));
                }
            }
            arms.insert(arm.name().to_owned(), Value::Object(tracks));
        }
        let conversations: Map<String, Value> = options
            .tracks
            .iter()
            .map(|track| {
                (
                    track.name().to_owned(),
                    json!(options.conversations(*track)),
                )
            })
            .collect();
        let targets: Vec<Value> = self
            .targets()
            .into_iter()
            .map(|target| {
                json!({"persona": target.track.name(), "aim": target.description, "holds": target.met, "found": target.measured})
            })
            .collect();
        json!({
            "arms": arms,
            "seeds": options.seeds,
            "seconds": (self.seconds * 10.0).round() / 10.0,
            "first_seed": options.first_seed,
            "conversations": conversations,
            "concurrency": options.concurrency,
            "control_draws": options.control_draws,
            "probes": options.probes,
            "aims": targets,
            "failed": self.failed,
            "interrupted": self.interrupted,
        })
    }
}

/// `reached` is whether as many conversations were run as the target is stated for; otherwise there is no score at that
/// number.
fn figures_json(figures: &Figures, reached: bool) -> Value {
    let at = format!("at{}", figures.track.mark());
    let missing = vec![None; figures.seeds.len()];
    let at_mark = if reached { &figures.at_mark } else { &missing };
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| {
        fields.insert(name.to_owned(), value);
    };
    for (name, values) in [
        ("first12", &figures.first),
        (at.as_str(), at_mark),
        ("last12", &figures.last),
    ] {
        let estimate = figures.over_seeds(values);
        put(name, estimate.map_or(Value::Null, |e| rounded(e.mean)));
        put(&format!("{name}_interval"), interval(estimate));
        put(&format!("{name}_seeds"), rounded_list(values));
    }
    put("align", json!(figures.align));
    put("steps", json!(figures.steps));
    put("tokens", json!(figures.tokens));
    put("rewarded", json!(figures.rewarded));
    put("hinted", json!(figures.hinted));
    put(
        "seconds",
        figures.seconds.iter().map(|s| rounded(*s)).collect(),
    );
    for (name, values) in [
        ("kl", &figures.kl),
        ("entropy_first", &figures.entropy_first),
        ("entropy_last", &figures.entropy_last),
        ("length_drift", &figures.length_drift),
    ] {
        put(name, rounded_list(values));
        put(
            &format!("{name}_interval"),
            interval(figures.over_seeds(values)),
        );
    }
    put(
        "served_against_trained",
        json!(figures.served_against_trained),
    );
    put("failed_requests", json!(figures.failed_requests));
    let forgetting: Vec<Value> = figures
        .changes
        .iter()
        .map(|change| {
            json!({
                "probe": change.name,
                "base": change.base.map(rounded),
                "after": rounded(change.after),
                "change": change.change.map(|e| rounded(e.mean)),
                "interval": interval(change.change),
            })
        })
        .collect();
    put("forgetting", json!(forgetting));
    Value::Object(fields)
}

/// Four decimals are significant.
fn rounded(value: f64) -> Value {
    json!((value * 1e4).round() / 1e4)
}

fn rounded_list(values: &[Option<f64>]) -> Value {
    let rounded = |value: &Option<f64>| value.map_or(Value::Null, rounded);
    values.iter().map(rounded).collect()
}

fn interval(estimate: Option<Estimate>) -> Value {
    estimate.map_or(Value::Null, |e| json!([rounded(e.low), rounded(e.high)]))
}
