//! Promise: a judge that was granted models asks them within its budgets, and hears of what they cannot
//! do. What it tries beyond its grants is in `tests/containment`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::sync::Arc;

use super::common::{judge, options};
use clawhost_plugins::{
    Answer, Capability, FaultKind, Grants, HostOptions, Limits, Message, ModelChoice, ModelClient,
    ModelError, ModelFinish, ModelRequest, ModelResponse, Outcome, Plugin, PluginErrorKind,
    PluginHost, Profile, Role, ToolSpec,
};

const JUDGE_MODEL: &[u8] = include_bytes!("../../../../plugins/artifacts/judge-model.wasm");

/// Answers each request with these texts, or fails in its own way.
enum Model {
    Says(Vec<&'static str>),
    Fails(ModelError),
    Panics,
    /// So many tokens, whatever it was allowed.
    Spends(u64),
    /// Never answers; says when nobody waits any more.
    Hangs(Dropped),
}

/// Says that it was dropped.
#[derive(Clone, Default)]
struct Dropped(Arc<std::sync::atomic::AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
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
            Model::Spends(tokens) => Ok(ModelResponse {
                choices: Vec::new(),
                prompt_tokens: 0,
                completion_tokens: *tokens,
            }),
            Model::Hangs(request) => {
                let request = request.clone();
                return Box::pin(async move {
                    let _request = request;
                    std::future::pending().await
                });
            }
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
    // Ten times what it was to cost at most.
    let limits = Limits {
        model_tokens: 1_000,
        ..Limits::default()
    };
    let judged = judge(&with_model(Model::Spends(10_000), &[]), limits).await;
    assert_eq!(judged.outcome.unwrap_err().kind.name(), "budget");
    assert_eq!(judged.receipt.model_tokens, 10_000);
}

#[tokio::test]
async fn a_request_costs_no_more_than_is_left_and_one_that_does_not_fit_never_leaves() {
    const PROMPT: u64 = 100;
    let asked = |model_tokens| async move {
        let counting = Arc::new(Counting::default());
        let host = PluginHost::new(HostOptions {
            model: Some(Arc::clone(&counting) as _),
            ..options()
        })
        .unwrap();
        let grants = Grants {
            allow: [Capability::Model].into(),
            ..Grants::default()
        };
        let loaded = host.load("judge-model", JUDGE_MODEL, &grants, Profile::default());
        let limits = Limits {
            model_tokens,
            ..Limits::default()
        };
        let judged = judge(&loaded.unwrap(), limits).await;
        let seen = counting.0.lock().unwrap().clone();
        (judged, seen)
    };
    let (judged, seen) = asked(200_000).await;
    let wanted = seen[0];
    assert!(wanted > 3 && judged.outcome.is_ok(), "{judged:?}");
    // Three choices of two tokens are all that is left.
    let (judged, seen) = asked(PROMPT + 8).await;
    assert_eq!(seen, [2]);
    assert_eq!(judged.receipt.model_tokens, PROMPT + 6, "{judged:?}");
    // No token for each choice, or not even the prompt.
    for left in [PROMPT + 2, PROMPT, PROMPT - 1, 1] {
        let (judged, seen) = asked(left).await;
        let said = judged.outcome.unwrap_err().to_string();
        assert!(said.contains("BudgetExhausted"), "{left}: {said}");
        assert_eq!((seen.len(), judged.receipt.model_tokens), (0, 0), "{left}");
    }
}

/// A model that counts a hundred tokens in every prompt, writes as much as it may and remembers how much that was.
#[derive(Default)]
struct Counting(std::sync::Mutex<Vec<u32>>);

impl ModelClient for Counting {
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>> {
        self.0.lock().unwrap().push(request.max_tokens);
        let choice = ModelChoice {
            message: Message::text(Role::Assistant, "1"),
            finish: ModelFinish::Length,
            logprob: None,
        };
        Box::pin(async move {
            Ok(ModelResponse {
                choices: vec![choice; request.n as usize],
                prompt_tokens: 100,
                completion_tokens: u64::from(request.n * request.max_tokens),
            })
        })
    }

    fn score(&self, _: String, _: Vec<Message>, _: String) -> Answer<Result<Vec<f32>, ModelError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn count(
        &self,
        _: String,
        messages: Vec<Message>,
        _: Vec<ToolSpec>,
        completion: String,
    ) -> Answer<Result<Option<u64>, ModelError>> {
        assert!(!messages.is_empty() && completion.is_empty());
        Box::pin(async { Ok(Some(100)) })
    }
}

#[tokio::test]
async fn a_model_that_never_answers_ends_with_the_wall_time() {
    let limits = Limits {
        wall_ms: 30,
        ..Limits::default()
    };
    let request = Dropped::default();
    let seen = Arc::clone(&request.0);
    let plugin = with_model(Model::Hangs(request), &[]);
    let judged = judge(&plugin, limits).await;
    let fault = judged.outcome.unwrap_err();
    assert!(fault.is_transient() && fault.is_host_condition(), "{fault}");
    assert_eq!(judged.receipt.outcome, Outcome::DeadlineExceeded);
    // What the request could have cost stays charged, and nobody goes on with it.
    assert!(judged.receipt.model_tokens > 0);
    while !seen.load(std::sync::atomic::Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
}
