//! What trains is what somebody said of a reply, compared with what that person usually says at that point; and what
//! never trains is counted where an operator looks.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail by panicking"
)]

use clawhost::serve::{Server, Settings};
use clawhost_journal::{Journal, NewStep, SampleRecord, StepOutcome, TurnId};
use clawhost_tests::{Client, Command, Running, configuration};
use clawhost_training::TrainingOptions;
use clawhost_training::advantage::{Baselines, Estimator, Relative};
use serde_json::json;
use tempfile::TempDir;

fn sample(running: &Running, turn: TurnId) -> SampleRecord {
    let mut samples = running.journal().samples_of(turn).unwrap();
    assert_eq!(samples.len(), 1, "turn {turn}");
    samples.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_has_replies_redone_gets_advantages_that_tell_something() {
    let running = Running::with(|config| config.training.enabled = false).await;
    let (mut first, mut redone) = (Vec::new(), Vec::new());
    for count in [3, 5] {
        let mut talk = running
            .talk()
            .with(json!({"user": "ann", "max_tokens": 12, "seed": count}));
        let question = format!("Tom has {count} apples and gets 4 more. How many now?");
        let asked = talk.say(&question).await.turn();
        let again = talk.say("No, that is wrong. Please do it again.").await;
        talk.say("Thanks, that is perfect!").await;
        for (turn, samples) in [(asked, &mut first), (again.turn(), &mut redone)] {
            running.judged(turn).await;
            samples.push(sample(&running, turn));
        }
    }
    let rewards = |samples: &[SampleRecord]| -> Vec<f32> {
        samples.iter().filter_map(|sample| sample.reward).collect()
    };
    assert_eq!(rewards(&first), [-1.0, -1.0]);
    assert_eq!(rewards(&redone), [1.0, 1.0]);

    // Once the first conversation is known, the second one is as expected at both points.
    let options = TrainingOptions {
        estimator: Estimator::Baseline,
        ..TrainingOptions::default()
    };
    let rewarded = |sample: &SampleRecord| f64::from(sample.reward.unwrap());
    let known = Baselines::new(options.baseline_rate, options.baseline_start).after([
        (first[0].baseline_key.as_str(), rewarded(&first[0])),
        (redone[0].baseline_key.as_str(), rewarded(&redone[0])),
    ]);
    let second = [&first[1], &redone[1]];
    let estimated = second.map(|sample| options.rewarded(sample, sample.reward.unwrap()));
    let advantages = options.estimation().estimate(&estimated, &known);
    assert_eq!(advantages, [Relative::Level, Relative::Level]);
}

/// A data directory in which one of two judged samples went stale.
async fn with_a_stale_sample() -> TempDir {
    let running = Running::with(|config| config.training.enabled = false).await;
    let mut talk = running.talk().with(json!({"max_tokens": 12}));
    let mut turns = Vec::new();
    for text in ["How are you?", "Thanks, great!", "Thanks, perfect!"] {
        turns.push(talk.say(text).await.turn());
    }
    for turn in &turns[..2] {
        running.judged(*turn).await;
    }
    let Running { server, data, .. } = running;
    server.stop().await;
    let journal = Journal::open(data.path()).unwrap();
    let stale = journal.queue().unwrap()[0].id;
    let step = NewStep {
        started_ms: 1,
        ended_ms: 2,
        outcome: StepOutcome::NoSignal,
        reason: None,
        metrics: json!({}),
        trained: Vec::new(),
        dropped: vec![(stale, format!("{} too old", clawhost_journal::STALE))],
        adapter: None,
        meta: Vec::new(),
    };
    journal.commit_step(&step).unwrap();
    data
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_samples_are_counted_with_the_setting_that_changes_it() {
    let data = with_a_stale_sample().await;
    let told =
        "1 of 2 judged samples went stale before a step took them; raise training.max_staleness";
    let path = data.path().display().to_string();
    let ended = Command::new(&["status", "--data", &path]).run();
    assert!(ended.stdout.contains(told), "{ended:?}");

    let mut config = configuration();
    config.server.data = data.path().to_owned();
    config.training.enabled = false;
    let server = Server::start(Settings::from(config)).await.unwrap();
    let client = Client::new(server.url());
    let health = client.get("/healthz").await;
    let training = &health.ok()["training"];
    assert_eq!(
        (&training["samples"], &training["stale"]),
        (&json!(2), &json!(1))
    );
    assert!(training["stale_note"].as_str().unwrap().starts_with(told));
    for (path, expected) in [
        ("/metrics", "clawhost_training_stale_total 1\n"),
        ("/", told),
    ] {
        let answer = reqwest::get(format!("{}{path}", server.url()))
            .await
            .unwrap();
        let text = answer.text().await.unwrap();
        assert!(text.contains(expected), "{path}: {text}");
    }
    server.stop().await;
}
