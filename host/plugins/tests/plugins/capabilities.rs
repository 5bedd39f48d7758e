//! Promise: a judge that was granted models asks them within its budgets, and hears of what they cannot
//! do. What it tries beyond its grants is in `tests/containment`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::sync::Arc;

use clawhost_plugins::{
    Answer, Capability, FaultKind, Grants, HostOptions, Limits, Message, ModelChoice, ModelClient,
    ModelError, ModelFinish, ModelRequest, ModelResponse, Plugin, PluginErrorKind, PluginHost,
    Profile, Role,
};
use super::common::{judge, options};

const JUDGE_MODEL: &[u8] = include_bytes!("../../../../plugins/artifacts/judge-model.wasm");

/// Answers each request with these texts, or fails in its own way.
enum Model {
    Says(Vec<&'static str>),
    Fails(ModelError),
    Panics,
    Hangs,
}

impl ModelClient for Model {
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>> {
        assert_eq!((request.model.as_str(), request.n), ("judge", 3));
        assert!(request.messages[1].visible_text().contains("thanks"));
        let answer = match self {
            Model::Says(texts) => Ok(ModelResponse {
                choices: texts
                    .iter()
                    .map(|text| ModelChoice {
                        message: Message::text(Role::Assistant, *text),
                        finish: ModelFinish::Stop,
                        logprob: None,
                    })
                    .collect(),
                prompt_tokens: 100,
                completion_tokens: 9,
            }),
            Model::Fails(error) => Err(error.clone()),
            Model::Panics => return Box::pin(async { panic!("the client broke") }),
            Model::Hangs => return Box::pin(std::future::pending()),
        };
        Box::pin(async move { answer })
    }

    fn score(&self, _: String, _: Vec<Message>, _: String) -> Answer<Result<Vec<f32>, ModelError>> {
        Box::pin(async { Ok(vec![-0.5]) })
    }
}

fn with_model(model: Model, models: &[&str]) -> Plugin {
    let host = PluginHost::new(HostOptions {
        model: Some(Arc::new(model)),
        ..options()
    })
    .unwrap();
    let grants = Grants {
        allow: [Capability::Model].into(),
        models: models.iter().map(|model| (*model).to_owned()).collect(),
        ..Grants::default()
    };
    host.load("judge-model", JUDGE_MODEL, &grants, Profile::default())
        .unwrap()
}

#[tokio::test]
async fn a_judge_asks_the_model_it_was_granted() {
    let plugin = with_model(
        Model::Says(vec!["1", "I think -1", "Score: 1."]),
        &["judge"],
    );
    let judged = judge(&plugin, Limits::default()).await;
    let verdict = judged.outcome.unwrap();
    assert_eq!(verdict.reward, 1.0);
    let votes: Vec<f32> = verdict.votes.iter().map(|vote| vote.score).collect();
    assert_eq!(votes, [1.0, -1.0, 1.0]);
    assert_eq!(
        (judged.receipt.model_calls, judged.receipt.model_tokens),
        (1, 109)
    );

    let silent = judge(
        &with_model(Model::Says(vec!["hm"; 3]), &[]),
        Limits::default(),
    )
    .await;
    assert!(silent.outcome.unwrap_err().is_no_answer());
}

#[tokio::test]
async fn what_the_model_cannot_do_reaches_the_judge_as_an_error() {
    let limits = Limits::default;
    let cases = [
        (Model::Says(vec!["1"]), &["teacher"][..], limits(), "Denied"),
        (
            Model::Says(vec!["1"]),
            &[],
            Limits {
                model_calls: 0,
                ..limits()
            },
            "BudgetExhausted",
        ),
        (Model::Fails(ModelError::Timeout), &[], limits(), "Timeout"),
        (
            Model::Fails(ModelError::Rejected("long".into())),
            &[],
            limits(),
            "Rejected",
        ),
        (Model::Panics, &[], limits(), "Unavailable"),
    ];
    for (model, models, limits, said) in cases {
        let judged = judge(&with_model(model, models), limits).await;
        let fault = judged.outcome.unwrap_err();
        assert!(
            matches!(&fault.kind, FaultKind::PluginError { kind: PluginErrorKind::Transient, message } if message.contains(said)),
            "{said}: {fault}"
        );
    }
    let limits = Limits {
        model_tokens: 20,
        ..Limits::default()
    };
    let judged = judge(&with_model(Model::Says(vec!["1"]), &[]), limits).await;
    assert_eq!(judged.outcome.unwrap_err().kind.name(), "budget");
}

#[tokio::test]
async fn a_model_that_never_answers_ends_with_the_wall_time() {
    let limits = Limits {
        wall_ms: 30,
        ..Limits::default()
    };
    let judged = judge(&with_model(Model::Hangs, &[]), limits).await;
    let fault = judged.outcome.unwrap_err();
    assert!(fault.is_transient(), "{fault}");
}
