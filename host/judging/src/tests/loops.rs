//! What the loop makes of turns: verdicts, samples, and reasons for neither.

use std::sync::Arc;

use clawhost_journal::{
    Finish, JudgingState, NewStep, SampleRecord, SampleState, StepOutcome, TurnId, VerdictOutcome,
};
use clawhost_plugins::{FaultKind, PluginErrorKind};
use serde_json::json;
use tokio::sync::watch;

use super::stand_in::{Desk, StandIn, seated, transient, verdict};
use crate::judging::Judging;
use crate::options::{FaultPolicy, JudgingOptions, Neutral};
use crate::seats::Seated;
use crate::status::JudgingSnapshot;

/// Runs judging until every turn that is ready has been judged, and returns its last state.
pub(super) async fn settle(
    desk: &Desk,
    judge: Arc<StandIn>,
    options: JudgingOptions,
) -> JudgingSnapshot {
    settle_with(desk, seated(judge), options).await
}

/// The same, with anybody in the seats.
pub(super) async fn settle_with(
    desk: &Desk,
    seated: Seated,
    options: JudgingOptions,
) -> JudgingSnapshot {
    let together = !seated.groups.is_empty();
    let judging = Judging::with(desk.journal.clone(), seated, options);
    let state = judging.state();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(judging.run(stopped));
    let mut changes = state.watch();
    loop {
        let now = changes.borrow_and_update().clone();
        if now.stopped.is_some() {
            break;
        }
        let none_together = !together || desk.journal.ready_together(1).unwrap().is_empty();
        let none_apart = desk.journal.ready_for_judging(1).unwrap().is_empty();
        if none_together && none_apart && now.running == 0 {
            break;
        }
        changes.changed().await.unwrap();
    }
    // The loop may have ended by itself.
    let _ = stop.send(true);
    task.await.unwrap();
    state.snapshot()
}

pub(super) fn samples(desk: &Desk, turn: TurnId) -> Vec<SampleRecord> {
    desk.journal.samples_of(turn).unwrap()
}

pub(super) fn reason(desk: &Desk, turn: TurnId) -> (JudgingState, Option<String>) {
    let record = desk.journal.turn(turn).unwrap().unwrap();
    (record.judging, record.reason)
}

#[tokio::test]
async fn what_followed_becomes_a_verdict_and_a_sample() {
    let desk = Desk::new();
    let good = desk.turn("thanks!");
    let bad = desk.turn("no, again");
    let judge = StandIn::thanks();
    let state = settle(&desk, judge.clone(), JudgingOptions::default()).await;
    assert_eq!((state.judged, state.samples), (2, 2));
    for (turn, reward) in [(good, 1.0), (bad, -1.0)] {
        let samples = samples(&desk, turn);
        assert_eq!(samples.len(), 1);
        assert_eq!(samples[0].reward, Some(reward));
        assert_eq!(samples[0].baseline_key, "laptop/ann");
        assert_eq!(samples[0].provenance["components"], json!(["00ff"]));
        let verdicts = desk.journal.verdicts(turn).unwrap();
        assert_eq!(verdicts[0].source, "plugin:stand-in");
        assert_eq!(verdicts[0].rationale, format!("because {reward}"));
    }
    let seeds: Vec<u64> = judge.calls.lock().unwrap().iter().map(|c| c.seed).collect();
    assert_ne!(seeds[0], seeds[1]);
    // The same journal and seed ask with the same seeds.
    assert_eq!(seeds.len(), 2);
    assert!(seeds.contains(&crate::judge::seed(0, good.0)));
}

#[tokio::test]
async fn a_fault_is_no_verdict_and_no_sample() {
    let desk = Desk::new();
    let turn = desk.turn("thanks");
    let judge = StandIn::faulty(FaultKind::Trap {
        message: "unreachable".to_owned(),
    });
    let state = settle(&desk, judge.clone(), JudgingOptions::default()).await;
    assert!(samples(&desk, turn).is_empty());
    assert_eq!(
        reason(&desk, turn),
        (JudgingState::Skipped, Some("no verdict: trap".to_owned()))
    );
    let verdicts = desk.journal.verdicts(turn).unwrap();
    assert_eq!(
        verdicts[0].outcome,
        VerdictOutcome::None {
            reason: "trap".to_owned()
        }
    );
    assert!(verdicts[0].rationale.contains("unreachable"));
    assert_eq!(state.no_verdict.get("trap"), Some(&1));
    assert_eq!(judge.called(), 1, "a trap is not tried again");
}

#[tokio::test]
async fn a_transient_error_is_tried_again_within_bounds() {
    let quick = JudgingOptions {
        retry_wait_ms: 0,
        ..JudgingOptions::default()
    };
    let desk = Desk::new();
    let turn = desk.turn("thanks");
    let judge = StandIn::new(|call, _| {
        if call.attempt < 2 {
            Err(transient())
        } else {
            Ok(verdict(1.0))
        }
    });
    let state = settle(&desk, judge.clone(), quick.clone()).await;
    assert_eq!((judge.called(), state.retries), (3, 2));
    assert_eq!(samples(&desk, turn).len(), 1);

    let turn = desk.turn("thanks");
    let never = StandIn::new(|_, _| Err(transient()));
    settle(&desk, never.clone(), quick).await;
    assert_eq!(never.called(), 3);
    let (_, why) = reason(&desk, turn);
    assert_eq!(why.as_deref(), Some("no verdict: plugin-error: transient"));
}

