//! Samples without a reward: turns with a hint but no verdict, with `judging.hint_only_samples`.

use std::sync::Arc;

use clawhost_journal::{
    Finish, HintSource, JudgingState, NewStep, SampleRecord, SampleState, SessionId, StepOutcome,
    TurnId,
};
use clawhost_plugins::FaultKind;
use serde_json::json;

use super::fakes::{FakeGroupJudge, FakeHintExtractor, FakeJudge, Fixture, one_judge, verdict};
use super::worker::run_judging_with;
use crate::slots::JudgeSet;
use clawhost_config::{JudgingOptions, NeutralPolicy};

/// A judge that returns 0 for every turn.
fn neutral() -> Arc<FakeJudge> {
    FakeJudge::new(|_, _| Ok(verdict(0.0)))
}

/// A judge, and an extractor with a hint for everything but thanks.
fn judge_set(judge: Arc<FakeJudge>) -> JudgeSet {
    JudgeSet {
        hints: vec![FakeHintExtractor::new(None)],
        ..one_judge(judge)
    }
}

fn hinted() -> JudgingOptions {
    JudgingOptions {
        hint_only_samples: true,
        ..JudgingOptions::default()
    }
}

fn samples(fixture: &Fixture, turn: TurnId) -> Vec<SampleRecord> {
    fixture.journal.samples_of_turn(turn).unwrap()
}

fn texts(sample: &SampleRecord) -> Vec<&str> {
    sample.hints.iter().map(|hint| hint.text.as_str()).collect()
}

fn reason(fixture: &Fixture, turn: TurnId) -> Option<String> {
    fixture.journal.turn(turn).unwrap().unwrap().reason
}

/// Commits a step that trains all queued samples.
fn train(fixture: &Fixture) {
    let queued = fixture.journal.queued_samples(99).unwrap();
    let step = NewStep {
        started_ms: 1,
        ended_ms: 2,
        outcome: StepOutcome::NoSignal,
        reason: None,
        metrics: json!({}),
        trained: queued.iter().map(|sample| (sample.id, 0.5)).collect(),
        dropped: Vec::new(),
        adapter: None,
        meta: Vec::new(),
        experience: None,
    };
    fixture.journal.commit_step(&step).unwrap();
}

#[tokio::test]
async fn a_hint_without_a_reward_makes_a_sample_only_if_enabled() {
    let rows = [
        (neutral(), "neutral verdict"),
        (FakeJudge::faulty(FaultKind::Stack), "no verdict: stack"),
    ];
    for (judge, why) in rows {
        let fixture = Fixture::new();
        let turn = fixture.add_turn("shorter please");
        let options = JudgingOptions::default();
        let state = run_judging_with(&fixture, judge_set(judge.clone()), options).await;
        assert_eq!(state.samples, 0, "hinted samples are off by default");
        assert_eq!(reason(&fixture, turn).as_deref(), Some(why));

        let fixture = Fixture::new();
        let (advised, plain) = (
            fixture.add_turn("shorter please"),
            fixture.add_turn("thanks"),
        );
        let state = run_judging_with(&fixture, judge_set(judge), hinted()).await;
        let recorded = samples(&fixture, advised);
        assert_eq!(
            (recorded.len(), recorded[0].reward),
            (1, None),
            "never a zero"
        );
        assert_eq!(texts(&recorded[0]), ["mind: shorter please"]);
        assert_eq!(recorded[0].baseline_key, "laptop/ann");
        assert_eq!(recorded[0].provenance.components, ["00bb", "00ff"]);
        let giver = HintSource {
            source: "plugin:fake-extractor".to_owned(),
            digest: "00bb".to_owned(),
        };
        assert_eq!(recorded[0].provenance.hints, [giver]);
        let record = fixture.journal.turn(advised).unwrap().unwrap();
        assert_eq!((record.judging, record.reason), (JudgingState::Done, None));
        assert!(samples(&fixture, plain).is_empty(), "no hint, no sample");
        assert_eq!(reason(&fixture, plain).as_deref(), Some(why));
        assert_eq!((state.samples, state.samples_by_hint), (1, 1));
        assert_eq!(state.skipped[why], 1);
    }
}

