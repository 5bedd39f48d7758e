//! People with wishes and scripted endpoints, whose figures are known exactly.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Arm, Cell, CellRecord, PersonalizeOptions, PersonalizeOutcome, run_cell, run_pair};
use crate::client::Endpoint;
use crate::idle::WaitOptions;
use crate::persona::Track;
use crate::scripted::{RequestLog, ScriptedReply, ScriptedServer, message, messages, serve};
use crate::wish::Wish;
use crate::{About, personalize_page, personalize_table};

/// A reply that repeats the question and adds something.
fn short(question: &str) -> String {
    format!(
        "On {} I say green tea",
        question.trim_end_matches(['?', '.'])
    )
}

fn long(question: &str) -> String {
    let words: Vec<String> = (0..100).map(|at| format!("word{at}")).collect();
    format!("{} {}", short(question), words.join(" "))
}

fn options(track: Track) -> PersonalizeOptions {
    PersonalizeOptions {
        arms: vec![Arm::CONTROL, Arm::BINARY, Arm::MEMORY],
        tracks: vec![track],
        seeds: 2,
        concurrency: 1,
        fresh: 16,
        probes: 4,
        wait: WaitOptions {
            timeout: Duration::from_secs(180),
            poll_interval: Duration::from_millis(1),
            batch: 16,
        },
        ..PersonalizeOptions::of_wishes(&[])
    }
}

/// What a scripted model does with explicit requests for length.
#[derive(Clone, Copy, PartialEq)]
enum Obeys {
    Always,
    Never,
}

/// Replies at length until `complaints` of them have arrived, then briefly by default. Follow-ups get what was asked for.
async fn model(complaints: usize, obeys: Obeys) -> ScriptedServer {
    let reply_fn = move |body: &Value, log: &RequestLog| {
        let is_base = body["model"] == "scripted:base";
        let follow_ups = log.bodies.iter().filter(|body| messages(body) >= 3).count();
        let follow_ups = if is_base { 0 } else { follow_ups };
        let last = messages(body) - 1;
        let (text, system) = (
            message(body, last),
            body.pointer("/messages/0/role") == Some(&json!("system")),
        );
        let (asks_long, asks_short) =
            (Wish::Short.is_opposed(text), Wish::Short.is_asked_for(text));
        let short = match (asks_long, asks_short) {
            (true, _) => obeys == Obeys::Never && follow_ups >= complaints,
            (false, true) => true,
            (false, false) => follow_ups >= complaints || system,
        };
        let question = message(body, usize::from(system));
        ScriptedReply::Text(if short {
            self::short(question)
        } else {
            long(question)
        })
    };
    let health_fn = |_: &RequestLog| json!({"judging": {"ready": 0}, "training": {"queued": 0}});
    serve(reply_fn, health_fn).await
}

fn endpoint(server: &ScriptedServer) -> Endpoint {
    Endpoint {
        url: server.url.clone(),
        model: "scripted".into(),
        api_key: None,
    }
}

/// Two people with opposite wishes; `complaints` of the first one teach brevity to the adapter of both, or to that person's.
async fn pair(arm: Arm, complaints: usize) -> [CellRecord; 2] {
    let (first, second) = (
        model(complaints, Obeys::Always).await,
        model(usize::MAX, Obeys::Always).await,
    );
    let (sender, _events) = tokio::sync::mpsc::unbounded_channel();
    let track = Track::OfTwo(Wish::Short);
    let cell = Cell {
        arm,
        track,
        seed: 1,
    };
    let endpoints = match arm.has_one_adapter() {
        true => [endpoint(&first), endpoint(&first)],
        false => [endpoint(&first), endpoint(&second)],
    };
    run_pair(cell, endpoints, &options(track), &sender)
        .await
        .unwrap()
}

async fn cell(arm: Arm, track: Track, seed: u64, complaints: usize, obeys: Obeys) -> CellRecord {
    let endpoint = endpoint(&model(complaints, obeys).await);
    let (sender, _events) = tokio::sync::mpsc::unbounded_channel();
    let cell = Cell { arm, track, seed };
    run_cell(cell, endpoint, &options(track), &sender)
        .await
        .unwrap()
}

