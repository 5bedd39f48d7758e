//! Turns that nobody rewarded but somebody had advice for: samples without a reward, where they are wanted.

use std::sync::Arc;

use clawhost_journal::{
    Finish, JudgingState, NewStep, SampleRecord, SampleState, SessionId, StepOutcome, TurnId,
};
use clawhost_plugins::FaultKind;
use serde_json::json;

use super::loops::settle_with;
use super::stand_in::{Advising, Desk, Ranking, StandIn, seated, verdict};
use crate::options::{JudgingOptions, Neutral};
use crate::seats::Seated;

/// 0 for everything.
fn neutral() -> Arc<StandIn> {
    StandIn::new(|_, _| Ok(verdict(0.0)))
}

/// A judge and an extractor that has advice on everything but thanks.
fn bench(judge: Arc<StandIn>) -> Seated {
    Seated {
        hints: vec![Advising::new(None)],
        ..seated(judge)
    }
}

fn hinted() -> JudgingOptions {
    JudgingOptions {
        hinted_samples: true,
        ..JudgingOptions::default()
    }
}

fn samples(desk: &Desk, turn: TurnId) -> Vec<SampleRecord> {
    desk.journal.samples_of(turn).unwrap()
}

fn texts(sample: &SampleRecord) -> Vec<&str> {
    sample.hints.iter().map(|hint| hint.text.as_str()).collect()
}

fn reason(desk: &Desk, turn: TurnId) -> Option<String> {
    desk.journal.turn(turn).unwrap().unwrap().reason
}

/// A step that trains what is queued.
fn train(desk: &Desk) {
    let queued = desk.journal.queued_samples(99).unwrap();
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
    };
    desk.journal.commit_step(&step).unwrap();
}

#[tokio::test]
async fn a_hint_without_a_reward_gives_a_sample_only_where_it_is_wanted() {
    let rows = [
        (neutral(), "neutral verdict"),
        (StandIn::faulty(FaultKind::Stack), "no verdict: stack"),
    ];
    for (judge, why) in rows {
        let desk = Desk::new();
        let turn = desk.turn("shorter please");
        let options = JudgingOptions::default();
        let state = settle_with(&desk, bench(judge.clone()), options).await;
        assert_eq!(state.samples, 0, "it is not asked for");
        assert_eq!(reason(&desk, turn).as_deref(), Some(why));

        let desk = Desk::new();
        let (advised, plain) = (desk.turn("shorter please"), desk.turn("thanks"));
        let state = settle_with(&desk, bench(judge), hinted()).await;
        let made = samples(&desk, advised);
        assert_eq!((made.len(), made[0].reward), (1, None), "never a zero");
        assert_eq!(texts(&made[0]), ["mind: shorter please"]);
        assert_eq!(made[0].baseline_key, "laptop/ann");
        assert_eq!(made[0].provenance["components"], json!(["00bb", "00ff"]));
        let giver = json!([{"source": "plugin:advising", "digest": "00bb"}]);
        assert_eq!(made[0].provenance["hints"], giver);
        let record = desk.journal.turn(advised).unwrap().unwrap();
        assert_eq!((record.judging, record.reason), (JudgingState::Done, None));
        assert!(samples(&desk, plain).is_empty(), "no hint, no sample");
        assert_eq!(reason(&desk, plain).as_deref(), Some(why));
        assert_eq!((state.samples, state.samples_by_hint), (1, 1));
        assert_eq!(state.skipped[why], 1);
    }
}

#[tokio::test]
async fn extractors_without_any_judge_are_enough() {
    let desk = Desk::new();
    let turn = desk.turn("shorter please");
    let only = Seated {
        hints: vec![Advising::new(None)],
        ..Seated::default()
    };
    settle_with(&desk, only, hinted()).await;
    let made = samples(&desk, turn);
    assert_eq!((made.len(), made[0].reward), (1, None));
    assert_eq!(made[0].provenance["verdicts"], json!([]));
}

#[tokio::test]
async fn a_reward_that_there_is_comes_first_and_its_hints_come_along() {
    let desk = Desk::new();
    let turn = desk.turn("shorter please");
    settle_with(&desk, bench(StandIn::thanks()), hinted()).await;
    let made = samples(&desk, turn);
    assert_eq!((made.len(), made[0].reward), (1, Some(-1.0)));
    assert_eq!(texts(&made[0]), ["mind: shorter please"]);
    assert_eq!(made[0].provenance["components"], json!(["00bb", "00ff"]));

    // A neutral verdict that is to count as 0 counts as 0.
    let desk = Desk::new();
    let turn = desk.turn("shorter please");
    let options = JudgingOptions {
        neutral: Neutral::Sample,
        ..hinted()
    };
    settle_with(&desk, bench(neutral()), options).await;
    assert_eq!(samples(&desk, turn)[0].reward, Some(0.0));
}

