//! Judges of this repository in the real plugin host, on a real journal.
#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

use std::sync::Arc;
use std::time::Duration;

use clawhost_chat::Message;
use clawhost_config::{ExperienceOptions, PluginsConfig};
use clawhost_journal::{
    Completion, Finish, Journal, MatchRecord, NewRequest, NewTurn, NextState, SamplingRecord,
    SessionId, SessionUpsert, TurnId, TurnKind, VerdictOutcome,
};
use clawhost_judging::{JudgeWorker, JudgingOptions, Rejudger};
use clawhost_plugins::{
    Answer, Capability, Grants, HostOptions, ModelChoice, ModelClient, ModelError, ModelFinish,
    ModelRequest, ModelResponse, Plugin, PluginHost, Profile, Role, embedded_component,
};
use tokio::sync::watch;

const JUDGE_MODEL: &[u8] = include_bytes!("../../../plugins/artifacts/judge-model.wasm");
/// Upper bound of a wait, half of the wall limit of a call.
const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_judge_rewards_thanks_and_penalizes_complaints() {
    let host = PluginHost::new(HostOptions::default()).unwrap();
    let bytes = embedded_component("judge-next-state").unwrap();
    let judge = host
        .load(
            "judge-next-state",
            bytes,
            &Grants::default(),
            Profile::default(),
        )
        .unwrap();
    let digest = judge.digest().to_owned();
    let journal = Journal::in_memory().unwrap();
    let cases = [
        ("Thanks, that is perfect!", Some(1.0)),
        ("No, that is wrong. Please do it again.", Some(-1.0)),
    ];
    let turns: Vec<TurnId> = cases
        .iter()
        .map(|(text, _)| add_turn(&journal, text))
        .collect();
    let judging = worker(&journal, &host, judge, JudgingOptions::default());
    let state = judging.status();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(judging.run(stopped));
    state.watch().wait_for(|s| s.judged == 2).await.unwrap();
    stop.send(true).unwrap();
    task.await.unwrap();
    for (turn, (text, reward)) in turns.iter().zip(cases) {
        let sample = journal.samples_of_turn(*turn).unwrap().pop();
        assert_eq!(sample.as_ref().and_then(|s| s.reward), reward, "{text}");
        let verdict = journal.verdicts(*turn).unwrap().remove(0);
        assert_eq!(verdict.source, "plugin:judge-next-state");
        assert_eq!(verdict.digest.as_ref(), Some(&digest));
        assert!(!verdict.votes.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_judge_abstains_without_a_signal_and_nothing_trains() {
    let host = PluginHost::new(HostOptions::default()).unwrap();
    let judge = host
        .load(
            "judge-next-state",
            embedded_component("judge-next-state").unwrap(),
            &Grants::default(),
            Profile::default(),
        )
        .unwrap();
    let journal = Journal::in_memory().unwrap();
    let turn = add_turn(&journal, "Why is the sky blue?");
    journal
        .end_session(&"Why is the sky blue?".into(), "done")
        .unwrap();
    let judging = worker(&journal, &host, judge, JudgingOptions::default());
    let mut changes = journal.watch();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(judging.run(stopped));
    while !journal.ready_for_judging(1).unwrap().is_empty()
        || !journal.sessions_to_finalize(1).unwrap().is_empty()
    {
        changes.changed().await.unwrap();
    }
    stop.send(true).unwrap();
    task.await.unwrap();
    let verdict = journal.verdicts(turn).unwrap().remove(0);
    let abstained = VerdictOutcome::None {
        reason: "abstained".to_owned(),
    };
    assert_eq!(verdict.outcome, abstained, "{}", verdict.rationale);
    assert!(journal.samples_of_turn(turn).unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_judgement_run_in_its_task_on_the_plugin_threads() {
    let model = Arc::new(WatchedModel::default());
    let (host, judge) = judge_with_model(&model);
    let journal = Journal::in_memory().unwrap();
    let turn = add_turn(&journal, "thanks");
    let options = JudgingOptions {
        calls_per_judge: 3,
        ..JudgingOptions::default()
    };
    let judging = worker(&journal, &host, judge.clone(), options.clone());
    let state = judging.status();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(judging.run(stopped));
    state.watch().wait_for(|s| s.judged == 1).await.unwrap();
    stop.send(true).unwrap();
    task.await.unwrap();
    model.assert_calls_in_one_task(3);

    let threads = host.threads().clone();
    let rejudger = Rejudger::new(threads, vec![judge], options, PluginsConfig::default());
    let judged = rejudger.rejudge_turn(&journal, turn).await.unwrap();
    let reward = judged.unwrap().combined.unwrap().reward;
    assert_eq!(reward, Some(1.0));
    model.assert_calls_in_one_task(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_judging_ends_a_running_call_and_its_turn_stays_ready() {
    let model = Arc::new(WatchedModel {
        hangs: true,
        ..WatchedModel::default()
    });
    let (host, judge) = judge_with_model(&model);
    let journal = Journal::in_memory().unwrap();
    let turn = add_turn(&journal, "thanks");
    let judging = worker(&journal, &host, judge, JudgingOptions::default());
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(judging.run(stopped));
    let mut calls = model.calls.subscribe();
    calls.wait_for(|calls| calls.len() == 1).await.unwrap();
    stop.send(true).unwrap();
    task.await.unwrap();
    let mut ended = model.ended.subscribe();
    let ended = ended.wait_for(|ended| *ended);
    tokio::time::timeout(TIMEOUT, ended).await.unwrap().unwrap();
    let ready = journal.ready_for_judging(2).unwrap();
    assert_eq!(ready.iter().map(|one| one.id).collect::<Vec<_>>(), [turn]);
}

/// A model that records where its judge called it, and answers with votes for the reply or not at all.
#[derive(Default)]
struct WatchedModel {
    /// The thread and the task of each call.
    calls: watch::Sender<Vec<(String, tokio::task::Id)>>,
    hangs: bool,
    /// Whether a call that hung was dropped.
    ended: watch::Sender<bool>,
}

impl WatchedModel {
    /// Takes the recorded calls.
    #[track_caller]
    fn assert_calls_in_one_task(&self, count: usize) {
        let calls = self.calls.send_replace(Vec::new());
        let (_, task) = calls[0];
        assert_eq!(calls, vec![("plugin".to_owned(), task); count]);
    }
}

/// Reports its end when it is dropped.
struct HangingCall(watch::Sender<bool>);

impl Drop for HangingCall {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

impl ModelClient for WatchedModel {
    // The host calls it in the task of the guest.
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>> {
        let thread = std::thread::current().name().unwrap_or("none").to_owned();
        let call = (thread, tokio::task::id());
        self.calls.send_modify(|calls| calls.push(call));
        if self.hangs {
            let call = HangingCall(self.ended.clone());
            return Box::pin(async move {
                let _call = call;
                std::future::pending().await
            });
        }
        let vote = ModelChoice {
            message: clawhost_plugins::Message::text(Role::Assistant, "1"),
            finish: ModelFinish::Stop,
            logprob: None,
        };
        Box::pin(async move {
            Ok(ModelResponse {
                choices: vec![vote; request.n as usize],
                prompt_tokens: 1,
                completion_tokens: 1,
            })
        })
    }

    fn score(
        &self,
        _: String,
        _: Vec<clawhost_plugins::Message>,
        _: String,
    ) -> Answer<Result<Vec<f32>, ModelError>> {
        Box::pin(async { Err(ModelError::Timeout) })
    }
}

/// A judge that calls this model.
fn judge_with_model(model: &Arc<WatchedModel>) -> (PluginHost, Plugin) {
    let host = PluginHost::new(HostOptions {
        model: Some(Arc::clone(model) as Arc<dyn ModelClient>),
        ..HostOptions::default()
    })
    .unwrap();
    let grants = Grants {
        allow: [Capability::Model].into(),
        ..Grants::default()
    };
    let judge = host
        .load("judge-model", JUDGE_MODEL, &grants, Profile::default())
        .unwrap();
    (host, judge)
}

/// The judging loop with one judge.
fn worker(
    journal: &Journal,
    host: &PluginHost,
    judge: Plugin,
    options: JudgingOptions,
) -> JudgeWorker {
    JudgeWorker::new(
        journal.clone(),
        host.threads().clone(),
        vec![judge],
        options,
        ExperienceOptions::default(),
        PluginsConfig::default(),
    )
}

/// Adds one turn and the user's next message.
fn add_turn(journal: &Journal, next: &str) -> TurnId {
    let session = SessionUpsert {
        id: SessionId(next.to_owned()),
        name: None,
        origin: "new".to_owned(),
        key: None,
        user: None,
        ms: 1,
    };
    let arrive = |next_state_of: Vec<NextState>, turns: Vec<NewTurn>| {
        journal
            .record_request(&NewRequest {
                session: session.clone(),
                retract: Vec::new(),
                next_state_of,
                turns,
            })
            .unwrap()
    };
    let turn = arrive(
        Vec::new(),
        vec![NewTurn {
            response_id: format!("response to {next}"),
            choice: 0,
            group: next.to_owned(),
            kind: TurnKind::Unknown,
            parent: None,
            received_ms: 1,
            key: None,
            owner: None,
            request_digest: String::new(),
            messages: vec![Message::user(
                "Tom has 3 apples and gets 4 more. How many now?",
            )],
            tools: Vec::new(),
            template: serde_json::Map::new(),
            experience: None,
            prompt_ids: vec![1],
            sampling: SamplingRecord::default(),
            adapter_version: 0,
            adapter_digest: String::new(),
            model: "m".to_owned(),
            matched: MatchRecord::default(),
            histories: Vec::new(),
        }],
    )[0];
    let completion = Completion {
        ms: 2,
        finish: Finish::Stop,
        reply: "Tom has 7 apples now.".into(),
        anchor: None,
        token_ids: vec![2, 3],
        logprobs: vec![-0.1, -0.2],
        full_logprobs: vec![-0.1, -0.2],
        forced: Vec::new(),
    };
    journal.complete(turn, &completion).unwrap();
    let next_state = NextState {
        turn,
        messages: vec![Message::user(next)],
        ms: 3,
        source: None,
    };
    arrive(vec![next_state], Vec::new());
    turn
}
