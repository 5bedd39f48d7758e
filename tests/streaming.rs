//! Streaming: the first of 200 tokens arrives long before the last.
//!
//! Times are compared only within one reply, so that the test does not depend on the machine. What else the machine does
//! may delay any token of any reply, so one reply that streams as promised is enough: a server that holds text back holds
//! it back in all of them.

use std::time::{Duration, Instant};

use clawhost_tests::{TestServer, user};
use serde_json::json;

/// Tokens of a measured reply.
const LENGTH: usize = 200;
/// Number of measured replies.
const REPLIES: usize = 9;
/// Maximum share of the reply's time until its first token.
const SHARE: f64 = 0.15;
/// Maximum requests until enough replies have the full length; some end earlier.
const ATTEMPTS: usize = 100;

/// Requests a reply; returns the times to its first text, its half and its end if it has the full length.
async fn reply(running: &TestServer, number: usize) -> Option<[Duration; 3]> {
    let text = format!("Number {number}: tell me a long story about a shop.");
    let chat = running.client.chat(&[user(&text)]);
    // The prompt contains the EOS token, so the repetition penalty makes ending unlikely.
    let chat = chat.with(json!({
        "temperature": 2.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 10.0,
        "max_tokens": LENGTH, "seed": number,
    }));
    let sent = Instant::now();
    let mut came = Vec::new();
    let streamed = chat.stream().await.rest_with(|chunk| {
        let text = chunk["choices"][0]["delta"]["content"].as_str();
        if text.is_some_and(|text| !text.is_empty()) {
            came.push(sent.elapsed());
        }
    });
    let streamed = streamed.await.unwrap();
    let end = sent.elapsed();
    assert!(streamed.done && streamed.errors.is_empty());
    if streamed.finish.as_deref() != Some("length") {
        return None;
    }
    // A token may be an incomplete character, which is held back, but most give text.
    assert!(came.len() > LENGTH / 2, "{} text chunks", came.len());
    let half = came.get(came.len() / 2)?;
    Some([*came.first()?, *half, end])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_token_arrives_long_before_the_last() {
    let running = TestServer::with(|config| config.training.enabled = false).await;
    let mut replies = Vec::new();
    for number in 0..ATTEMPTS {
        replies.extend(reply(&running, number).await);
        // The first reply is a warmup.
        if replies.len() > REPLIES {
            break;
        }
    }
    assert!(
        replies.len() > REPLIES,
        "too few replies have {LENGTH} tokens"
    );
    let shares: Vec<(f64, f64)> = replies
        .iter()
        .skip(1)
        .map(|[first, half, end]| (first.div_duration_f64(*end), half.div_duration_f64(*end)))
        .collect();
    println!(
        "shares of the reply's time until the first and the middle of {LENGTH} tokens: {shares:.3?}"
    );
    // The rest does not arrive all at once.
    let streams = |(first, half): &(f64, f64)| *first <= SHARE && (0.2..=0.8).contains(half);
    assert!(shares.iter().any(streams), "{replies:?}");
}
