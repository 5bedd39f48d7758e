//! Promise: transcripts are held against a component, and the partials of a loss against the slopes of its
//! value. The components are those that are checked in, so no tool is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawhost_authoring::{Golden, Script, TranscriptResult, check, goldens};
use clawhost_plugins::{
    Answer, Grants, HostOptions, Plugin, PluginHost, Profile, StateEntry, StateError, StatePage,
    StateScope, StateStore,
};
use serde_json::{Value, json};

fn plugins() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins")
}

fn component(name: &str) -> Plugin {
    let bytes = fs::read(plugins().join(format!("artifacts/{name}.wasm"))).unwrap();
    PluginHost::new(HostOptions::default())
        .unwrap()
        .load(name, &bytes, &Grants::default(), Profile::default())
        .unwrap()
}

/// For components that import no capability.
fn script() -> Script {
    Script::new(|| Ok(Arc::new(NoState))).unwrap()
}

struct NoState;

impl StateStore for NoState {
    fn get(&self, _: StateScope, _: String) -> Answer<Result<Option<StateEntry>, StateError>> {
        none()
    }

    fn put(
        &self,
        _: StateScope,
        _: String,
        _: Vec<u8>,
        _: Option<u64>,
    ) -> Answer<Result<u64, StateError>> {
        none()
    }

    fn delete(&self, _: StateScope, _: String) -> Answer<Result<(), StateError>> {
        none()
    }

    fn keys(
        &self,
        _: StateScope,
        _: String,
        _: Option<String>,
        _: usize,
    ) -> Answer<Result<StatePage, StateError>> {
        none()
    }
}

fn none<T: Send + 'static>() -> Answer<Result<T, StateError>> {
    Box::pin(std::future::ready(Err(StateError::Unavailable(
        "none".to_owned(),
    ))))
}

#[tokio::test]
async fn the_judge_in_c_passes_its_transcripts() {
    let transcripts = goldens(&plugins().join("judge-length")).unwrap();
    assert!(transcripts.len() > 10);
    let plugin = component("judge-length");
    let limits = plugin.kind().default_limits();
    for TranscriptResult { name, outcome, .. } in
        check(&plugin, &transcripts, &limits, &script()).await
    {
        assert_eq!(outcome, Ok(()), "{name}");
    }
}

/// Two sequences, off the policy that sampled them, with a token that does not train.
fn batch() -> Value {
    json!({
        "offsets": [0, 3, 5],
        "groups": [0, 0],
        "rewards": [1.0, -1.0],
        "tokens": [5, 6, 7, 8, 9],
        "mask": [1, 1, 1, 1, 0],
        "advantages": [1.0, 1.0, 1.0, -1.0, -1.0],
        "logprob": [-0.5, -1.0, -2.5, -2.0, -3.0],
        "old_logprob": [-0.7, -0.9, -2.4, -2.1, -3.0],
        "step_tokens": 4,
        "step_sequences": 2
    })
}

async fn checked(name: &str, golden: Value) -> TranscriptResult {
    let golden: Golden = serde_json::from_value(golden).unwrap();
    let plugin = component(name);
    let limits = plugin.kind().default_limits();
    check(&plugin, &[golden], &limits, &script())
        .await
        .remove(0)
}

#[tokio::test]
async fn partials_that_are_slopes_pass() {
    let golden = json!({"batch": batch(), "expect": {}});
    let found = checked("loss-ppo-clip", golden.clone()).await;
    assert_eq!(found.outcome, Ok(()));
    let said = found.gradient.unwrap();
    assert_eq!(said, "5 partials are the slopes of the loss");

    let mut two = golden;
    two["settings"] = json!({"k": 2});
    let top = [-0.5, -2.0, -1.0, -1.5, -0.1, -4.0, -0.3, -1.9, -1.0, -1.0];
    two["batch"]["topk_logprob"] = json!(top);
    two["batch"]["teacher_topk_logprob"] =
        json!([-0.9, -1.0, -1.0, -0.7, -0.2, -2.0, -0.4, -1.5, -1.0, -1.0]);
    let found = checked("loss-distill-topk", two).await;
    assert_eq!(found.outcome, Ok(()));
    assert!(found.gradient.unwrap().starts_with("10 partials"));
}

/// A pair with a masked token, on which the policy is not the base model.
fn pairs() -> Value {
    json!({"pairs": [{
        "chosen": {"tokens": [5, 6, 7], "mask": [1, 0, 1], "logprob": [-0.5, -3.0, -1.0], "ref_logprob": [-1.0, -2.0, -1.5]},
        "rejected": {"tokens": [8], "mask": [1], "logprob": [-2.0], "ref_logprob": [-0.5]},
    }]})
}

#[tokio::test]
async fn partials_of_a_loss_on_pairs_are_compared_with_slopes() {
    let golden = json!({"pairs": pairs(), "settings": {"beta": 0.5}, "expect": {}});
    let found = checked("loss-dpo", golden).await;
    assert_eq!(found.outcome, Ok(()));
    assert_eq!(
        found.gradient.unwrap(),
        "4 partials are the slopes of the loss"
    );
    let found = checked("loss-dpo", json!({"batch": batch(), "expect": {}})).await;
    assert!(found.outcome.unwrap_err().contains("\"pairs\""));
}

/// CISPO's weight depends on the log-prob and is held constant, so its partials are wrong as slopes.
#[tokio::test]
async fn a_partial_that_is_no_slope_fails_with_its_token_and_both_numbers() {
    let mut golden = json!({"batch": batch(), "expect": {}});
    // Beyond the largest weight, which does not move, the partial is the slope.
    golden["batch"]["logprob"] = json!([-0.4, -0.5, -2.0, -2.0, -3.0]);
    golden["batch"]["old_logprob"] = json!([-0.9, -0.9, -2.4, -2.1, -3.0]);
    let found = checked("loss-cispo", golden.clone()).await;
    assert_eq!(found.gradient, None);
    let wrong = found.outcome.unwrap_err();
    // r = e^0.1, A = -1, coefficient 1 / 2: the partial is r / 2, the slope of -r A lp is (1 + lp) r / 2.
    for part in [
        "logprob of token 3 ",
        "is 0.55258",
        "is -0.5525",
        "stop_gradient",
    ] {
        assert!(wrong.contains(part), "{part:?} is not in: {wrong}");
    }

    golden["stop_gradient"] = json!(true);
    let found = checked("loss-cispo", golden).await;
    assert_eq!(found.outcome, Ok(()));
    assert!(found.gradient.unwrap().contains("stop_gradient"));
}

#[tokio::test]
async fn an_answer_that_differs_is_told_before_the_gradient() {
    let golden = json!({"batch": batch(), "expect": {"loss": 7}});
    let found = checked("loss-ppo-clip", golden).await;
    assert_eq!(found.gradient, None);
    assert!(found.outcome.unwrap_err().contains("the answer.loss"));
}
