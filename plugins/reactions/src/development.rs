//! The figures on the two development sets of `benches/reactions`. They must not fall. The held-out half measures whether
//! the rules generalise; `clawhost eval judge` prints both by language and by kind.

use crate::{of_tools, of_user, spoken};

struct Item {
    group: String,
    label: i64,
    hint: bool,
}

/// The items of a set, each with the score and whether a hint was found.
fn judged(set: &str) -> Vec<(Item, i64, bool)> {
    let path = format!(
        "{}/../../benches/reactions/{set}.jsonl",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| {
            let item: serde_json::Value = serde_json::from_str(line).unwrap();
            let of = |key: &str| item[key].as_str().unwrap_or_default();
            let (reaction, reply) = (of("reaction"), of("reply"));
            let read = if of("role") == "tool" {
                of_tools(&[reaction.to_owned()], reply)
            } else {
                of_user(&spoken(reaction, reply), &spoken(of("request"), ""), reply)
            };
            let score = read
                .as_ref()
                .map_or(0, |read| if read.score > 0.0 { 1 } else { -1 });
            let hint = read.as_ref().is_some_and(|read| read.is_concrete);
            let group = if of("language") == "en" {
                "en"
            } else {
                "other"
            };
            let item = Item {
                group: group.to_owned(),
                label: item["label"].as_i64().unwrap(),
                hint: item["hint"].as_bool().unwrap_or_default(),
            };
            (item, score, hint)
        })
        .collect()
}

fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// The set, the languages and the label, with the least precision and recall.
type Floor = (&'static str, &'static str, i64, (f64, f64));

/// Precision and recall that the rules reach with a margin.
const FLOORS: &[Floor] = &[
    ("development", "en", -1, (0.95, 0.9)),
    ("development", "en", 1, (0.95, 0.9)),
    ("development", "other", -1, (0.95, 0.9)),
    ("development", "other", 1, (0.93, 0.9)),
    ("fresh", "en", -1, (0.95, 0.8)),
    ("fresh", "en", 1, (0.9, 0.8)),
    ("fresh", "other", -1, (0.95, 0.8)),
    ("fresh", "other", 1, (0.93, 0.85)),
];

#[test]
fn precision_and_recall_do_not_fall() {
    let mut below = Vec::new();
    for (set, group, sign, floor) in FLOORS {
        let judged = judged(set);
        let count = |test: &dyn Fn(i64, i64) -> bool| {
            judged
                .iter()
                .filter(|(item, score, _)| item.group == *group && test(item.label, *score))
                .count()
        };
        let both = count(&|label, score| label == *sign && score == *sign);
        let precision = share(both, count(&|_, score| score == *sign));
        let recall = share(both, count(&|label, _| label == *sign));
        println!("{set} {group} {sign:+}: precision {precision:.3}, recall {recall:.3}");
        if precision < floor.0 || recall < floor.1 {
            below.push(format!(
                "{set} {group} {sign:+}: {precision:.3} {recall:.3}"
            ));
        }
    }
    assert!(below.is_empty(), "{}", below.join("\n"));
}

#[test]
fn hints_are_found_where_something_can_be_changed() {
    for set in ["development", "fresh"] {
        let judged = judged(set);
        let count = |test: &dyn Fn(bool, bool) -> bool| {
            judged
                .iter()
                .filter(|(item, _, hint)| test(item.hint, *hint))
                .count()
        };
        let both = count(&|labelled, found| labelled && found);
        let precision = share(both, count(&|_, found| found));
        let recall = share(both, count(&|labelled, _| labelled));
        println!("{set} hints: precision {precision:.3}, recall {recall:.3}");
        assert!(precision >= 0.85 && recall >= 0.8);
    }
}

#[test]
fn wishes_about_form_are_read_as_such_and_closing_words_as_praise() {
    let reply =
        "Choose a shady place first. Then layer greens and browns, and turn the heap every week.";
    let score = |text: &str| {
        of_user(text, "How do I start a compost heap?", reply).map(|reading| reading.score)
    };
    for text in [
        "I stopped reading halfway. Please answer with just one brief sentence.",
        "I don't know those units. Metric units, please.",
        "I think in metres, kilograms and Celsius. Can you use those?",
        "I would like your answers in Spanish.",
        "Please address me as Robin in your answer.",
        "That closes the talk. Could you finish with a question for me?",
    ] {
        assert_eq!(score(text), Some(-1.0), "{text}");
    }
    let text = "Perfect, that is all I wanted to know.";
    assert_eq!(score(text), Some(1.0), "{text}");
}
