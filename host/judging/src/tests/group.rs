//! The choices of one request are judged together, once, and never trained twice.

use std::sync::Arc;

use clawhost_journal::{Finish, JudgingState, SampleState, TurnId, VerdictOutcome};
use clawhost_plugins::{Fault, FaultKind, PluginErrorKind};

use super::fakes::{FakeGroupJudge, FakeHintExtractor, FakeJudge, Fixture, verdict};
use super::worker::{run_judging, run_judging_with};
use crate::judge::{GroupJudge, Judge};
use crate::rejudge::Rejudger;
use crate::slots::JudgeSet;
use clawhost_config::CombineRule;
use clawhost_config::{FaultPolicy, JudgingOptions};

fn judge_set(group_judge: Arc<FakeGroupJudge>, judge: Arc<FakeJudge>) -> JudgeSet {
    JudgeSet {
        judges: vec![judge as Arc<dyn Judge>],
        groups: vec![group_judge as Arc<dyn GroupJudge>],
        ..JudgeSet::default()
    }
}

fn rewards(fixture: &Fixture, turns: &[TurnId]) -> Vec<Option<f32>> {
    let of = |turn: &TurnId| fixture.journal.samples_of_turn(*turn).unwrap().pop();
    turns.iter().map(|t| of(t)?.reward).collect()
}

fn reasons(fixture: &Fixture, turns: &[TurnId]) -> Vec<Option<String>> {
    let record = |turn: &TurnId| fixture.journal.turn(*turn).unwrap().unwrap();
    turns.iter().map(|turn| record(turn).reason).collect()
}

#[tokio::test]
async fn each_choice_gets_a_reward_without_a_next_state() {
    let fixture = Fixture::new();
    let turns = fixture.add_choices(3, |_, _| ());
    let alone = fixture.add_turn("thanks");
    let (group_judge, judge) = (FakeGroupJudge::of(&[1.0, 0.0, -1.0]), FakeJudge::thanks());
    let options = JudgingOptions::default();
    let state = run_judging_with(
        &fixture,
        judge_set(group_judge.clone(), judge.clone()),
        options,
    )
    .await;
    // A middle rank is a reward of 0, not a neutral verdict.
    assert_eq!(
        rewards(&fixture, &turns),
        [Some(1.0), Some(0.0), Some(-1.0)]
    );
    assert_eq!((state.judged, state.together, state.samples), (4, 1, 4));
    let ids: Vec<String> = turns.iter().map(TurnId::to_string).collect();
    assert_eq!(*group_judge.seen.lock().unwrap(), [(ids.join("+"), ids)]);
    for turn in &turns {
        let verdicts = fixture.journal.verdicts(*turn).unwrap();
        assert_eq!(verdicts.len(), 1);
        assert_eq!(verdicts[0].source, "plugin:fake-group-judge");
        assert_eq!(verdicts[0].digest.as_deref(), Some("00aa"));
    }
    let receipts = |turn| fixture.journal.receipts(turn).unwrap().len();
    assert_eq!(
        turns.iter().map(|t| receipts(*t)).collect::<Vec<_>>(),
        [1, 0, 0],
        "one call, one receipt"
    );
    // A request with one choice goes to the single-turn judges.
    assert_eq!(rewards(&fixture, &[alone]), [Some(1.0)]);
    assert_eq!(judge.call_count(), 1);
}

#[tokio::test]
async fn the_next_state_of_a_choice_does_not_train_it_again() {
    let fixture = Fixture::new();
    let turns = fixture.add_choices(2, |_, _| ());
    let judge = FakeJudge::thanks();
    let judges = || judge_set(FakeGroupJudge::of(&[0.5, -0.5]), judge.clone());
    run_judging_with(&fixture, judges(), JudgingOptions::default()).await;
    fixture.add_next_state(turns[0], "no, wrong");
    run_judging_with(&fixture, judges(), JudgingOptions::default()).await;
    assert_eq!(judge.call_count(), 0);
    let samples = fixture.journal.samples_of_turn(turns[0]).unwrap();
    assert_eq!(samples.len(), 1);
    assert_eq!(
        (samples[0].reward, samples[0].state),
        (Some(0.5), SampleState::Queued)
    );
    let record = fixture.journal.turn(turns[0]).unwrap().unwrap();
    assert_eq!(
        (record.judging, record.next_judged),
        (JudgingState::Done, true)
    );

    // The user's score wins and replaces the queued sample.
    fixture.add_feedback(turns[0], Some(-1.0), None);
    run_judging_with(&fixture, judges(), JudgingOptions::default()).await;
    let states: Vec<(Option<f32>, SampleState)> = fixture
        .journal
        .samples_of_turn(turns[0])
        .unwrap()
        .iter()
        .map(|s| (s.reward, s.state))
        .collect();
    assert_eq!(
        states,
        [
            (Some(0.5), SampleState::Dropped),
            (Some(-1.0), SampleState::Queued)
        ]
    );
    // Feedback text without a score goes to the judges.
    fixture.add_feedback(turns[1], None, Some("thanks, this one"));
    run_judging_with(&fixture, judges(), JudgingOptions::default()).await;
    assert_eq!(
        (judge.call_count(), rewards(&fixture, &turns)[1]),
        (1, Some(1.0))
    );
}

