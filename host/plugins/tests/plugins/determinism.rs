//! Promise: in the deterministic profile the same input gives the same verdict and costs the same
//! fuel. Components that try to tell two calls apart are cases 24 and 25 of `tests/containment`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use clawhost_plugins::{Grants, Limits, Outcome, Profile, embedded};
use super::common::{call, host, trajectory};

#[tokio::test]
async fn the_same_turn_twice_gives_the_same_verdict_and_fuel() {
    let host = host();
    let bytes = embedded("judge-next-state").unwrap();
    let plugin = host
        .load(
            "judge-next-state",
            bytes,
            &Grants::default(),
            Profile::default(),
        )
        .unwrap();
    assert_eq!(plugin.profile(), Profile::Deterministic);
    for (text, reward) in [
        ("Thanks, that's perfect.", 1.0),
        ("Thanks, but please rewrite it without bold.", -1.0),
        ("why?", 0.0),
    ] {
        let seen = trajectory(text);
        let first = plugin.score_turn(call(Limits::default()), &seen, 0).await;
        let second = plugin.score_turn(call(Limits::default()), &seen, 0).await;
        let one = first.outcome.unwrap();
        assert_eq!(one.reward, reward, "{text}: {one:?}");
        assert_eq!(Ok(one), second.outcome, "{text}");
        assert!(first.receipt.fuel.is_some_and(|fuel| fuel > 0));
        assert_eq!(first.receipt.fuel, second.receipt.fuel, "{text}");
        assert_eq!(first.receipt.outcome, Outcome::Ok);
        assert!(first.receipt.peak_memory_bytes > 0);
    }
}

#[tokio::test]
async fn both_profiles_agree() {
    let host = host();
    let bytes = embedded("judge-next-state").unwrap();
    let fast = host
        .load("judge", bytes, &Grants::default(), Profile::Fast)
        .unwrap();
    let slow = host
        .load("judge", bytes, &Grants::default(), Profile::default())
        .unwrap();
    let seen = trajectory("too much bold, redo it please");
    let a = fast.score_turn(call(Limits::default()), &seen, 0).await;
    let b = slow.score_turn(call(Limits::default()), &seen, 0).await;
    assert_eq!(a.outcome, b.outcome);
    assert_eq!(a.receipt.fuel, None);
}

#[tokio::test]
async fn a_turn_that_does_not_exist_and_a_silent_one_are_told_apart() {
    let host = host();
    let bytes = embedded("judge-next-state").unwrap();
    let plugin = host
        .load("judge", bytes, &Grants::default(), Profile::default())
        .unwrap();
    let missing = plugin
        .score_turn(call(Limits::default()), &trajectory("thanks"), 5)
        .await;
    let fault = missing.outcome.unwrap_err();
    assert!(fault.to_string().contains("invalid-input"), "{fault}");
    let mut silent = trajectory("");
    silent.turns[0].next_state.clear();
    let silent = plugin.score_turn(call(Limits::default()), &silent, 0).await;
    assert!(silent.outcome.unwrap_err().is_no_answer());
}
