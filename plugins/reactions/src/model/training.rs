//! Writes the features of the English reactions of `benches/reactions` for `train.py`, which makes the weights.

use std::fmt::Write;

use super::features::each;
use crate::quotations::is_question;
use crate::spoken;

/// One reaction to train with.
struct Example {
    id: String,
    kind: String,
    label: i64,
    texts: [String; 3],
}

fn read(name: &str) -> String {
    let path = format!(
        "{}/../../benches/reactions/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read_to_string(path).unwrap()
}

fn items(set: &str) -> Vec<Example> {
    let read = read(&format!("{set}.jsonl"));
    let items = read.lines().map(|line| serde_json::from_str(line).unwrap());
    items
        .filter(|item: &serde_json::Value| item["language"] == "en" && item["role"] == "user")
        .map(|item| {
            let of = |key: &str| item[key].as_str().unwrap().to_owned();
            Example {
                id: of("id"),
                kind: of("kind"),
                label: item["label"].as_i64().unwrap(),
                texts: [of("reaction"), of("request"), of("reply")],
            }
        })
        .collect()
}

/// The phrases, each after the request and the reply of some item: of one whose reply asks something if the phrase is an
/// answer, and of one whose reply asks nothing otherwise.
fn phrases(name: &str, label: i64, items: &[Example]) -> Vec<Example> {
    let mut kind = String::new();
    let mut examples = Vec::new();
    for (number, line) in read(&format!("phrases/{name}.txt")).lines().enumerate() {
        if let Some(heading) = line.strip_prefix("# ") {
            kind = heading.to_owned();
            continue;
        }
        let fits = |item: &&Example| is_question(&item.texts[2]) == (kind == "answer");
        let fitting: Vec<&Example> = items.iter().filter(fits).collect();
        let [_, request, reply] = &fitting[number * 7 % fitting.len()].texts;
        examples.push(Example {
            id: format!("phrase-{name}-{number}"),
            kind: kind.clone(),
            label,
            texts: [line.to_owned(), request.clone(), reply.clone()],
        });
    }
    examples
}

/// Phrases that need their request and reply.
fn with_context(file: &str) -> Vec<Example> {
    let read = read(&format!("phrases/{file}.jsonl"));
    let items = read.lines().map(|line| serde_json::from_str(line).unwrap());
    items
        .enumerate()
        .map(|(number, item): (usize, serde_json::Value)| {
            let of = |key: &str| item[key].as_str().unwrap().to_owned();
            Example {
                id: format!("{file}-{number}"),
                kind: of("kind"),
                label: item["label"].as_i64().unwrap(),
                texts: [of("reaction"), of("request"), of("reply")],
            }
        })
        .collect()
}

#[test]
#[ignore = "writes a file for the training script"]
fn features() {
    let mut examples = items("development");
    examples.extend(items("fresh"));
    let mut all = phrases("for", 1, &examples);
    all.extend(phrases("against", -1, &examples));
    all.extend(phrases("neither", 0, &examples));
    all.extend(with_context("context"));
    all.extend(with_context("cases"));
    all.extend(examples);
    all.extend(items("wild"));
    let mut lines = String::new();
    for example in &all {
        let [reaction, request, reply] = &example.texts;
        let (text, request) = (spoken(reaction, reply), spoken(request, ""));
        let mut names = Vec::new();
        let mut rules = (0.0, String::new());
        if let Some(seen) = crate::spoken::see(&text, &request, reply) {
            each(&seen, &text, &request, reply, &mut |pieces| {
                names.push(pieces.concat())
            });
            rules = seen.reading.map_or(rules, |read| (read.score, read.reason));
        }
        let line = serde_json::json!({
            "id": example.id, "kind": example.kind, "label": example.label, "features": names, "rules": rules.0,
            "reason": rules.1, "unseen": crate::development::is_unseen(&example.id),
        });
        writeln!(lines, "{line}").unwrap();
    }
    std::fs::write(std::env::var("REACTIONS_FEATURES").unwrap(), lines).unwrap();
}