#[tokio::test]
async fn extractors_without_a_judge_make_samples() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("shorter please");
    let only = JudgeSet {
        hints: vec![FakeHintExtractor::new(None)],
        ..JudgeSet::default()
    };
    run_judging_with(&fixture, only, hinted()).await;
    let recorded = samples(&fixture, turn);
    assert_eq!((recorded.len(), recorded[0].reward), (1, None));
    assert_eq!(recorded[0].provenance.verdicts, []);
}

#[tokio::test]
async fn a_reward_takes_precedence_and_keeps_its_hints() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("shorter please");
    run_judging_with(&fixture, judge_set(FakeJudge::thanks()), hinted()).await;
    let recorded = samples(&fixture, turn);
    assert_eq!((recorded.len(), recorded[0].reward), (1, Some(-1.0)));
    assert_eq!(texts(&recorded[0]), ["mind: shorter please"]);
    assert_eq!(recorded[0].provenance.components, ["00bb", "00ff"]);

    // With `neutral = "sample"` a neutral verdict is a reward of 0.
    let fixture = Fixture::new();
    let turn = fixture.add_turn("shorter please");
    let options = JudgingOptions {
        neutral_policy: NeutralPolicy::Sample,
        ..hinted()
    };
    run_judging_with(&fixture, judge_set(neutral()), options).await;
    assert_eq!(samples(&fixture, turn)[0].reward, Some(0.0));
}

#[tokio::test]
async fn untrainable_turns_do_not_train_by_a_hint_either() {
    type Change = fn(&mut clawhost_journal::Completion);
    let rows: [(Change, &str); 3] = [
        (|c| c.finish = Finish::Length, "no verdict: stack"),
        (|c| c.finish = Finish::Aborted, "no verdict: stack"),
        (|c| c.reply = " ".into(), "no verdict: stack"),
    ];
    for (change, why) in rows {
        let fixture = Fixture::new();
        let turn = fixture.add_turn_with(change);
        fixture.add_next_state(turn, "shorter please");
        let judge = FakeJudge::faulty(FaultKind::Stack);
        let options = JudgingOptions {
            train_truncated: false,
            ..hinted()
        };
        run_judging_with(&fixture, judge_set(judge), options).await;
        assert!(samples(&fixture, turn).is_empty(), "{why}");
        assert_eq!(reason(&fixture, turn).as_deref(), Some(why));
        assert_eq!(
            fixture.journal.hints(turn).unwrap().len(),
            1,
            "the hint is recorded"
        );
    }
    let fixture = Fixture::new();
    let turn = fixture.add_turn("shorter please");
    let refusing = FakeJudge::new(|_, _| {
        Ok(clawhost_plugins::Verdict {
            accept: false,
            ..verdict(0.0)
        })
    });
    run_judging_with(&fixture, judge_set(refusing), hinted()).await;
    let why = reason(&fixture, turn);
    assert_eq!(why.as_deref(), Some("not accepted by the judge"));
    let truncated = fixture.add_turn_with(|c| c.finish = Finish::Length);
    fixture.add_next_state(truncated, "shorter please");
    let options = JudgingOptions {
        train_truncated: true,
        ..hinted()
    };
    run_judging_with(&fixture, judge_set(neutral()), options).await;
    assert_eq!(samples(&fixture, truncated).len(), 1);
}

#[tokio::test]
async fn late_feedback_replaces_a_sample_without_a_reward() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("shorter please");
    run_judging_with(&fixture, judge_set(neutral()), hinted()).await;
    fixture.add_feedback(turn, Some(-1.0), None);
    run_judging_with(&fixture, judge_set(neutral()), hinted()).await;
    let recorded = samples(&fixture, turn);
    let states: Vec<_> = recorded.iter().map(|s| (s.reward, s.state)).collect();
    assert_eq!(
        states,
        [
            (None, SampleState::Dropped),
            (Some(-1.0), SampleState::Queued)
        ]
    );
    assert_eq!(texts(&recorded[1]), ["mind: shorter please"]);
}

