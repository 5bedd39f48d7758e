//! Training uses the feedback on a reply relative to the user's usual feedback at that point; samples that never train
//! are counted in the status output.

use clawhost::serve::{Server, Settings};
use clawhost_journal::{Journal, NewStep, SampleRecord, StepOutcome, TurnId};
use clawhost_tests::{Client, Command, TestServer, configuration};
use clawhost_training::advantage::{Advantage, Baselines, Estimator, EstimatorConfig};
use clawhost_training::{TrainingOptions, shaped_sample};
use serde_json::json;
use tempfile::TempDir;

fn sample(running: &TestServer, turn: TurnId) -> SampleRecord {
    let mut samples = running.journal().samples_of_turn(turn).unwrap();
    assert_eq!(samples.len(), 1, "turn {turn}");
    samples.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_feedback_yields_informative_advantages() {
    let running = TestServer::with(|config| config.training.enabled = false).await;
    let (mut first, mut redone) = (Vec::new(), Vec::new());
    for count in [3, 5] {
        let mut conversation = running
            .conversation()
            .with(json!({"user": "ann", "max_tokens": 12, "seed": count}));
        let question = format!("Tom has {count} apples and gets 4 more. How many now?");
        let asked = conversation.send_message(&question).await.turn();
        let again = conversation
            .send_message("No, that is wrong. Please do it again.")
            .await;
        conversation.send_message("Thanks, that is perfect!").await;
        for (turn, samples) in [(asked, &mut first), (again.turn(), &mut redone)] {
            running.wait_until_judged(turn).await;
            samples.push(sample(&running, turn));
        }
    }
    let rewards = |samples: &[SampleRecord]| -> Vec<f32> {
        samples.iter().filter_map(|sample| sample.reward).collect()
    };
    assert_eq!(rewards(&first), [-1.0, -1.0]);
    assert_eq!(rewards(&redone), [1.0, 1.0]);

    // After the first conversation, the second one matches the baselines at both points.
    let options = TrainingOptions {
        estimator: Estimator::Baseline,
        ..TrainingOptions::default()
    };
    let rewarded = |sample: &SampleRecord| f64::from(sample.reward.unwrap());
    let known = Baselines::new(options.baseline_rate, options.initial_baseline).after([
        (first[0].baseline_key.as_str(), rewarded(&first[0])),
        (redone[0].baseline_key.as_str(), rewarded(&redone[0])),
    ]);
    let second = [&first[1], &redone[1]];
    let estimated = second.map(|sample| shaped_sample(&options, sample, sample.reward.unwrap()));
    let advantages = EstimatorConfig::of_conversations(&options).estimate(&estimated, &known);
    assert_eq!(advantages, [Advantage::Zero, Advantage::Zero]);
}

/// A data directory in which one of two judged samples is stale.
async fn with_a_stale_sample() -> TempDir {
    let running = TestServer::with(|config| config.training.enabled = false).await;
    let mut conversation = running.conversation().with(json!({"max_tokens": 12}));
    let mut turns = Vec::new();
    for text in ["How are you?", "Thanks, great!", "Thanks, perfect!"] {
        turns.push(conversation.send_message(text).await.turn());
    }
    for turn in &turns[..2] {
        running.wait_until_judged(*turn).await;
    }
    let TestServer { server, data, .. } = running;
    server.stop().await;
    let journal = Journal::open(data.path()).unwrap();
    let stale = journal.list_queued_samples(None).unwrap()[0].id;
    let step = NewStep {
        started_ms: 1,
        ended_ms: 2,
        outcome: StepOutcome::NoSignal,
        reason: None,
        metrics: json!({}),
        trained: Vec::new(),
        dropped: vec![(stale, format!("{} too old", clawhost_journal::STALE_PREFIX))],
        adapter: None,
        meta: Vec::new(),
        experience: None,
    };
    journal.commit_step(&step).unwrap();
    data
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_samples_are_reported_with_the_responsible_setting() {
    let data = with_a_stale_sample().await;
    let note =
        "1 of 2 judged samples went stale before a step used them; raise training.max_staleness";
    let path = data.path().display().to_string();
    let ended = Command::new(&["status", "--data", &path]).run();
    assert!(ended.stdout.contains(note), "{ended:?}");

    let mut config = configuration();
    config.server.data_dir = data.path().to_owned();
    config.training.enabled = false;
    let server = Server::start(Settings::from(config)).await.unwrap();
    let client = Client::new(server.url());
    let health = client.get("/healthz").await;
    let training = &health.ok()["training"];
    assert_eq!(
        (&training["samples"], &training["stale"]),
        (&json!(2), &json!(1))
    );
    assert!(training["stale_note"].as_str().unwrap().starts_with(note));
    for (path, expected) in [
        ("/metrics", "clawhost_training_stale_samples_total 1\n"),
        ("/", note),
    ] {
        let answer = clawhost_http::client()
            .build()
            .unwrap()
            .get(format!("{}{path}", server.url()))
            .send()
            .await
            .unwrap();
        let text = answer.text().await.unwrap();
        assert!(text.contains(expected), "{path}: {text}");
    }
    server.stop().await;
}
