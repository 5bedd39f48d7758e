//! Tests of the judging loop: verdicts, samples, and the reasons for missing ones.

use std::sync::Arc;
use std::time::Duration;

use clawhost_journal::{
    Finish, JudgingState, NewStep, SampleRecord, SampleState, StepOutcome, TurnId, VerdictOutcome,
};
use clawhost_plugins::{FaultKind, PluginErrorKind};
use serde_json::json;
use tokio::sync::watch;

use super::fakes::{FakeJudge, Fixture, PanickingJudge, one_judge, transient, verdict};
use crate::slots::JudgeSet;
use crate::status::JudgingSnapshot;
use crate::worker::JudgeWorker;
use clawhost_config::{FaultPolicy, JudgingOptions, NeutralPolicy};

/// Runs judging until no turn is ready, and returns the last status.
pub(super) async fn run_judging(
    fixture: &Fixture,
    judge: Arc<FakeJudge>,
    options: JudgingOptions,
) -> JudgingSnapshot {
    run_judging_with(fixture, one_judge(judge), options).await
}

/// The same, with any set of judges.
pub(super) async fn run_judging_with(
    fixture: &Fixture,
    set: JudgeSet,
    options: JudgingOptions,
) -> JudgingSnapshot {
    let together = !set.groups.is_empty();
    let judging = JudgeWorker::with(fixture.journal.clone(), set, options);
    run_worker(fixture, judging, together).await
}

/// Runs a worker until no turn is ready, nor any group of choices if it judges them together.
pub(super) async fn run_worker(
    fixture: &Fixture,
    judging: JudgeWorker,
    together: bool,
) -> JudgingSnapshot {
    let state = judging.status();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(judging.run(stopped));
    let mut changes = state.watch();
    loop {
        let now = changes.borrow_and_update().clone();
        if now.stopped.is_some() {
            break;
        }
        let none_together = !together || fixture.journal.ready_choice_groups(1).unwrap().is_empty();
        let none_apart = fixture.journal.ready_for_judging(1).unwrap().is_empty();
        if none_together && none_apart && now.running == 0 {
            break;
        }
        changes.changed().await.unwrap();
    }
    // The loop may already have stopped.
    let _ = stop.send(true);
    task.await.unwrap();
    state.snapshot()
}

pub(super) fn samples(fixture: &Fixture, turn: TurnId) -> Vec<SampleRecord> {
    fixture.journal.samples_of_turn(turn).unwrap()
}

pub(super) fn reason(fixture: &Fixture, turn: TurnId) -> (JudgingState, Option<String>) {
    let record = fixture.journal.turn(turn).unwrap().unwrap();
    (record.judging, record.reason)
}

#[tokio::test]
async fn a_next_state_becomes_a_verdict_and_a_sample() {
    let fixture = Fixture::new();
    let good = fixture.add_turn("thanks!");
    let bad = fixture.add_turn("no, again");
    let judge = FakeJudge::thanks();
    let state = run_judging(&fixture, judge.clone(), JudgingOptions::default()).await;
    assert_eq!((state.judged, state.samples), (2, 2));
    for (turn, reward) in [(good, 1.0), (bad, -1.0)] {
        let samples = samples(&fixture, turn);
        assert_eq!(samples.len(), 1);
        assert_eq!(samples[0].reward, Some(reward));
        assert_eq!(samples[0].baseline_key, "laptop/ann");
        assert_eq!(samples[0].provenance.components, ["00ff"]);
        let verdicts = fixture.journal.verdicts(turn).unwrap();
        assert_eq!(verdicts[0].source, "plugin:fake-judge");
        assert_eq!(verdicts[0].rationale, format!("because {reward}"));
    }
    let seeds: Vec<u64> = judge.calls.lock().unwrap().iter().map(|c| c.seed).collect();
    assert_ne!(seeds[0], seeds[1]);
    // The same journal and seed produce the same call seeds.
    assert_eq!(seeds.len(), 2);
    assert!(seeds.contains(&crate::judge::seed(0, good.0)));
}

#[tokio::test]
async fn a_judge_fault_leaves_no_verdict_and_no_sample() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    let judge = FakeJudge::faulty(FaultKind::Trap {
        message: "unreachable".to_owned(),
    });
    let state = run_judging(&fixture, judge.clone(), JudgingOptions::default()).await;
    assert!(samples(&fixture, turn).is_empty());
    assert_eq!(
        reason(&fixture, turn),
        (JudgingState::Skipped, Some("no verdict: trap".to_owned()))
    );
    let verdicts = fixture.journal.verdicts(turn).unwrap();
    assert_eq!(
        verdicts[0].outcome,
        VerdictOutcome::None {
            reason: "trap".to_owned()
        }
    );
    assert!(verdicts[0].rationale.contains("unreachable"));
    assert_eq!(state.no_verdict.get("trap"), Some(&1));
    assert_eq!(judge.call_count(), 1, "a trap is not retried");
}