#[tokio::test]
async fn requests_with_a_judged_choice_skip_the_group_judges() {
    let fixture = Fixture::new();
    let turns = fixture.add_choices(2, |_, _| ());
    fixture.add_next_state(turns[1], "thanks");
    run_judging(&fixture, FakeJudge::thanks(), JudgingOptions::default()).await;
    assert_eq!(rewards(&fixture, &turns), [None, Some(1.0)]);
    let group_judge = FakeGroupJudge::of(&[1.0, -1.0]);
    let judges = judge_set(group_judge.clone(), FakeJudge::thanks());
    run_judging_with(&fixture, judges, JudgingOptions::default()).await;
    assert_eq!(group_judge.call_count(), 0);
    assert_eq!(rewards(&fixture, &turns), [None, Some(1.0)]);
}

#[tokio::test]
async fn a_group_judge_fault_or_abstention_leaves_all_choices_without_a_verdict() {
    let unsupported = FaultKind::PluginError {
        kind: PluginErrorKind::Unsupported,
        message: "more replies than letters".to_owned(),
    };
    for (kind, reason) in [(FaultKind::Stack, "stack"), (unsupported, "abstained")] {
        let fixture = Fixture::new();
        let turns = fixture.add_choices(2, |_, _| ());
        let fails = FakeGroupJudge::new(move |_| Err(Fault::new(kind.clone())));
        let judges = judge_set(fails, FakeJudge::thanks());
        let state = run_judging_with(&fixture, judges, JudgingOptions::default()).await;
        assert_eq!(rewards(&fixture, &turns), [None, None]);
        let expected = Some(format!("no verdict: {reason}"));
        assert_eq!(
            reasons(&fixture, &turns),
            [expected.clone(), expected.clone()]
        );
        assert_eq!(state.no_verdict.get(reason), Some(&2));
        // A next state does not reopen the judgement: there is still no verdict, and no zero.
        fixture.add_next_state(turns[0], "thanks");
        let judges = judge_set(FakeGroupJudge::of(&[1.0, 1.0]), FakeJudge::thanks());
        run_judging_with(&fixture, judges, JudgingOptions::default()).await;
        assert_eq!(rewards(&fixture, &turns), [None, None]);
        assert_eq!(reasons(&fixture, &turns)[0], expected);
    }
}

#[tokio::test]
async fn the_fault_policy_applies_to_group_judges() {
    let failing = || FakeGroupJudge::new(|_| Err(Fault::new(FaultKind::Stack)));
    let options = |on_fault| JudgingOptions {
        fault_policy: on_fault,
        quarantine_after_faults: 2,
        max_concurrent_turns: 1,
        ..JudgingOptions::default()
    };
    let fixture = Fixture::new();
    for _ in 0..4 {
        fixture.add_choices(2, |_, _| ());
    }
    let group_judge = failing();
    let judges = judge_set(group_judge.clone(), FakeJudge::thanks());
    let state = run_judging_with(&fixture, judges, options(FaultPolicy::Quarantine)).await;
    assert_eq!(
        (group_judge.call_count(), state.quarantined),
        (2, vec!["fake-group-judge".to_owned()])
    );
    assert_eq!(state.no_verdict.get("quarantined"), Some(&4));

    let fixture = Fixture::new();
    let turns = fixture.add_choices(2, |_, _| ());
    let judges = judge_set(failing(), FakeJudge::thanks());
    let state = run_judging_with(&fixture, judges, options(FaultPolicy::Stop)).await;
    assert!(
        state
            .stopped
            .unwrap()
            .contains("fake-group-judge failed on turns")
    );
    // Nothing is recorded; the next start judges the request.
    assert_eq!(fixture.journal.ready_choice_groups(9).unwrap().len(), 1);
    let judges = judge_set(FakeGroupJudge::of(&[1.0, -1.0]), FakeJudge::thanks());
    run_judging_with(&fixture, judges, options(FaultPolicy::Stop)).await;
    assert_eq!(rewards(&fixture, &turns), [Some(1.0), Some(-1.0)]);
}

