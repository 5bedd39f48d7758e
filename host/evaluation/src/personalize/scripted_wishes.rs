//! People with wishes and scripted endpoints, whose figures are known exactly.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Arm, Cell, CellRecord, PersonalizeOptions, PersonalizeOutcome, run_cell};
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
        let follow_ups = log.bodies.iter().filter(|body| messages(body) >= 3).count();
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

async fn cell(arm: Arm, track: Track, seed: u64, complaints: usize, obeys: Obeys) -> CellRecord {
    let server = model(complaints, obeys).await;
    let endpoint = Endpoint {
        url: server.url.clone(),
        model: "scripted".into(),
        api_key: None,
    };
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
