//! Two arms with scripted endpoints, whose figures are known exactly.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Arm, Cell, PersonalizeOptions, PersonalizeOutcome, TrainingFacts, run_cell};
use crate::client::Endpoint;
use crate::idle::WaitOptions;
use crate::persona::{Student, Track};
use crate::scripted::{RequestLog, ScriptedReply, ScriptedServer, keys, message, messages, serve};
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
        fresh: 8,
        probes: 3,
        request_timeout: Duration::from_secs(180),
        wait: WaitOptions {
            timeout: Duration::from_secs(180),
            poll_interval: Duration::from_millis(1),
            batch: 16,
        },
        ..PersonalizeOptions::default()
    }
}

/// Formats its first replies until `corrections` follow-up requests have arrived; answers prompts of other personas
/// with `other`.
async fn scripted_model(seed: u64, corrections: usize, other: &'static str) -> ScriptedServer {
    let keys = keys(&Student, seed, 60);
    let follow_ups =
        |log: &RequestLog| log.bodies.iter().filter(|body| messages(body) >= 3).count();
    let reply_fn = move |body: &Value, log: &RequestLog| {
        let system = usize::from(body.pointer("/messages/0/role") == Some(&json!("system")));
        let Some(answer) = keys.get(message(body, system)) else {
            return ScriptedReply::Text(other.to_owned());
        };
        if messages(body) == 1 + system && follow_ups(log) < corrections {
            ScriptedReply::Text(format!(
                "**Solution**\n1. Calculate\n2. **Final answer: {answer}**"
            ))
        } else {
            ScriptedReply::Text(format!(
                "I worked it out in my head and the result must be {answer}."
            ))
        }
    };
    let health_fn = move |log: &RequestLog| {
        json!({"judging": {"ready": 0, "running": 0},
               "training": {"queued": 0, "running": false, "steps": follow_ups(log) / 8}})
    };
    serve(reply_fn, health_fn).await
}

async fn cell(
    arm: Arm,
    seed: u64,
    corrections: usize,
    other: &'static str,
    all: &[Arm],
) -> super::CellRecord {
    let server = scripted_model(seed, corrections, other).await;
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

/// A frozen arm that formats everything, and one that learns after ten corrections with its first seed and after
/// fourteen with its second.
async fn two_arms() -> PersonalizeOutcome {
    let arms = [Arm::CONTROL, Arm::HYBRID];
    let mut cells = Vec::new();
    // The order in which cells finish must not matter.
    for (seed, corrections) in [(SEEDS[1], 28), (SEEDS[0], 20)] {
        let mut record = cell(Arm::HYBRID, seed, corrections, "I do not know!", &arms).await;
        record.training = TrainingFacts {
            kl: Some(0.25),
            entropy_first: Some(0.5),
            entropy_last: Some(0.375),
            tokens: 100,
            rewarded: 12,
            hinted: 9,
            served_against_trained: Some(1e-7),
        };
        cells.push(record);
        cells.push(
            cell(
                Arm::CONTROL,
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
async fn figures_of_two_scripted_arms_are_exact() {
    let outcome = two_arms().await;
    let control = outcome.figures(Arm::CONTROL, Track::Student).unwrap();
    let hybrid = outcome.figures(Arm::HYBRID, Track::Student).unwrap();
    assert_eq!(control.seeds, SEEDS);
    assert_eq!(control.at_mark, [Some(0.0), Some(0.0)]);
    assert_eq!(control.align, [None, None]);

    // Each conversation that does not match the preference causes two requests of three messages and more: the
    // correction and the thanks. So ten conversations with the first seed are formatted, fourteen with the other.
    assert_eq!(hybrid.first, [Some(2.0 / 12.0), Some(0.0)]);
    assert_eq!(hybrid.at_mark, [Some(1.0), Some(1.0)]);
    assert_eq!(hybrid.align, [Some(13), Some(17)]);
    assert_eq!(hybrid.first_window().unwrap().mean, 1.0 / 12.0);
    let lead = hybrid.lead_over(&control).unwrap();
    assert_eq!((lead.mean, lead.low, lead.high), (1.0, 1.0, 1.0));
    assert_eq!(
        (control.fresh.as_slice(), hybrid.fresh.as_slice()),
        ([Some(0.0); 2].as_slice(), [Some(1.0); 2].as_slice())
    );

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
async fn the_json_result_has_the_documented_fields_and_figures() {
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
        ("/arms/hybrid/student/fresh", json!(1.0)),
        ("/arms/hybrid/student/fresh_seeds", json!([1.0, 1.0])),
        ("/arms/hybrid/student/skills", json!(0.0)),
        ("/arms/hybrid/student/prompt_tokens", json!([null, null])),
        ("/fresh_tasks", json!(8)),
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
    assert!(outcome.all_targets_met(), "{:#?}", outcome.targets());
}

#[tokio::test]
async fn table_and_page_show_the_figures() {
    let mut outcome = two_arms().await;
    let table = personalize_table(&outcome);
    for expected in [
        "student: 36 conversations, seeds 5–6",
        "hybrid   0.08 (0.00 … 1.00)  1.00 (1.00 … 1.00)  1.00 (1.00 … 1.00)  1.00   1.00     1.00 1.00  13 17",
        "0.250 (0.250 … 0.250)  0.500 → 0.375 (0.375 … 0.375)",
        "met  hybrid scores significantly more than control",
    ] {
        assert!(table.contains(expected), "{expected}\n{table}");
    }
    assert!(!table.contains("MISSED"), "{table}");
    let page = personalize_page(&outcome, &About::default());
    assert!(page.contains("<svg") && page.contains("<polygon") && page.contains("Qwen3-4B"));
    assert!(!page.contains("<script") && !page.contains("127.0.0.1"));

    // Without a gain the targets are missed, and without cells there is nothing to report.
    let is_control = |r: &super::CellRecord| r.cell.arm == Arm::CONTROL;
    outcome.cells.retain(is_control);
    for mut record in outcome.cells.clone() {
        record.cell.arm = Arm::HYBRID;
        outcome.cells.push(record);
    }
    assert!(!outcome.all_targets_met());
    let table = personalize_table(&outcome);
    assert!(
        table.contains("MISSED  hybrid scores at least 0.80 on 8 fresh tasks after 36 conversations on every seed"),
        "{table}"
    );
    outcome.cells.clear();
    outcome.interrupted = true;
    let table = personalize_table(&outcome);
    assert!(table.contains("Interrupted") && table.contains("no finished runs yet"));
}

#[tokio::test]
async fn memory_is_sent_from_the_second_round_on() {
    let arms = [Arm::MEMORY];
    let server = scripted_model(SEEDS[0], usize::MAX, "").await;
    let endpoint = Endpoint {
        url: server.url.clone(),
        model: "tiny".into(),
        api_key: None,
    };
    let mut options = options(&arms);
    options.conversations = Some(3);
    (options.fresh, options.probes) = (0, 0);
    options.memory_size = 1;
    options.control_draws = 1;
    let cell = Cell {
        arm: Arm::MEMORY,
        track: Track::Student,
        seed: SEEDS[0],
    };
    let (sender, _events) = tokio::sync::mpsc::unbounded_channel();
    let record = run_cell(cell, endpoint, &options, &sender).await.unwrap();
    assert!(record.probes.is_empty() && record.fresh.is_empty());
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
        let correction = &record.arm_record.conversations[at - 1].reactions[0];
        assert!(
            system.is_some_and(|text| text.ends_with(correction.as_str())),
            "{system:?}"
        );
    }
}