#[tokio::test]
async fn the_same_hint_trains_once() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("shorter please");
    run_judging_with(&fixture, judge_set(neutral()), hinted()).await;
    train(&fixture);
    // The same text again: judged neutral again, and the hint is not new.
    fixture.add_feedback(turn, None, Some("shorter please"));
    run_judging_with(&fixture, judge_set(neutral()), hinted()).await;
    assert_eq!(samples(&fixture, turn).len(), 1);
    assert_eq!(reason(&fixture, turn).as_deref(), Some("neutral verdict"));
    fixture.add_feedback(turn, None, Some("and in English"));
    run_judging_with(&fixture, judge_set(neutral()), hinted()).await;
    let recorded = samples(&fixture, turn);
    assert_eq!((recorded.len(), recorded[1].reward), (2, None));
    assert_eq!(texts(&recorded[1]), ["mind: and in English"]);
}

#[tokio::test]
async fn a_session_with_a_hinted_sample_is_not_a_neutral_session() {
    for (wanted, expected) in [(true, vec![None]), (false, vec![Some(0.0)])] {
        let fixture = Fixture::new();
        let (plain, advised) = (
            fixture.add_turn("thanks"),
            fixture.add_turn("shorter please"),
        );
        let options = JudgingOptions {
            hint_only_samples: wanted,
            ..JudgingOptions::default()
        };
        run_judging_with(&fixture, judge_set(neutral()), options.clone()).await;
        let session = SessionId("s".to_owned());
        fixture.journal.end_session(&session, "idle").unwrap();
        run_judging_with(&fixture, judge_set(neutral()), options.clone()).await;
        super::session_end::run_until_settled_with(&fixture, judge_set(neutral()), options).await;
        let all = [samples(&fixture, plain), samples(&fixture, advised)].concat();
        let rewards: Vec<_> = all.iter().map(|sample| sample.reward).collect();
        assert_eq!(rewards, expected, "wanted: {wanted}");
    }
}

#[tokio::test]
async fn choices_without_a_verdict_train_by_their_hints() {
    let fixture = Fixture::new();
    let failing = FakeGroupJudge::new(|_| Err(clawhost_plugins::Fault::new(FaultKind::Stack)));
    let turns = fixture.add_choices(2, |_, _| ());
    let judges = || JudgeSet {
        groups: vec![failing.clone()],
        ..judge_set(neutral())
    };
    run_judging_with(&fixture, judges(), hinted()).await;
    assert_eq!(
        reason(&fixture, turns[0]).as_deref(),
        Some("no verdict: stack")
    );
    fixture.add_next_state(turns[0], "shorter please");
    run_judging_with(&fixture, judges(), hinted()).await;
    let recorded = samples(&fixture, turns[0]);
    assert_eq!((recorded.len(), recorded[0].reward), (1, None));
    assert!(samples(&fixture, turns[1]).is_empty());

    // A choice with a reward keeps it, and the hint is added.
    let fixture = Fixture::new();
    let group_judge = FakeGroupJudge::of(&[0.5, -0.5]);
    let turns = fixture.add_choices(2, |_, _| ());
    let judges = || JudgeSet {
        groups: vec![group_judge.clone()],
        ..judge_set(neutral())
    };
    run_judging_with(&fixture, judges(), hinted()).await;
    fixture.add_next_state(turns[1], "shorter please");
    run_judging_with(&fixture, judges(), hinted()).await;
    let recorded = samples(&fixture, turns[1]);
    assert_eq!((recorded.len(), recorded[0].reward), (1, Some(-0.5)));
    assert_eq!(texts(&recorded[0]), ["mind: shorter please"]);
}
