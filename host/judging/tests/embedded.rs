//! The judge that ships with the program, in the real plugin host, on a real journal.
#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

use clawhost_chat::Message;
use clawhost_config::{ExperienceOptions, PluginsConfig};
use clawhost_journal::{
    Completion, Finish, Journal, MatchRecord, NewRequest, NewTurn, NextState, SamplingRecord,
    SessionId, SessionUpsert, TurnId, TurnKind, VerdictOutcome,
};
use clawhost_judging::{JudgeWorker, JudgingOptions};
use clawhost_plugins::{Grants, HostOptions, PluginHost, Profile, embedded_component};
use tokio::sync::watch;

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
    let judging = JudgeWorker::new(
        journal.clone(),
        vec![judge],
        JudgingOptions::default(),
        ExperienceOptions::default(),
        PluginsConfig::default(),
    );
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
    let judging = JudgeWorker::new(
        journal.clone(),
        vec![judge],
        JudgingOptions::default(),
        ExperienceOptions::default(),
        PluginsConfig::default(),
    );
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