async fn outcome(obeys: Obeys) -> PersonalizeOutcome {
    let track = Track::Wish(Wish::Short);
    let mut cells = Vec::new();
    for seed in [1, 2] {
        cells.push(cell(Arm::CONTROL, track, seed, usize::MAX, Obeys::Always).await);
        cells.push(cell(Arm::BINARY, track, seed, 20, obeys).await);
        cells.push(cell(Arm::MEMORY, track, seed, usize::MAX, Obeys::Always).await);
    }
    PersonalizeOutcome::new(options(track), cells, Vec::new(), false, 1.0)
}

#[tokio::test]
async fn the_default_and_the_explicit_request_are_reported_together() {
    let outcome = outcome(Obeys::Always).await;
    let track = Track::Wish(Wish::Short);
    let figures = |arm| outcome.figures(arm, track).unwrap();
    let (control, binary, memory) = (
        figures(Arm::CONTROL),
        figures(Arm::BINARY),
        figures(Arm::MEMORY),
    );
    assert_eq!(control.fresh, [Some(0.0); 2]);
    // Ten conversations with a complaint and thanks each; a missed wish takes two requests of three messages.
    assert_eq!(binary.align, [Some(13); 2]);
    assert_eq!(
        (binary.at_mark.as_slice(), binary.fresh.as_slice()),
        ([Some(1.0); 2].as_slice(), [Some(1.0); 2].as_slice())
    );
    assert_eq!(
        binary.opposite().map(|c| (c.base, c.after)),
        Some((Some(1.0), 1.0))
    );
    // The first conversation has no memory yet.
    assert_eq!(memory.fresh, [Some(1.0); 2]);
    assert_eq!(memory.align, [Some(4); 2]);
    // The scripted model knows nothing, so there is no skill to forget.
    assert!(
        binary
            .changes
            .iter()
            .all(|change| change.opposite || !change.counts)
    );
    assert_eq!(binary.skills, None);
    assert!(outcome.all_targets_met(), "{:#?}", outcome.targets());

    let table = personalize_table(&outcome);
    for expected in [
        "asked for the contrary",
        "16 fresh",
        "base at chance",
        "still follows explicit requests  binary",
    ] {
        assert!(table.contains(expected), "{expected}\n{table}");
    }
    let page = personalize_page(&outcome, &About::default());
    assert!(page.contains("<svg") && page.contains("short: score of the first reply"));
    let line = outcome.json();
    assert_eq!(line.pointer("/arms/binary/short/fresh"), Some(&json!(1.0)));
    assert_eq!(line.pointer("/conversations"), Some(&json!({"short": 36})));
}

#[tokio::test]
async fn a_model_that_ignores_explicit_requests_misses_the_target() {
    let outcome = outcome(Obeys::Never).await;
    let binary = outcome
        .figures(Arm::BINARY, Track::Wish(Wish::Short))
        .unwrap();
    assert_eq!(binary.fresh, [Some(1.0); 2]);
    let opposite = binary.opposite().unwrap();
    assert_eq!(
        (opposite.after, opposite.change.map(|e| e.mean)),
        (0.0, Some(-1.0))
    );
    let targets = outcome.targets();
    let missed: Vec<&str> = targets
        .iter()
        .filter(|t| !t.met)
        .map(|t| t.description.as_str())
        .collect();
    assert_eq!(missed.len(), 2, "{missed:?}");
    assert!(
        missed[0].contains("still follows explicit requests"),
        "{missed:?}"
    );
    assert!(
        missed[1].contains("binary follows the opposite, asked for"),
        "{missed:?}"
    );
}

