//! What came out, and its one line of JSON.

use serde_json::{Map, Value, json};

use super::aims::{Aim, aims};
use super::cell::CellRecord;
use super::figures::Figures;
use super::plan::{Arm, PersonalizeOptions};
use crate::persona::Track;
use crate::statistics::Estimate;

/// All cells that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct PersonalizeOutcome {
    /// The options that it was run with.
    pub options: PersonalizeOptions,
    /// The cells that ended, in the order of arms, personas and seeds.
    pub cells: Vec<CellRecord>,
    /// Cells that broke off, with the reason.
    pub failed: Vec<String>,
    /// Whether somebody stopped it before all cells had ended.
    pub interrupted: bool,
    /// Wall time of everything, in seconds.
    pub seconds: f64,
}

impl PersonalizeOutcome {
    /// Of these records, whatever order they ended in.
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
    pub fn of(&self, arm: Arm, track: Track) -> impl Iterator<Item = &CellRecord> {
        let wanted = move |r: &&CellRecord| r.cell.arm == arm && r.cell.track == track;
        self.cells.iter().filter(wanted)
    }

    /// The figures of one arm with one persona; `None` when no cell of it ended.
    pub fn figures(&self, arm: Arm, track: Track) -> Option<Figures> {
        Figures::of(self, arm, track)
    }

    /// What was promised, and whether it holds.
    pub fn aims(&self) -> Vec<Aim> {
        aims(self)
    }

    /// Whether all cells ended and every promise holds.
    pub fn holds(&self) -> bool {
        self.failed.is_empty() && !self.interrupted && self.aims().iter().all(|aim| aim.holds)
    }

    /// The machine-readable result: one object for one line.
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
        let aims: Vec<Value> = self
            .aims()
            .into_iter()
            .map(|aim| {
                json!({"persona": aim.track.name(), "aim": aim.says, "holds": aim.holds, "found": aim.found})
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
            "aims": aims,
            "failed": self.failed,
            "interrupted": self.interrupted,
        })
    }
}

/// `reached` says whether as many conversations were held as the aim is stated for; where fewer were, there
/// is no score at that number.
fn figures_json(figures: &Figures, reached: bool) -> Value {
    let at = format!("at{}", figures.track.mark());
    let nothing = vec![None; figures.seeds.len()];
    let at_mark = if reached { &figures.at_mark } else { &nothing };
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| {
        fields.insert(name.to_owned(), value);
    };
    for (name, values) in [
        ("first12", &figures.first),
        (at.as_str(), at_mark),
        ("last12", &figures.last),
    ] {
        let over = figures.over_seeds(values);
        put(name, over.map_or(Value::Null, |e| short(e.mean)));
        put(&format!("{name}_interval"), interval(over));
        put(&format!("{name}_seeds"), shorts(values));
    }
    put("align", json!(figures.align));
    put("steps", json!(figures.steps));
    put("tokens", json!(figures.tokens));
    put("rewarded", json!(figures.rewarded));
    put("hinted", json!(figures.hinted));
    put(
        "seconds",
        figures.seconds.iter().map(|s| short(*s)).collect(),
    );
    for (name, values) in [
        ("kl", &figures.kl),
        ("entropy_first", &figures.entropy_first),
        ("entropy_last", &figures.entropy_last),
        ("length_drift", &figures.length_drift),
    ] {
        put(name, shorts(values));
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
                "base": change.base.map(short),
                "after": short(change.after),
                "change": change.change.map(|e| short(e.mean)),
                "interval": interval(change.change),
            })
        })
        .collect();
    put("forgetting", json!(forgetting));
    Value::Object(fields)
}

/// Four decimals: more would pretend.
fn short(value: f64) -> Value {
    json!((value * 1e4).round() / 1e4)
}

fn shorts(values: &[Option<f64>]) -> Value {
    let short = |value: &Option<f64>| value.map_or(Value::Null, short);
    values.iter().map(short).collect()
}

fn interval(estimate: Option<Estimate>) -> Value {
    estimate.map_or(Value::Null, |e| json!([short(e.low), short(e.high)]))
}