#[tokio::test]
async fn a_panic_in_a_call_is_a_missing_verdict_and_ends_nothing_else() {
    let fixture = Fixture::new();
    let broken = fixture.add_turn("thanks for the panic");
    let good = fixture.add_turn("thanks");
    let judge = FakeJudge::new(|_, trajectory| {
        let last = trajectory.turns.last().unwrap();
        let next = last.next_state.last().unwrap().visible_text();
        assert!(!next.contains("panic"), "the judge met {next}");
        Ok(verdict(1.0))
    });
    let state = run_judging(&fixture, judge, JudgingOptions::default()).await;
    assert_eq!((state.judged, state.samples), (2, 1));
    assert_eq!(
        reason(&fixture, broken),
        (JudgingState::Skipped, Some("no verdict: panic".to_owned()))
    );
    let verdicts = fixture.journal.verdicts(broken).unwrap();
    assert!(verdicts[0].rationale.contains("the judge met"));
    assert_eq!(samples(&fixture, good).len(), 1);
}

#[tokio::test]
async fn transient_errors_are_retried_up_to_the_limit() {
    let quick = JudgingOptions {
        retry_backoff: Duration::ZERO,
        ..JudgingOptions::default()
    };
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    let judge = FakeJudge::new(|call, _| {
        if call.attempt < 2 {
            Err(transient())
        } else {
            Ok(verdict(1.0))
        }
    });
    let state = run_judging(&fixture, judge.clone(), quick.clone()).await;
    assert_eq!((judge.call_count(), state.retries), (3, 2));
    assert_eq!(samples(&fixture, turn).len(), 1);

    let turn = fixture.add_turn("thanks");
    let never = FakeJudge::new(|_, _| Err(transient()));
    run_judging(&fixture, never.clone(), quick).await;
    assert_eq!(never.call_count(), 3);
    let (_, why) = reason(&fixture, turn);
    assert_eq!(why.as_deref(), Some("no verdict: plugin-error: transient"));
}

#[tokio::test]
async fn attempts_combine_by_majority_and_missing_votes_are_ignored() {
    let votes = |votes: &'static [Option<f32>]| {
        FakeJudge::new(move |call, _| match votes[call.attempt as usize] {
            Some(reward) => Ok(verdict(reward)),
            None => Err(clawhost_plugins::Fault::new(FaultKind::Stack)),
        })
    };
    let options = JudgingOptions {
        calls_per_judge: 3,
        neutral_policy: NeutralPolicy::Sample,
        ..JudgingOptions::default()
    };
    for (given, expected) in [
        (&[Some(1.0), Some(-1.0), Some(1.0)], Some(1.0)),
        (&[Some(1.0), None, None], Some(1.0)),
        (&[Some(1.0), Some(-1.0), None], Some(0.0)),
        (&[None, None, None], None),
    ] {
        let fixture = Fixture::new();
        let turn = fixture.add_turn("thanks");
        run_judging(&fixture, votes(given), options.clone()).await;
        let rewards: Vec<f32> = samples(&fixture, turn)
            .iter()
            .filter_map(|s| s.reward)
            .collect();
        assert_eq!(
            rewards,
            expected.into_iter().collect::<Vec<f32>>(),
            "{given:?}"
        );
    }
}

#[tokio::test]
async fn skipped_turns_record_their_reason() {
    let fixture = Fixture::new();
    let add_turn = |change: fn(&mut clawhost_journal::Completion)| {
        let turn = fixture.add_turn_with(change);
        fixture.add_next_state(turn, "thanks");
        turn
    };
    let cut = add_turn(|c| c.finish = Finish::Aborted);
    let empty = add_turn(|c| c.reply = "  ".into());
    let tools = add_turn(|c| {
        c.finish = Finish::ToolCalls;
        c.reply.content = None;
        c.reply.tool_calls = vec![clawhost_chat::ToolCall::new("1", "f", "{}")];
    });
    run_judging(&fixture, FakeJudge::thanks(), JudgingOptions::default()).await;
    let skipped = |why: &str| (JudgingState::Skipped, Some(why.to_owned()));
    assert_eq!(reason(&fixture, cut), skipped("aborted reply"));
    assert_eq!(reason(&fixture, empty), skipped("empty reply"));
    assert_eq!(reason(&fixture, tools).0, JudgingState::Done);
    // The verdicts are still recorded.
    assert_eq!(fixture.journal.verdicts(cut).unwrap().len(), 1);

    let neutral = fixture.add_turn("hm");
    let zero = || FakeJudge::new(|_, _| Ok(verdict(0.0)));
    run_judging(&fixture, zero(), JudgingOptions::default()).await;
    assert_eq!(reason(&fixture, neutral), skipped("neutral verdict"));

    let refused = fixture.add_turn("thanks");
    let declines = FakeJudge::new(|_, _| {
        let mut verdict = verdict(1.0);
        verdict.accept = false;
        Ok(verdict)
    });
    run_judging(&fixture, declines, JudgingOptions::default()).await;
    assert_eq!(
        reason(&fixture, refused),
        skipped("not accepted by the judge")
    );
}

