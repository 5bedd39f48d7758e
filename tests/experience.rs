//! A correction is in the prompts of the next conversations, and the weights learn it from the policy that reads it.

use std::time::Duration;

use clawhost_tests::TestServer;
use serde_json::{Value, json};

const QUESTION: &str = "Tom has 3 apples and gets 4 more. How many now?";

/// A conversation whose user asks for plain text.
async fn complain(running: &TestServer) {
    let mut conversation = running
        .conversation()
        .with(json!({"max_tokens": 12, "seed": 1}));
    let first = conversation.send_message(QUESTION).await.turn();
    conversation
        .send_message("Please write it as plain text, without lists.")
        .await;
    running.wait_until_judged(first).await;
}

async fn entries(running: &TestServer) -> Vec<Value> {
    let listed = running.client.get("/v1/experience").await;
    listed.ok()["data"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correction_is_in_the_next_conversation_of_a_frozen_model() {
    let running = TestServer::with(|config| {
        config.training.enabled = false;
        config.experience.mode = serde_json::from_value(json!("inject")).unwrap();
    })
    .await;
    complain(&running).await;
    let kept = entries(&running).await;
    assert_eq!(kept.len(), 1, "{kept:?}");
    let text = kept[0]["text"].as_str().unwrap();
    assert!(text.contains("without lists"), "{text}");
    let mut next = running.conversation().with(json!({"max_tokens": 12}));
    let turn = next.send_message("How are you?").await.turn();
    let turn = running.journal().turn(turn).unwrap().unwrap();
    let used = turn.experience.unwrap();
    assert!(used.text.contains(text), "{}", used.text);
    assert_eq!(
        turn.messages.len(),
        1,
        "the record has what the client sent"
    );
    // The conversation continues although the client never saw the text.
    let later = next.send_message("Thanks, great!").await.turn();
    let later = running.journal().turn(later).unwrap().unwrap();
    assert_eq!(later.parent, Some(turn.id));
    running.wait_until_judged(turn.id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_without_a_complaint_are_distilled_from_the_policy_with_experience() {
    let running = TestServer::with(|config| {
        config.experience.mode = serde_json::from_value(json!("both")).unwrap();
        config.experience.holdout_share = 1.0;
        config.training.method = serde_json::from_value(json!("opd-topk")).unwrap();
        config.training.teacher.source = serde_json::from_value(json!("policy")).unwrap();
        config.training.batch_size = 1;
        config.training.min_batch_size = 1;
        config.training.max_wait = Duration::ZERO;
    })
    .await;
    complain(&running).await;
    let mut next = running
        .conversation()
        .with(json!({"max_tokens": 12, "seed": 2}));
    let asked = next.send_message("What is 3 + 4?").await.turn();
    next.send_message("Thanks, great!").await;
    running.wait_until_judged(asked).await;
    let sample = running.wait_until_trained(asked).await;
    let step = running.journal().step(sample.step.unwrap()).unwrap();
    let metrics = step.unwrap().metrics;
    let row = &metrics["samples_moved"][0];
    assert_eq!(
        (&row["hint"], &row["experience"]),
        (&Value::Null, &json!([1]))
    );
    let entry = entries(&running).await.remove(0);
    assert_eq!(
        (&entry["state"], &entry["distilled"]),
        (&json!("active"), &json!(1))
    );
    assert_eq!(entry["gap"], row["teacher_kl"]);
}