#[tokio::test]
async fn untrainable_choices_are_still_shown_to_group_judges() {
    let fixture = Fixture::new();
    let turns = fixture.add_choices(3, |choice, completion| {
        if choice == 1 {
            completion.finish = Finish::Length;
        }
    });
    let refusing = FakeGroupJudge::new(|group| {
        assert_eq!(
            group
                .iter()
                .map(|t| t.turns[0].truncated)
                .collect::<Vec<_>>(),
            [false, true, false]
        );
        let mut verdicts = vec![verdict(1.0), verdict(-1.0), verdict(0.5)];
        verdicts[2].accept = false;
        Ok(verdicts)
    });
    let judges = judge_set(refusing, FakeJudge::thanks());
    run_judging_with(&fixture, judges, JudgingOptions::default()).await;
    assert_eq!(rewards(&fixture, &turns), [Some(1.0), None, None]);
    let expected = ["truncated reply", "not accepted by the judge"].map(|why| Some(why.to_owned()));
    assert_eq!(reasons(&fixture, &turns)[1..], expected);
}

#[tokio::test]
async fn several_group_judges_combine_by_the_configured_rule() {
    let fixture = Fixture::new();
    let turns = fixture.add_choices(2, |_, _| ());
    let judges = JudgeSet {
        groups: vec![
            FakeGroupJudge::of(&[1.0, -0.5]),
            FakeGroupJudge::of(&[0.5, 0.0]),
        ],
        ..JudgeSet::default()
    };
    let options = JudgingOptions {
        aggregation: CombineRule::Mean,
        ..JudgingOptions::default()
    };
    run_judging_with(&fixture, judges, options).await;
    assert_eq!(rewards(&fixture, &turns), [Some(0.75), Some(-0.25)]);
}

#[tokio::test]
async fn the_next_state_of_a_choice_is_shown_to_extractors() {
    let fixture = Fixture::new();
    let turns = fixture.add_choices(2, |_, _| ());
    let extractor = FakeHintExtractor::new(None);
    let judges = || JudgeSet {
        hints: vec![extractor.clone()],
        ..judge_set(FakeGroupJudge::of(&[1.0, -1.0]), FakeJudge::thanks())
    };
    run_judging_with(&fixture, judges(), JudgingOptions::default()).await;
    assert!(
        extractor.seen.lock().unwrap().is_empty(),
        "there is no next state"
    );
    fixture.add_next_state(turns[0], "shorter please");
    run_judging_with(&fixture, judges(), JudgingOptions::default()).await;
    assert_eq!(*extractor.seen.lock().unwrap(), ["shorter please"]);
    assert_eq!(fixture.journal.hints(turns[0]).unwrap().len(), 1);
    assert_eq!(rewards(&fixture, &turns), [Some(1.0), Some(-1.0)]);
}

#[tokio::test]
async fn choices_are_rejudged_together() {
    let fixture = Fixture::new();
    let turns = fixture.add_choices(2, |_, _| ());
    let judges = judge_set(FakeGroupJudge::of(&[1.0, -1.0]), FakeJudge::thanks());
    run_judging_with(&fixture, judges, JudgingOptions::default()).await;
    fixture.add_next_state(turns[0], "hm");
    fixture.add_feedback(turns[1], Some(0.25), None);
    let judges = judge_set(FakeGroupJudge::of(&[1.0, -1.0]), FakeJudge::thanks());
    run_judging_with(&fixture, judges, JudgingOptions::default()).await;

    let group_judge = FakeGroupJudge::of(&[-0.5, 0.5]);
    let judges = judge_set(group_judge.clone(), FakeJudge::thanks());
    let rejudging = Rejudger::with(judges, JudgingOptions::default());
    let result = rejudging
        .rejudge_group(&fixture.journal, turns[1])
        .await
        .unwrap();
    let rewards: Vec<_> = result.iter().map(|t| t.combined.unwrap().reward).collect();
    assert_eq!(rewards, [Some(-0.5), Some(0.5)]);
    let recorded: Vec<_> = result.iter().map(|t| t.recorded.unwrap().reward).collect();
    assert_eq!(recorded, [Some(1.0), Some(-1.0)]);
    // The user's score of the second choice decides.
    let samples: Vec<_> = result.iter().map(|t| t.sample.clone()).collect();
    assert_eq!(samples, [Ok(Some(-0.5)), Ok(Some(0.25))]);
    assert_eq!(group_judge.call_count(), 1);
    for verdict in &result[0].verdicts {
        assert!(matches!(verdict.outcome, VerdictOutcome::Verdict { .. }));
    }
    // There is nothing to judge about the first choice alone.
    assert!(
        rejudging
            .rejudge_turn(&fixture.journal, turns[0])
            .await
            .unwrap()
            .is_none()
    );
}
