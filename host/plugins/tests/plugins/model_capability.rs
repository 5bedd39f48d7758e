//! A judge can call granted models within its budgets and gets their errors. `tests/containment` tests attempts to
//! exceed the grants.

use std::time::Duration;

use std::sync::Arc;

use super::common::{default_limits, judge, options};
use clawhost_plugins::{
    Answer, Capability, FaultKind, Grants, HostOptions, Limits, Message, ModelChoice, ModelClient,
    ModelError, ModelFinish, ModelRequest, ModelResponse, Outcome, Plugin, PluginErrorKind,
    PluginHost, Profile, Role, ToolSpec,
};

const JUDGE_MODEL: &[u8] = include_bytes!("../../../../plugins/artifacts/judge-model.wasm");

/// A fake model client.
enum FakeModel {
    /// Returns these completions.
    Completes(Vec<&'static str>),
    /// Returns this error.
    Fails(ModelError),
    Panics,
    /// Reports this many completion tokens, whatever the request allowed.
    Overspends(u64),
    /// Never responds. The flag is set when the request is dropped.
    Hangs(DropFlag),
}

/// Sets its flag when dropped.
#[derive(Clone, Default)]
struct DropFlag(Arc<std::sync::atomic::AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

impl ModelClient for FakeModel {
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>> {
        assert_eq!((request.model.as_str(), request.n), ("judge", 3));
        assert!(request.messages[1].visible_text().contains("thanks"));
        let answer = match self {
            FakeModel::Completes(texts) => Ok(ModelResponse {
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
            FakeModel::Fails(error) => Err(error.clone()),
            FakeModel::Panics => return Box::pin(async { panic!("the client broke") }),
            FakeModel::Overspends(tokens) => Ok(ModelResponse {
                choices: Vec::new(),
                prompt_tokens: 0,
                completion_tokens: *tokens,
            }),
            FakeModel::Hangs(request) => {
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

fn plugin_with_model(model: FakeModel, models: &[&str]) -> Plugin {
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
async fn a_judge_can_call_the_granted_model() {
    let plugin = plugin_with_model(
        FakeModel::Completes(vec!["1", "I think -1", "Score: 1."]),
        &["judge"],
    );
    let judged = judge(&plugin, default_limits()).await;
    let verdict = judged.outcome.unwrap();
    assert_eq!(verdict.reward, 1.0);
    let votes: Vec<f32> = verdict.votes.iter().map(|vote| vote.score).collect();
    assert_eq!(votes, [1.0, -1.0, 1.0]);
    assert_eq!(
        (judged.receipt.model_calls, judged.receipt.model_tokens),
        (1, 109)
    );

    let silent = judge(
        &plugin_with_model(FakeModel::Completes(vec!["hm"; 3]), &[]),
        default_limits(),
    )
    .await;
    assert!(silent.outcome.unwrap_err().is_unsupported());
}

#[tokio::test]
async fn model_errors_are_returned_to_the_judge() {
    let limits = default_limits;
    let cases = [
        (
            FakeModel::Completes(vec!["1"]),
            &["teacher"][..],
            limits(),
            "Denied",
        ),
        (
            FakeModel::Completes(vec!["1"]),
            &[],
            Limits {
                model_calls: 0,
                ..limits()
            },
            "BudgetExhausted",
        ),
        (
            FakeModel::Fails(ModelError::Timeout),
            &[],
            limits(),
            "Timeout",
        ),
        (
            FakeModel::Fails(ModelError::Rejected("long".into())),
            &[],
            limits(),
            "Rejected",
        ),
        (FakeModel::Panics, &[], limits(), "Unavailable"),
    ];
    for (model, models, limits, expected) in cases {
        let judged = judge(&plugin_with_model(model, models), limits).await;
        let fault = judged.outcome.unwrap_err();
        assert!(
            matches!(&fault.kind, FaultKind::PluginError { kind: PluginErrorKind::Transient, message } if message.contains(expected)),
            "{expected}: {fault}"
        );
    }
    // Ten times the token budget.
    let limits = Limits {
        model_tokens: 1_000,
        ..default_limits()
    };
    let judged = judge(
        &plugin_with_model(FakeModel::Overspends(10_000), &[]),
        limits,
    )
    .await;
    assert_eq!(judged.outcome.unwrap_err().kind.name(), "budget");
    assert_eq!(judged.receipt.model_tokens, 10_000);
}

#[tokio::test]
async fn requests_are_limited_to_the_remaining_token_budget() {
    const PROMPT: u64 = 100;
    let judge_with_budget = |model_tokens| async move {
        let model = Arc::new(CountingModel::default());
        let host = PluginHost::new(HostOptions {
            model: Some(Arc::clone(&model) as _),
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
            ..default_limits()
        };
        let judged = judge(&loaded.unwrap(), limits).await;
        let max_tokens = model.0.lock().unwrap().clone();
        (judged, max_tokens)
    };
    let (judged, max_tokens) = judge_with_budget(200_000).await;
    let requested = max_tokens[0];
    assert!(requested > 3 && judged.outcome.is_ok(), "{judged:?}");
    // The budget is enough for three choices of two tokens.
    let (judged, max_tokens) = judge_with_budget(PROMPT + 8).await;
    assert_eq!(max_tokens, [2]);
    assert_eq!(judged.receipt.model_tokens, PROMPT + 6, "{judged:?}");
    // Not enough for one token per choice, or not even for the prompt: no request is sent.
    for budget in [PROMPT + 2, PROMPT, PROMPT - 1, 1] {
        let (judged, max_tokens) = judge_with_budget(budget).await;
        let error = judged.outcome.unwrap_err().to_string();
        assert!(error.contains("BudgetExhausted"), "{budget}: {error}");
        assert_eq!(
            (max_tokens.len(), judged.receipt.model_tokens),
            (0, 0),
            "{budget}"
        );
    }
}

/// A model that counts 100 tokens in every prompt, generates `max_tokens` tokens per choice and records `max_tokens`.
#[derive(Default)]
struct CountingModel(std::sync::Mutex<Vec<u32>>);

impl ModelClient for CountingModel {
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
async fn a_hanging_model_request_ends_at_the_wall_limit() {
    // The call waits for all of its limit. How much of it the guest needs to come to its request depends on what else
    // the machine does.
    for seconds in [1, 10, 100] {
        let limits = Limits {
            wall_time: Duration::from_secs(seconds),
            ..default_limits()
        };
        let request = DropFlag::default();
        let dropped = Arc::clone(&request.0);
        let plugin = plugin_with_model(FakeModel::Hangs(request), &[]);
        let judged = judge(&plugin, limits).await;
        let fault = judged.outcome.unwrap_err();
        assert!(fault.is_transient() && fault.is_host_condition(), "{fault}");
        assert_eq!(judged.receipt.outcome, Outcome::DeadlineExceeded);
        if judged.receipt.model_tokens == 0 {
            continue;
        }
        // The tokens that the request could have used stay charged, and the request is dropped.
        assert!(judged.receipt.model_tokens > 0);
        while !dropped.load(std::sync::atomic::Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        return;
    }
    panic!("the guest did not come to its request");
}