#[tokio::test]
async fn the_user_score_wins_over_the_judges() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    fixture.add_feedback(turn, Some(-0.5), Some("in truth it was wrong"));
    run_judging(&fixture, FakeJudge::thanks(), JudgingOptions::default()).await;
    let sample = &samples(&fixture, turn)[0];
    assert_eq!(sample.reward, Some(-0.5));
    let sources: Vec<String> = fixture
        .journal
        .verdicts(turn)
        .unwrap()
        .into_iter()
        .map(|v| v.source)
        .collect();
    assert_eq!(sources, ["user", "plugin:fake-judge"]);
}

#[tokio::test]
async fn a_user_score_alone_makes_a_sample_without_a_judge() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn_with(|_| ());
    fixture.add_feedback(turn, Some(1.0), None);
    let judge = FakeJudge::thanks();
    run_judging(&fixture, judge.clone(), JudgingOptions::default()).await;
    assert_eq!(samples(&fixture, turn)[0].reward, Some(1.0));
    assert_eq!(judge.call_count(), 0);
}

#[tokio::test]
async fn late_feedback_replaces_queued_samples_and_never_retrains_the_same_reward() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    let judge = FakeJudge::thanks();
    run_judging(&fixture, judge.clone(), JudgingOptions::default()).await;
    fixture.add_feedback(turn, Some(0.25), None);
    run_judging(&fixture, judge.clone(), JudgingOptions::default()).await;
    let states: Vec<(Option<f32>, SampleState)> = samples(&fixture, turn)
        .iter()
        .map(|s| (s.reward, s.state))
        .collect();
    assert_eq!(
        states,
        [
            (Some(1.0), SampleState::Dropped),
            (Some(0.25), SampleState::Queued)
        ]
    );
    assert_eq!(judge.call_count(), 1, "the next state was already judged");

    let trained = samples(&fixture, turn)[1].id;
    fixture
        .journal
        .commit_step(&NewStep {
            started_ms: 1,
            ended_ms: 2,
            outcome: StepOutcome::NoSignal,
            reason: None,
            metrics: json!({}),
            trained: vec![(trained, 1.0)],
            dropped: Vec::new(),
            adapter: None,
            meta: Vec::new(),
            experience: None,
        })
        .unwrap();
    fixture.add_feedback(turn, Some(0.25), None);
    run_judging(&fixture, judge.clone(), JudgingOptions::default()).await;
    assert_eq!(samples(&fixture, turn).len(), 2);
    let (_, why) = reason(&fixture, turn);
    assert_eq!(why.as_deref(), Some("already trained with this reward"));
}

#[tokio::test]
async fn consecutive_faults_quarantine_a_judge() {
    let fixture = Fixture::new();
    for _ in 0..5 {
        fixture.add_turn("thanks");
    }
    let options = JudgingOptions {
        fault_policy: FaultPolicy::Quarantine,
        quarantine_after_faults: 2,
        max_concurrent_turns: 1,
        ..JudgingOptions::default()
    };
    let judge = FakeJudge::faulty(FaultKind::Stack);
    let state = run_judging(&fixture, judge.clone(), options).await;
    assert_eq!(judge.call_count(), 2);
    assert_eq!(state.quarantined, ["fake-judge"]);
    assert_eq!(state.no_verdict.get("quarantined"), Some(&3));
}

#[tokio::test]
async fn abstaining_is_not_a_fault() {
    let fixture = Fixture::new();
    for _ in 0..5 {
        fixture.add_turn("thanks");
    }
    let options = JudgingOptions {
        fault_policy: FaultPolicy::Stop,
        ..JudgingOptions::default()
    };
    let judge = FakeJudge::faulty(FaultKind::PluginError {
        kind: PluginErrorKind::Unsupported,
        message: "not mine".to_owned(),
    });
    let state = run_judging(&fixture, judge, options).await;
    assert_eq!((state.judged, state.stopped), (5, None));
    assert_eq!(state.no_verdict.get("abstained"), Some(&5));
}