#[tokio::test]
async fn several_attempts_go_by_majority_and_missing_votes_do_not_count() {
    let votes = |votes: &'static [Option<f32>]| {
        StandIn::new(move |call, _| match votes[call.attempt as usize] {
            Some(reward) => Ok(verdict(reward)),
            None => Err(clawhost_plugins::Fault::new(FaultKind::Stack)),
        })
    };
    let options = JudgingOptions {
        attempts: 3,
        neutral: Neutral::Sample,
        ..JudgingOptions::default()
    };
    for (given, expected) in [
        (&[Some(1.0), Some(-1.0), Some(1.0)], Some(1.0)),
        (&[Some(1.0), None, None], Some(1.0)),
        (&[Some(1.0), Some(-1.0), None], Some(0.0)),
        (&[None, None, None], None),
    ] {
        let desk = Desk::new();
        let turn = desk.turn("thanks");
        settle(&desk, votes(given), options.clone()).await;
        let rewards: Vec<f32> = samples(&desk, turn)
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
async fn what_must_not_train_gives_its_reason() {
    let desk = Desk::new();
    let said = |change: fn(&mut clawhost_journal::Completion)| {
        let turn = desk.replied(change);
        desk.then(turn, "thanks");
        turn
    };
    let cut = said(|c| c.finish = Finish::Aborted);
    let empty = said(|c| c.reply = json!({"role": "assistant", "content": "  "}));
    let tools = said(|c| {
        c.finish = Finish::ToolCalls;
        c.reply = json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    });
    settle(&desk, StandIn::thanks(), JudgingOptions::default()).await;
    let skipped = |why: &str| (JudgingState::Skipped, Some(why.to_owned()));
    assert_eq!(reason(&desk, cut), skipped("aborted reply"));
    assert_eq!(reason(&desk, empty), skipped("empty reply"));
    assert_eq!(reason(&desk, tools).0, JudgingState::Done);
    // The verdicts are kept all the same.
    assert_eq!(desk.journal.verdicts(cut).unwrap().len(), 1);

    let neutral = desk.turn("hm");
    let zero = || StandIn::new(|_, _| Ok(verdict(0.0)));
    settle(&desk, zero(), JudgingOptions::default()).await;
    assert_eq!(reason(&desk, neutral), skipped("neutral verdict"));

    let refused = desk.turn("thanks");
    let declines = StandIn::new(|_, _| {
        let mut verdict = verdict(1.0);
        verdict.accept = false;
        Ok(verdict)
    });
    settle(&desk, declines, JudgingOptions::default()).await;
    assert_eq!(reason(&desk, refused), skipped("not accepted by the judge"));
}

#[tokio::test]
async fn the_users_word_wins() {
    let desk = Desk::new();
    let turn = desk.turn("thanks");
    desk.feedback(turn, Some(-0.5), Some("in truth it was wrong"));
    settle(&desk, StandIn::thanks(), JudgingOptions::default()).await;
    let sample = &samples(&desk, turn)[0];
    assert_eq!(sample.reward, Some(-0.5));
    let sources: Vec<String> = desk
        .journal
        .verdicts(turn)
        .unwrap()
        .into_iter()
        .map(|v| v.source)
        .collect();
    assert_eq!(sources, ["user", "plugin:stand-in"]);
}

#[tokio::test]
async fn feedback_alone_is_enough_and_needs_no_judge() {
    let desk = Desk::new();
    let turn = desk.replied(|_| ());
    desk.feedback(turn, Some(1.0), None);
    let judge = StandIn::thanks();
    settle(&desk, judge.clone(), JudgingOptions::default()).await;
    assert_eq!(samples(&desk, turn)[0].reward, Some(1.0));
    assert_eq!(judge.called(), 0);
}

#[tokio::test]
async fn late_feedback_replaces_what_waits_and_repeats_nothing_that_was_learned() {
    let desk = Desk::new();
    let turn = desk.turn("thanks");
    let judge = StandIn::thanks();
    settle(&desk, judge.clone(), JudgingOptions::default()).await;
    desk.feedback(turn, Some(0.25), None);
    settle(&desk, judge.clone(), JudgingOptions::default()).await;
    let states: Vec<(Option<f32>, SampleState)> = samples(&desk, turn)
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
    assert_eq!(judge.called(), 1, "the next state was judged before");

    let trained = samples(&desk, turn)[1].id;
    desk.journal
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
        })
        .unwrap();
    desk.feedback(turn, Some(0.25), None);
    settle(&desk, judge.clone(), JudgingOptions::default()).await;
    assert_eq!(samples(&desk, turn).len(), 2);
    let (_, why) = reason(&desk, turn);
    assert_eq!(why.as_deref(), Some("already trained with this reward"));
}