#[tokio::test]
async fn a_wish_that_is_taken_back_is_learned_again_from_its_opposite() {
    let track = Track::TakenBack(Wish::Short);
    // Never learns: it stays at length, which is what the person wants in the end.
    let record = cell(Arm::CONTROL, track, 1, usize::MAX, Obeys::Always).await;
    assert_eq!(record.arm_record.conversations.len(), 48);
    let values = record.arm_record.values();
    assert_eq!(
        (values[..24].to_vec(), values[24..].to_vec()),
        (vec![0.0; 24], vec![1.0; 24])
    );
    // Learned to be brief and does not come back by itself.
    let stuck = cell(Arm::BINARY, track, 1, 0, Obeys::Always).await;
    assert_eq!(stuck.arm_record.values()[..24], [1.0; 24]);
    assert_eq!(stuck.arm_record.values()[24..], [0.0; 24]);
    let reaction = &stuck.arm_record.conversations[30].reactions[0];
    assert!(Wish::Short.is_opposed(reaction), "{reaction}");
    let outcome =
        PersonalizeOutcome::new(options(track), vec![record, stuck], Vec::new(), false, 1.0);
    let control = outcome.figures(Arm::CONTROL, track).unwrap();
    assert_eq!(
        (control.align.clone(), control.realign.clone()),
        (vec![Some(27)], vec![Some(3)])
    );
    let stuck = outcome.figures(Arm::BINARY, track).unwrap();
    assert_eq!(
        (
            stuck.align.clone(),
            stuck.realign.clone(),
            stuck.fresh.clone()
        ),
        (vec![Some(3)], vec![None], vec![Some(0.0)])
    );
    let targets = outcome.targets();
    let measured = |description: &str| {
        let mut found = targets
            .iter()
            .filter(|t| t.description.contains(description));
        found.next().unwrap().measured.clone()
    };
    let before =
        measured("binary scores significantly more than control before the wish is taken back");
    assert!(before.starts_with("+1.00 (one seed"), "{before}");
    let latest = measured("binary follows the latest wish");
    assert!(latest.starts_with("-1.00 (one seed"), "{latest}");
    let table = personalize_table(&outcome);
    assert!(
        table.contains("again after") && table.contains("taken back after 24 conversations"),
        "{table}"
    );
    assert!(
        outcome
            .json()
            .pointer("/arms/control/short-taken-back/at24")
            .is_some()
    );
}

#[tokio::test]
async fn two_people_are_measured_with_both_adapters_and_the_base_model() {
    let one_adapter = Arm::ALL.into_iter().find(|arm| arm.has_one_adapter());
    let one_adapter = one_adapter.unwrap();
    let (short, long) = (Track::OfTwo(Wish::Short), Track::Opposite(Wish::Short));
    let options = PersonalizeOptions {
        arms: vec![Arm::CONTROL, Arm::BINARY, one_adapter],
        tracks: vec![short, long],
        seeds: 1,
        ..options(short)
    };
    let cells = options.cells();
    assert_eq!(cells.len(), 3, "one server for both");
    assert_eq!(cells[1].name(), "short-of-two-binary-1");
    let mut records = Vec::new();
    records.extend(pair(Arm::CONTROL, usize::MAX).await);
    records.extend(pair(Arm::BINARY, 20).await);
    records.extend(pair(one_adapter, 20).await);
    let outcome = PersonalizeOutcome::new(options, records, Vec::new(), false, 1.0);
    let fresh = |arm, track| {
        let figures = outcome.figures(arm, track).unwrap();
        (
            figures.fresh[0],
            figures.fresh_other[0],
            figures.fresh_base[0],
        )
    };
    let (none, full) = (Some(0.0), Some(1.0));
    assert_eq!(fresh(Arm::CONTROL, short), (none, None, None));
    assert_eq!(fresh(Arm::BINARY, short), (full, none, none));
    assert_eq!(fresh(Arm::BINARY, long), (full, none, full));
    assert_eq!(fresh(one_adapter, long), (none, None, full));
    let own = "own adapter than with the other's";
    let targets = outcome.targets();
    let measured: Vec<(Track, &str)> = targets
        .iter()
        .filter(|target| target.description.contains(own))
        .map(|target| (target.track, target.measured.as_str()))
        .collect();
    assert_eq!(measured.len(), 2, "one adapter has no other");
    for (target, track) in measured.iter().zip([short, long]) {
        assert_eq!(target.0, track);
        assert!(target.1.starts_with("+1.00 (one seed"), "{target:?}");
    }
    let table = personalize_table(&outcome);
    for expected in [
        "shares a server with opposite-of-short",
        "other's adapter",
        "the form of the opposite of the wish",
    ] {
        assert!(table.contains(expected), "{expected}\n{table}");
    }
    let json = outcome.json();
    let figures = &json["arms"]["binary"];
    assert_eq!(figures["opposite-of-short"]["fresh_other"], json!(0.0));
    assert_eq!(figures["short-of-two"]["fresh_base_seeds"], json!([0.0]));
}
