//! Two arms over scripted endpoints, whose figures are known exactly.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Arm, Cell, PersonalizeOptions, PersonalizeOutcome, TrainingFacts, run_cell};
use crate::client::Endpoint;
use crate::persona::{Student, Track};
use crate::scripted::{Answer, Log, Scripted, keys, message, messages, serve};
use crate::settling::Patience;
use crate::{About, personalize_page, personalize_table};

const SEEDS: [u64; 2] = [5, 6];

fn options(arms: &[Arm]) -> PersonalizeOptions {
    PersonalizeOptions {
        arms: arms.into(),
        tracks: vec![Track::Student],
        first_seed: SEEDS[0],
        seeds: SEEDS.len() as u32,
        concurrency: 1,
        control_draws: 2,
        probes: 3,
        request_limit: Duration::from_secs(20),
        patience: Patience {
            limit: Duration::from_secs(20),
            every: Duration::from_millis(1),
            batch: 16,
        },
        ..PersonalizeOptions::default()
    }
}

/// Formats its first replies until conversations have gone on `patience` times; to prompts that are not this
/// persona's it says `other`.
async fn policy(seed: u64, patience: usize, other: &'static str) -> Scripted {
    let keys = keys(&Student, seed, 60);
    let went_on = |log: &Log| log.bodies.iter().filter(|body| messages(body) >= 3).count();
    let answers = move |body: &Value, log: &Log| {
        let system = usize::from(body.pointer("/messages/0/role") == Some(&json!("system")));
        let Some(answer) = keys.get(message(body, system)) else {
            return Answer::Say(other.to_owned());
        };
        if messages(body) == 1 + system && went_on(log) < patience {
            Answer::Say(format!(
                "**Solution**\n1. Calculate\n2. **Final answer: {answer}**"
            ))
        } else {
            Answer::Say(format!(
                "I worked it out in my head and the result must be {answer}."
            ))
        }
    };
    let healths = move |log: &Log| {
        json!({"judging": {"ready": 0, "running": 0},
               "training": {"queued": 0, "running": false, "steps": went_on(log) / 8}})
    };
    serve(answers, healths).await
}

async fn cell(
    arm: Arm,
    seed: u64,
    patience: usize,
    other: &'static str,
    all: &[Arm],
) -> super::CellRecord {
    let server = policy(seed, patience, other).await;
    let endpoint = Endpoint {
        url: server.url.clone(),
        model: "tiny".into(),
        api_key: None,
    };
    let (sender, _events) = tokio::sync::mpsc::unbounded_channel();
    let cell = Cell {
        arm,
        track: Track::Student,
        seed,
    };
    run_cell(cell, endpoint, &options(all), &sender)
        .await
        .unwrap()
}

/// A frozen arm that formats everything, and one that learns after ten complaints with its first seed and
/// after fourteen with its second.
async fn two_arms() -> PersonalizeOutcome {
    let arms = [Arm::Control, Arm::Hybrid];
    let mut cells = Vec::new();
    // The order in which cells end must not matter.
    for (seed, patience) in [(SEEDS[1], 28), (SEEDS[0], 20)] {
        let mut learned = cell(Arm::Hybrid, seed, patience, "I do not know!", &arms).await;
        learned.training = TrainingFacts {
            kl: Some(0.25),
            entropy_first: Some(0.5),
            entropy_last: Some(0.375),
            tokens: 100,
            rewarded: 12,
            hinted: 9,
            served_against_trained: Some(1e-7),
        };
        cells.push(learned);
        cells.push(
            cell(
                Arm::Control,
                seed,
                usize::MAX,
                "It is fine, ask me about sums.",
                &arms,
            )
            .await,
        );
    }
    PersonalizeOutcome::new(options(&arms), cells, Vec::new(), false, 12.34)
}

#[tokio::test]
async fn two_scripted_arms_have_exactly_these_figures() {
    let outcome = two_arms().await;
    let control = outcome.figures(Arm::Control, Track::Student).unwrap();
    let hybrid = outcome.figures(Arm::Hybrid, Track::Student).unwrap();
    assert_eq!(control.seeds, SEEDS);
    assert_eq!(control.at_mark, [Some(0.0), Some(0.0)]);
    assert_eq!(control.align, [None, None]);

    // Each conversation that is not what the student wants costs two requests of three messages and more: the
    // complaint and the thanks. So ten conversations with the first seed are formatted, fourteen with the other.
    assert_eq!(hybrid.first, [Some(2.0 / 12.0), Some(0.0)]);
    assert_eq!(hybrid.at_mark, [Some(1.0), Some(1.0)]);
    assert_eq!(hybrid.align, [Some(13), Some(17)]);
    assert_eq!(hybrid.first_window().unwrap().mean, 1.0 / 12.0);
    let lead = hybrid.lead_over(&control).unwrap();
    assert_eq!((lead.mean, lead.low, lead.high), (1.0, 1.0, 1.0));

    let clean = |f: &super::Figures| {
        let found = f.changes.iter().find(|c| c.name == "small-talk: clean");
        found.map(|c| (c.base, c.after, c.change.map(|e| e.mean)))
    };
    assert_eq!(clean(&hybrid), Some((Some(1.0), 1.0, Some(0.0))));
    let terse = hybrid
        .changes
        .iter()
        .find(|c| c.name == "grading-first: terse");
    assert_eq!(terse.map(|c| (c.base, c.after)), Some((Some(1.0), 1.0)));
    assert_eq!(hybrid.failed_requests, 0);
}