#[tokio::test]
async fn the_stop_policy_leaves_the_turn_ready() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    let options = JudgingOptions {
        fault_policy: FaultPolicy::Stop,
        ..JudgingOptions::default()
    };
    let state = run_judging(&fixture, FakeJudge::faulty(FaultKind::Stack), options).await;
    assert!(state.stopped.unwrap().contains("judging.fault_policy"));
    assert_eq!(reason(&fixture, turn).0, JudgingState::Ready);
    run_judging(&fixture, FakeJudge::thanks(), JudgingOptions::default()).await;
    assert_eq!(samples(&fixture, turn).len(), 1);
}

#[tokio::test]
async fn a_backlog_is_judged_within_the_concurrency_limit() {
    let fixture = Fixture::new();
    let turns: Vec<TurnId> = (0..40).map(|_| fixture.add_turn("thanks")).collect();
    let options = JudgingOptions {
        max_concurrent_turns: 3,
        ..JudgingOptions::default()
    };
    let state = run_judging(&fixture, FakeJudge::thanks(), options).await;
    assert_eq!(state.judged, 40);
    assert!(turns.iter().all(|turn| samples(&fixture, *turn).len() == 1));
}

/// A host condition: the call did not finish within the wall limit.
fn host_deadline() -> FaultKind {
    FaultKind::DeadlineExceeded { limit_ms: 5 }
}

fn no_defer_wait() -> JudgingOptions {
    JudgingOptions {
        deferral_backoff: Duration::ZERO,
        ..JudgingOptions::default()
    }
}

#[tokio::test]
async fn host_conditions_defer_the_judgement_and_do_not_count_as_faults() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let judge =
        FakeJudge::new(
            move |_, _| match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                0..3 => Err(clawhost_plugins::Fault::new(host_deadline())),
                _ => Ok(verdict(1.0)),
            },
        );
    let options = JudgingOptions {
        fault_policy: FaultPolicy::Stop,
        ..no_defer_wait()
    };
    let state = run_judging(&fixture, judge.clone(), options).await;
    assert_eq!((state.judged, state.deferred), (1, 3), "{state:?}");
    assert!(state.no_verdict.is_empty() && state.stopped.is_none());
    assert_eq!(samples(&fixture, turn)[0].reward, Some(1.0));
    assert_eq!(fixture.journal.judgements(turn).unwrap().len(), 1);
    // Every attempt makes the same call, and every call has a receipt.
    let calls = judge.calls.lock().unwrap().clone();
    assert_eq!(calls.len(), 4);
    assert!(calls.iter().all(|call| *call == calls[0]), "{calls:?}");
    assert_eq!(fixture.journal.receipts(turn).unwrap().len(), 4);
}

#[tokio::test]
async fn a_turn_is_recorded_without_a_verdict_after_the_last_deferral() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.add_turn("thanks"), fixture.add_turn("no"));
    let judge = FakeJudge::faulty(host_deadline());
    let options = JudgingOptions {
        max_deferrals: 2,
        fault_policy: FaultPolicy::Quarantine,
        quarantine_after_faults: 1,
        ..no_defer_wait()
    };
    let state = run_judging(&fixture, judge.clone(), options).await;
    assert_eq!((state.judged, state.deferred), (2, 4), "{state:?}");
    assert_eq!(judge.call_count(), 6);
    assert!(state.quarantined.is_empty());
    let reason_text = "no verdict: deadline-exceeded".to_owned();
    for turn in [first, second] {
        let expected = (JudgingState::Skipped, Some(reason_text.clone()));
        assert_eq!(reason(&fixture, turn), expected);
        assert_eq!(fixture.journal.receipts(turn).unwrap().len(), 3);
    }
}

#[tokio::test]
async fn a_panic_outside_of_a_call_skips_the_turn_until_new_evidence_arrives() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    let judge = Arc::new(PanickingJudge(FakeJudge::thanks()));
    let state = run_judging_with(&fixture, one_judge(judge), JudgingOptions::default()).await;
    let reason_text = "judging panicked: no digest".to_owned();
    assert_eq!(state.skipped.get(&reason_text), Some(&1), "{state:?}");
    let expected = (JudgingState::Skipped, Some(reason_text));
    assert_eq!(reason(&fixture, turn), expected);
    assert!(samples(&fixture, turn).is_empty());
    fixture.add_feedback(turn, None, Some("thanks"));
    run_judging(&fixture, FakeJudge::thanks(), JudgingOptions::default()).await;
    assert_eq!(samples(&fixture, turn)[0].reward, Some(1.0));
}
