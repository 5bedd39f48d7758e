//! The result of the evaluation as JSON.

use serde_json::{Map, Value, json};

use super::figures::Figures;
use super::outcome::PersonalizeOutcome;
use crate::statistics::Estimate;

impl PersonalizeOutcome {
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
            "fresh_tasks": options.fresh,
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
        ("fresh", &figures.fresh),
        ("fresh_other", &figures.fresh_other),
        ("fresh_base", &figures.fresh_base),
        ("style", &figures.style),
        ("correctness", &figures.correctness),
    ] {
        let of_two = matches!(name, "fresh_other" | "fresh_base");
        if of_two && figures.track.other().is_none() {
            continue;
        }
        let estimate = figures.score_over_seeds(values);
        put(name, estimate.map_or(Value::Null, |e| rounded(e.mean)));
        put(&format!("{name}_interval"), interval(estimate));
        put(&format!("{name}_seeds"), rounded_list(values));
    }
    put("align", json!(figures.align));
    if !figures.realign.is_empty() {
        put("realign", json!(figures.realign));
    }
    put("prompt_tokens", rounded_list(&figures.prompt_tokens));
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
                "counts": change.counts,
                "opposite": change.opposite,
            })
        })
        .collect();
    put("forgetting", json!(forgetting));
    put(
        "skills",
        figures.skills.map_or(Value::Null, |e| rounded(e.mean)),
    );
    put("skills_interval", interval(figures.skills));
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
    let estimate = estimate.filter(Estimate::has_interval);
    estimate.map_or(Value::Null, |e| json!([rounded(e.low), rounded(e.high)]))
}