#[tokio::test]
async fn the_line_has_the_promised_shape_and_figures() {
    let outcome = two_arms().await;
    let line = outcome.json();
    for (at, expected) in [
        ("/arms/control/student/first12", json!(0.0)),
        ("/arms/control/student/align", json!([null, null])),
        ("/arms/hybrid/student/first12", json!(0.0833)),
        ("/arms/hybrid/student/at36", json!(1.0)),
        ("/arms/hybrid/student/at36_interval", json!([1.0, 1.0])),
        ("/arms/hybrid/student/at36_seeds", json!([1.0, 1.0])),
        ("/arms/hybrid/student/align", json!([13, 17])),
        ("/arms/hybrid/student/kl", json!([0.25, 0.25])),
        ("/arms/hybrid/student/kl_interval", json!([0.25, 0.25])),
        ("/arms/hybrid/student/tokens", json!([100, 100])),
        ("/arms/hybrid/student/hinted", json!([9, 9])),
        ("/arms/hybrid/student/last12", json!(1.0)),
        ("/seeds", json!(2)),
        ("/seconds", json!(12.3)),
        ("/conversations", json!({"student": 36})),
        ("/interrupted", json!(false)),
    ] {
        assert_eq!(line.pointer(at), Some(&expected), "{at}");
    }
    assert!(line.pointer("/arms/hybrid/teacher").is_none());
    assert!(!line.to_string().contains('\n'));
    assert!(outcome.holds(), "{:#?}", outcome.aims());
}

#[tokio::test]
async fn table_and_page_say_what_the_figures_say() {
    let mut outcome = two_arms().await;
    let table = personalize_table(&outcome);
    for said in [
        "student: 36 conversations, seeds 5–6",
        "hybrid   0.08 (0.00 … 0.17)  1.00 (1.00 … 1.00)  1.00 1.00  13 17",
        "0.250 (0.250 … 0.250)  0.500 → 0.375 (0.375 … 0.375)",
        "holds  hybrid beats control, intervals apart",
    ] {
        assert!(table.contains(said), "{said}\n{table}");
    }
    assert!(!table.contains("DOES NOT HOLD"), "{table}");
    let page = personalize_page(&outcome, &About::default());
    assert!(page.contains("<svg") && page.contains("<polygon") && page.contains("Qwen3-4B"));
    assert!(!page.contains("<script") && !page.contains("127.0.0.1"));

    // Without a gain the promises break, and with nothing at all there is nothing to say.
    let wanted = |r: &super::CellRecord| r.cell.arm == Arm::Control;
    outcome.cells.retain(wanted);
    for mut record in outcome.cells.clone() {
        record.cell.arm = Arm::Hybrid;
        outcome.cells.push(record);
    }
    assert!(!outcome.holds());
    let table = personalize_table(&outcome);
    assert!(
        table.contains(
            "DOES NOT HOLD  hybrid scores at least 0.80 within 36 conversations on every seed"
        ),
        "{table}"
    );
    outcome.cells.clear();
    outcome.interrupted = true;
    let table = personalize_table(&outcome);
    assert!(table.contains("Interrupted") && table.contains("nothing has ended yet"));
}

#[tokio::test]
async fn a_memory_is_told_from_the_second_round_on() {
    let arms = [Arm::Memory];
    let server = policy(SEEDS[0], usize::MAX, "").await;
    let endpoint = Endpoint {
        url: server.url.clone(),
        model: "tiny".into(),
        api_key: None,
    };
    let mut options = options(&arms);
    options.conversations = Some(3);
    options.remembered = 1;
    options.control_draws = 1;
    let cell = Cell {
        arm: Arm::Memory,
        track: Track::Student,
        seed: SEEDS[0],
    };
    let (sender, _events) = tokio::sync::mpsc::unbounded_channel();
    let record = run_cell(cell, endpoint, &options, &sender).await.unwrap();
    assert!(record.probes.is_empty());
    let log = server.log.lock().unwrap();
    let systems: Vec<Option<&str>> = log
        .bodies
        .iter()
        .filter(|body| messages(body) <= 2)
        .map(|body| {
            let first = body.pointer("/messages/0")?;
            let system = first.get("role").is_some_and(|role| role == "system");
            system.then(|| first.get("content")?.as_str()).flatten()
        })
        .collect();
    assert_eq!(systems.len(), 3);
    assert_eq!(systems[0], None);
    for (at, system) in systems.iter().enumerate().skip(1) {
        let complaint = &record.talk.conversations[at - 1].reactions[0];
        assert!(
            system.is_some_and(|text| text.ends_with(complaint.as_str())),
            "{system:?}"
        );
    }
}