#[tokio::test]
async fn quarantine_sets_a_judge_aside_after_faults_in_a_row() {
    let desk = Desk::new();
    for _ in 0..5 {
        desk.turn("thanks");
    }
    let options = JudgingOptions {
        on_fault: FaultPolicy::Quarantine,
        quarantine_after: 2,
        concurrency: 1,
        ..JudgingOptions::default()
    };
    let judge = StandIn::faulty(FaultKind::Stack);
    let state = settle(&desk, judge.clone(), options).await;
    assert_eq!(judge.called(), 2);
    assert_eq!(state.quarantined, ["stand-in"]);
    assert_eq!(state.no_verdict.get("quarantined"), Some(&3));
}

#[tokio::test]
async fn declining_a_turn_is_no_fault() {
    let desk = Desk::new();
    for _ in 0..5 {
        desk.turn("thanks");
    }
    let options = JudgingOptions {
        on_fault: FaultPolicy::Stop,
        ..JudgingOptions::default()
    };
    let judge = StandIn::faulty(FaultKind::PluginError {
        kind: PluginErrorKind::Unsupported,
        message: "not mine".to_owned(),
    });
    let state = settle(&desk, judge, options).await;
    assert_eq!((state.judged, state.stopped), (5, None));
    assert_eq!(state.no_verdict.get("abstained"), Some(&5));
}

#[tokio::test]
async fn stop_leaves_the_turn_ready() {
    let desk = Desk::new();
    let turn = desk.turn("thanks");
    let options = JudgingOptions {
        on_fault: FaultPolicy::Stop,
        ..JudgingOptions::default()
    };
    let state = settle(&desk, StandIn::faulty(FaultKind::Stack), options).await;
    assert!(state.stopped.unwrap().contains("judging.on_fault"));
    assert_eq!(reason(&desk, turn).0, JudgingState::Ready);
    settle(&desk, StandIn::thanks(), JudgingOptions::default()).await;
    assert_eq!(samples(&desk, turn).len(), 1);
}

#[tokio::test]
async fn a_backlog_is_worked_off_a_few_at_a_time() {
    let desk = Desk::new();
    let turns: Vec<TurnId> = (0..40).map(|_| desk.turn("thanks")).collect();
    let options = JudgingOptions {
        concurrency: 3,
        ..JudgingOptions::default()
    };
    let state = settle(&desk, StandIn::thanks(), options).await;
    assert_eq!(state.judged, 40);
    assert!(turns.iter().all(|turn| samples(&desk, *turn).len() == 1));
}

/// The host could not end the call in time: a fact about the machine.
fn too_busy() -> FaultKind {
    FaultKind::DeadlineExceeded { limit_ms: 5 }
}

fn soon() -> JudgingOptions {
    JudgingOptions {
        defer_wait_ms: 0,
        ..JudgingOptions::default()
    }
}

#[tokio::test]
async fn a_call_that_a_busy_machine_did_not_finish_is_judged_later_and_never_held_against_the_judge()
 {
    let desk = Desk::new();
    let turn = desk.turn("thanks");
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let judge =
        StandIn::new(
            move |_, _| match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                0..3 => Err(clawhost_plugins::Fault::new(too_busy())),
                _ => Ok(verdict(1.0)),
            },
        );
    let options = JudgingOptions {
        on_fault: FaultPolicy::Stop,
        ..soon()
    };
    let state = settle(&desk, judge.clone(), options).await;
    assert_eq!((state.judged, state.deferred), (1, 3), "{state:?}");
    assert!(state.no_verdict.is_empty() && state.stopped.is_none());
    assert_eq!(samples(&desk, turn)[0].reward, Some(1.0));
    assert_eq!(desk.journal.judgements(turn).unwrap().len(), 1);
    // The same question each time, and every call is accounted for.
    let calls = judge.calls.lock().unwrap().clone();
    assert_eq!(calls.len(), 4);
    assert!(calls.iter().all(|call| *call == calls[0]), "{calls:?}");
    assert_eq!(desk.journal.receipts(turn).unwrap().len(), 4);
}

#[tokio::test]
async fn a_call_that_the_machine_never_finishes_is_recorded_without_a_verdict_after_its_deferrals()
{
    let desk = Desk::new();
    let (first, second) = (desk.turn("thanks"), desk.turn("no"));
    let judge = StandIn::faulty(too_busy());
    let options = JudgingOptions {
        deferrals: 2,
        on_fault: FaultPolicy::Quarantine,
        quarantine_after: 1,
        ..soon()
    };
    let state = settle(&desk, judge.clone(), options).await;
    assert_eq!((state.judged, state.deferred), (2, 4), "{state:?}");
    assert_eq!(judge.called(), 6);
    assert!(state.quarantined.is_empty());
    let said = "no verdict: deadline-exceeded".to_owned();
    for turn in [first, second] {
        let expected = (JudgingState::Skipped, Some(said.clone()));
        assert_eq!(reason(&desk, turn), expected);
        assert_eq!(desk.journal.receipts(turn).unwrap().len(), 3);
    }
}
