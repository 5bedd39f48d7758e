//! The figures on the development sets of `benches/reactions`. They must not fall. The held-out half measures whether the
//! rules generalise; `clawhost eval judge` prints both by language and by kind.
//!
//! The third set is split by a hash of the id: rules are written with the `wild-tuned` half in sight, the `wild-unseen` half
//! only counts.

use crate::{of_tools, of_user, spoken};

struct Item {
    id: String,
    kind: String,
    group: String,
    label: i64,
    hint: bool,
    reason: String,
}

/// Whether an item of the third set belongs to the half that is not read: FNV-1a of the id, then the mixing of Murmur3, as
/// ids differ in their last bytes only.
pub(crate) fn is_unseen(id: &str) -> bool {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (mixed ^ (mixed >> 33)) & 1 == 1
}

/// The items of a set, each with the score and whether a hint was found.
fn judged(set: &str) -> Vec<(Item, i64, bool)> {
    let (file, half) = set
        .split_once('-')
        .map_or((set, None), |(file, half)| (file, Some(half == "unseen")));
    let path = format!(
        "{}/../../benches/reactions/{file}.jsonl",
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
                id: of("id").to_owned(),
                kind: of("kind").to_owned(),
                group: group.to_owned(),
                label: item["label"].as_i64().unwrap(),
                hint: item["hint"].as_bool().unwrap_or_default(),
                reason: read.map(|read| read.reason).unwrap_or_default(),
            };
            (item, score, hint)
        })
        .filter(|(item, ..)| half.is_none_or(|half| is_unseen(&item.id) == half))
        .collect()
}

fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// The set, the languages and the label, with the least precision and recall.
type Floor = (&'static str, &'static str, i64, (f64, f64));

/// Precision and recall that are reached with a margin.
const FLOORS: &[Floor] = &[
    ("development", "en", -1, (0.97, 0.95)),
    ("development", "en", 1, (0.97, 0.95)),
    ("development", "other", -1, (0.95, 0.9)),
    ("development", "other", 1, (0.93, 0.9)),
    ("fresh", "en", -1, (0.97, 0.95)),
    ("fresh", "en", 1, (0.97, 0.95)),
    ("fresh", "other", -1, (0.95, 0.8)),
    ("fresh", "other", 1, (0.93, 0.85)),
    ("wild-tuned", "en", -1, (0.95, 0.9)),
    ("wild-tuned", "en", 1, (0.95, 0.9)),
    ("wild-unseen", "en", -1, (0.9, 0.63)),
    ("wild-unseen", "en", 1, (0.93, 0.64)),
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

/// Prints how often each kind of each set gets each score: `cargo test -p reactions by_kind -- --nocapture --ignored`.
/// With `REACTIONS_LIST` it lists the wrong items that may be read.
#[test]
#[ignore = "prints a table and checks nothing"]
fn by_kind() {
    for set in ["development", "fresh", "wild-tuned", "wild-unseen"] {
        let mut table = std::collections::BTreeMap::<_, [usize; 3]>::new();
        for (item, score, _) in judged(set) {
            let row = table
                .entry((item.label, item.group.clone(), item.kind.clone()))
                .or_default();
            row[usize::try_from(score + 1).unwrap()] += 1;
            if score != item.label
                && set != "wild-unseen"
                && std::env::var("REACTIONS_LIST").is_ok()
            {
                println!("{} {:+} {:+} {}", item.id, item.label, score, item.reason);
            }
        }
        for ((label, group, kind), [against, none, for_it]) in table {
            println!("{set} {group} {label:+} {kind}: -1 {against}, none {none}, +1 {for_it}");
        }
    }
}

#[test]
fn wishes_about_form_closing_words_and_new_tasks_are_read_as_such() {
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
        "Please turn that into a sonnet that starts with \"Sweet heap\".",
        "Can you tell it as a thriller, starting with \"It was midnight\"?",
        "I want to be addressed as gardener. Please do that.",
        "I changed my mind: old spelling from now on.",
    ] {
        assert_eq!(score(text), Some(-1.0), "{text}");
    }
    let text = "Perfect, that is all I wanted to know.";
    assert_eq!(score(text), Some(1.0), "{text}");
    for text in [
        "Turn these notes into a sonnet: two cats, one moon.",
        "Tell me a fairy tale about a miller.",
        "How do I address a countess in a letter?",
    ] {
        assert_eq!(score(text), None, "{text}");
    }
}