#[tokio::test]
async fn what_may_not_train_does_not_train_by_a_hint_either() {
    type Change = fn(&mut clawhost_journal::Completion);
    let rows: [(Change, &str); 3] = [
        (|c| c.finish = Finish::Length, "no verdict: stack"),
        (|c| c.finish = Finish::Aborted, "no verdict: stack"),
        (
            |c| c.reply = json!({"role": "assistant", "content": " "}),
            "no verdict: stack",
        ),
    ];
    for (change, why) in rows {
        let desk = Desk::new();
        let turn = desk.replied(change);
        desk.then(turn, "shorter please");
        let judge = StandIn::faulty(FaultKind::Stack);
        let options = JudgingOptions {
            train_truncated: false,
            ..hinted()
        };
        settle_with(&desk, bench(judge), options).await;
        assert!(samples(&desk, turn).is_empty(), "{why}");
        assert_eq!(reason(&desk, turn).as_deref(), Some(why));
        assert_eq!(desk.journal.hints(turn).unwrap().len(), 1, "it is kept");
    }
    let desk = Desk::new();
    let turn = desk.turn("shorter please");
    let refusing = StandIn::new(|_, _| {
        Ok(clawhost_plugins::Verdict {
            accept: false,
            ..verdict(0.0)
        })
    });
    settle_with(&desk, bench(refusing), hinted()).await;
    let why = reason(&desk, turn);
    assert_eq!(why.as_deref(), Some("not accepted by the judge"));
    let truncated = desk.replied(|c| c.finish = Finish::Length);
    desk.then(truncated, "shorter please");
    let options = JudgingOptions {
        train_truncated: true,
        ..hinted()
    };
    settle_with(&desk, bench(neutral()), options).await;
    assert_eq!(samples(&desk, truncated).len(), 1);
}

#[tokio::test]
async fn what_a_user_says_later_takes_the_place_of_no_reward() {
    let desk = Desk::new();
    let turn = desk.turn("shorter please");
    settle_with(&desk, bench(neutral()), hinted()).await;
    desk.feedback(turn, Some(-1.0), None);
    settle_with(&desk, bench(neutral()), hinted()).await;
    let made = samples(&desk, turn);
    let states: Vec<_> = made.iter().map(|s| (s.reward, s.state)).collect();
    assert_eq!(
        states,
        [
            (None, SampleState::Dropped),
            (Some(-1.0), SampleState::Queued)
        ]
    );
    assert_eq!(texts(&made[1]), ["mind: shorter please"]);
}

#[tokio::test]
async fn the_same_hint_trains_once() {
    let desk = Desk::new();
    let turn = desk.turn("shorter please");
    settle_with(&desk, bench(neutral()), hinted()).await;
    train(&desk);
    // Said again in the same words: judged neutral once more, and nothing in it is new.
    desk.feedback(turn, None, Some("shorter please"));
    settle_with(&desk, bench(neutral()), hinted()).await;
    assert_eq!(samples(&desk, turn).len(), 1);
    assert_eq!(reason(&desk, turn).as_deref(), Some("neutral verdict"));
    desk.feedback(turn, None, Some("and in English"));
    settle_with(&desk, bench(neutral()), hinted()).await;
    let made = samples(&desk, turn);
    assert_eq!((made.len(), made[1].reward), (2, None));
    assert_eq!(texts(&made[1]), ["mind: and in English"]);
}

#[tokio::test]
async fn a_session_that_gave_a_sample_by_a_hint_is_not_neutral_as_a_whole() {
    for (wanted, expected) in [(true, vec![None]), (false, vec![Some(0.0)])] {
        let desk = Desk::new();
        let (plain, advised) = (desk.turn("thanks"), desk.turn("shorter please"));
        let options = JudgingOptions {
            hinted_samples: wanted,
            ..JudgingOptions::default()
        };
        settle_with(&desk, bench(neutral()), options.clone()).await;
        let session = SessionId("s".to_owned());
        desk.journal.end_session(&session, "idle").unwrap();
        settle_with(&desk, bench(neutral()), options.clone()).await;
        super::endings::run_with(&desk, bench(neutral()), options).await;
        let all = [samples(&desk, plain), samples(&desk, advised)].concat();
        let rewards: Vec<_> = all.iter().map(|sample| sample.reward).collect();
        assert_eq!(rewards, expected, "wanted: {wanted}");
    }
}

#[tokio::test]
async fn choices_that_nobody_ranked_train_by_what_followed() {
    let desk = Desk::new();
    let failing = Ranking::new(|_| Err(clawhost_plugins::Fault::new(FaultKind::Stack)));
    let turns = desk.choices(2, |_, _| ());
    let seats = || Seated {
        groups: vec![failing.clone()],
        ..bench(neutral())
    };
    settle_with(&desk, seats(), hinted()).await;
    assert_eq!(
        reason(&desk, turns[0]).as_deref(),
        Some("no verdict: stack")
    );
    desk.then(turns[0], "shorter please");
    settle_with(&desk, seats(), hinted()).await;
    let made = samples(&desk, turns[0]);
    assert_eq!((made.len(), made[0].reward), (1, None));
    assert!(samples(&desk, turns[1]).is_empty());

    // A choice that has its reward keeps it; the hint comes along.
    let desk = Desk::new();
    let ranking = Ranking::of(&[0.5, -0.5]);
    let turns = desk.choices(2, |_, _| ());
    let seats = || Seated {
        groups: vec![ranking.clone()],
        ..bench(neutral())
    };
    settle_with(&desk, seats(), hinted()).await;
    desk.then(turns[1], "shorter please");
    settle_with(&desk, seats(), hinted()).await;
    let made = samples(&desk, turns[1]);
    assert_eq!((made.len(), made[0].reward), (1, Some(-0.5)));
    assert_eq!(texts(&made[0]), ["mind: shorter please"]);
}
