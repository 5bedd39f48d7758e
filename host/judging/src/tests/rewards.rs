//! Which verdicts count as a reward, and which baseline a reward is compared with.

use clawhost_journal::{Finish, JudgingState, TurnId};

use super::fakes::{FakeJudge, Fixture, abstention, verdict};
use super::worker::{reason, run_judging, run_judging_with, samples};
use crate::slots::JudgeSet;
use clawhost_config::CombineRule;
use clawhost_config::JudgingOptions;

#[tokio::test]
async fn a_truncated_reply_trains_once_it_has_a_next_state_or_feedback() {
    let length = |c: &mut clawhost_journal::Completion| c.finish = Finish::Length;
    let options = JudgingOptions::default();
    assert!(options.train_truncated);
    let fixture = Fixture::new();
    let (followed, scored, alone) = (
        fixture.add_turn_with(length),
        fixture.add_turn_with(length),
        fixture.add_turn_with(length),
    );
    fixture.add_next_state(followed, "thanks");
    fixture.add_feedback(scored, Some(-1.0), None);
    run_judging(&fixture, FakeJudge::thanks(), options.clone()).await;
    assert_eq!(samples(&fixture, followed)[0].reward, Some(1.0));
    assert_eq!(samples(&fixture, scored)[0].reward, Some(-1.0));
    assert!(samples(&fixture, alone).is_empty());
    assert_eq!(reason(&fixture, alone).0, JudgingState::Waiting);

    let fixture = Fixture::new();
    let turn = fixture.add_turn_with(length);
    fixture.add_next_state(turn, "thanks");
    let off = JudgingOptions {
        train_truncated: false,
        ..options
    };
    run_judging(&fixture, FakeJudge::thanks(), off).await;
    let why = Some("truncated reply".to_owned());
    assert_eq!(reason(&fixture, turn), (JudgingState::Skipped, why));
    assert_eq!(fixture.journal.verdicts(turn).unwrap().len(), 1);
}

fn baseline_key(fixture: &Fixture, turn: TurnId) -> String {
    samples(fixture, turn).pop().unwrap().baseline_key
}

#[tokio::test]
async fn replies_to_a_complaint_have_their_own_baseline() {
    let fixture = Fixture::new();
    // All turns are ready before any is judged: each turn still waits for the verdict on its parent.
    let first = fixture.add_turn("no, wrong");
    let redone = fixture.add_child_turn(first, "no, still wrong");
    let again = fixture.add_child_turn(redone, "thanks");
    let next = fixture.add_child_turn(again, "thanks");
    run_judging(&fixture, FakeJudge::thanks(), JudgingOptions::default()).await;
    let keys = [first, redone, again, next].map(|turn| baseline_key(&fixture, turn));
    let after = "laptop/ann (after a complaint)";
    assert_eq!(keys, ["laptop/ann", after, after, "laptop/ann"]);

    // The user's score wins over the judges here too, and an abstention is not a complaint.
    let praised = fixture.add_turn("thanks");
    fixture.add_feedback(praised, Some(-0.5), None);
    let after_score = fixture.add_child_turn(praised, "thanks");
    run_judging(&fixture, FakeJudge::thanks(), JudgingOptions::default()).await;
    assert_eq!(baseline_key(&fixture, after_score), after);
    let silent = fixture.add_turn("k");
    run_judging(
        &fixture,
        FakeJudge::new(|_, _| Ok(abstention())),
        JudgingOptions::default(),
    )
    .await;
    let after_silence = fixture.add_child_turn(silent, "thanks");
    run_judging(&fixture, FakeJudge::thanks(), JudgingOptions::default()).await;
    assert_eq!(baseline_key(&fixture, after_silence), "laptop/ann");
}

#[tokio::test]
async fn abstaining_judges_are_ignored() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    let both = JudgeSet {
        judges: vec![
            FakeJudge::new(|_, _| Ok(abstention())),
            FakeJudge::new(|_, _| Ok(verdict(1.0))),
        ],
        ..JudgeSet::default()
    };
    run_judging_with(&fixture, both, JudgingOptions::default()).await;
    assert_eq!(samples(&fixture, turn)[0].reward, Some(1.0));

    // Rejecting a reply counts, even without a vote.
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    let refusing = || {
        let mut verdict = abstention();
        verdict.accept = false;
        Ok(verdict)
    };
    let both = JudgeSet {
        judges: vec![
            FakeJudge::new(move |_, _| refusing()),
            FakeJudge::new(|_, _| Ok(verdict(1.0))),
        ],
        ..JudgeSet::default()
    };
    let options = JudgingOptions {
        aggregation: CombineRule::Mean,
        ..JudgingOptions::default()
    };
    run_judging_with(&fixture, both, options).await;
    let why = Some("not accepted by the judge".to_owned());
    assert_eq!(reason(&fixture, turn), (JudgingState::Skipped, why));

    // Of several attempts of one judge, abstentions are ignored.
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    let options = JudgingOptions {
        calls_per_judge: 3,
        ..JudgingOptions::default()
    };
    let once = FakeJudge::new(|call, _| {
        Ok(if call.attempt == 1 {
            verdict(-1.0)
        } else {
            abstention()
        })
    });
    run_judging(&fixture, once, options).await;
    assert_eq!(samples(&fixture, turn)[0].reward, Some(-1.0));
}
