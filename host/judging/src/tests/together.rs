//! The choices of one request are judged together, once, and never trained twice.

use std::sync::Arc;

use clawhost_journal::{Finish, JudgingState, SampleState, TurnId, VerdictOutcome};
use clawhost_plugins::{Fault, FaultKind, PluginErrorKind};

use super::loops::{settle, settle_with};
use super::stand_in::{Advising, Desk, Ranking, StandIn, verdict};
use crate::judge::{GroupJudge, Judge};
use crate::options::{FaultPolicy, JudgingOptions};
use crate::rejudging::Rejudging;
use crate::seats::Seated;
use crate::votes::Combine;

fn bench(ranking: Arc<Ranking>, judge: Arc<StandIn>) -> Seated {
    Seated {
        judges: vec![judge as Arc<dyn Judge>],
        groups: vec![ranking as Arc<dyn GroupJudge>],
        ..Seated::default()
    }
}

fn rewards(desk: &Desk, turns: &[TurnId]) -> Vec<Option<f32>> {
    let of = |turn: &TurnId| desk.journal.samples_of(*turn).unwrap().pop();
    turns.iter().map(|t| of(t)?.reward).collect()
}

fn reasons(desk: &Desk, turns: &[TurnId]) -> Vec<Option<String>> {
    let record = |turn: &TurnId| desk.journal.turn(*turn).unwrap().unwrap();
    turns.iter().map(|turn| record(turn).reason).collect()
}

#[tokio::test]
async fn each_choice_gets_its_reward_and_none_waits_for_a_next_state() {
    let desk = Desk::new();
    let turns = desk.choices(3, |_, _| ());
    let alone = desk.turn("thanks");
    let (ranking, judge) = (Ranking::of(&[1.0, 0.0, -1.0]), StandIn::thanks());
    let options = JudgingOptions::default();
    let state = settle_with(&desk, bench(ranking.clone(), judge.clone()), options).await;
    // A place in the middle is a reward of 0, not a neutral turn.
    assert_eq!(rewards(&desk, &turns), [Some(1.0), Some(0.0), Some(-1.0)]);
    assert_eq!((state.judged, state.together, state.samples), (4, 1, 4));
    let ids: Vec<String> = turns.iter().map(TurnId::to_string).collect();
    assert_eq!(*ranking.seen.lock().unwrap(), [(ids.join("+"), ids)]);
    for turn in &turns {
        let verdicts = desk.journal.verdicts(*turn).unwrap();
        assert_eq!(verdicts.len(), 1);
        assert_eq!(verdicts[0].source, "plugin:ranking");
        assert_eq!(verdicts[0].digest.as_deref(), Some("00aa"));
    }
    let receipts = |turn| desk.journal.receipts(turn).unwrap().len();
    assert_eq!(
        turns.iter().map(|t| receipts(*t)).collect::<Vec<_>>(),
        [1, 0, 0],
        "one call, one receipt"
    );
    // A request of one choice goes to the judges as ever.
    assert_eq!(rewards(&desk, &[alone]), [Some(1.0)]);
    assert_eq!(judge.called(), 1);
}

#[tokio::test]
async fn what_follows_a_choice_trains_it_no_second_time() {
    let desk = Desk::new();
    let turns = desk.choices(2, |_, _| ());
    let judge = StandIn::thanks();
    let seats = || bench(Ranking::of(&[0.5, -0.5]), judge.clone());
    settle_with(&desk, seats(), JudgingOptions::default()).await;
    desk.then(turns[0], "no, wrong");
    settle_with(&desk, seats(), JudgingOptions::default()).await;
    assert_eq!(judge.called(), 0);
    let samples = desk.journal.samples_of(turns[0]).unwrap();
    assert_eq!(samples.len(), 1);
    assert_eq!(
        (samples[0].reward, samples[0].state),
        (Some(0.5), SampleState::Queued)
    );
    let record = desk.journal.turn(turns[0]).unwrap().unwrap();
    assert_eq!(
        (record.judging, record.next_judged),
        (JudgingState::Done, true)
    );

    // The user's word wins, and takes the place of what still waits.
    desk.feedback(turns[0], Some(-1.0), None);
    settle_with(&desk, seats(), JudgingOptions::default()).await;
    let states: Vec<(Option<f32>, SampleState)> = desk
        .journal
        .samples_of(turns[0])
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
    // Words alone are for the judges to read.
    desk.feedback(turns[1], None, Some("thanks, this one"));
    settle_with(&desk, seats(), JudgingOptions::default()).await;
    assert_eq!((judge.called(), rewards(&desk, &turns)[1]), (1, Some(1.0)));
}

#[tokio::test]
async fn what_a_judge_made_a_sample_of_is_left_to_the_judges() {
    let desk = Desk::new();
    let turns = desk.choices(2, |_, _| ());
    desk.then(turns[1], "thanks");
    settle(&desk, StandIn::thanks(), JudgingOptions::default()).await;
    assert_eq!(rewards(&desk, &turns), [None, Some(1.0)]);
    let ranking = Ranking::of(&[1.0, -1.0]);
    let seats = bench(ranking.clone(), StandIn::thanks());
    settle_with(&desk, seats, JudgingOptions::default()).await;
    assert_eq!(ranking.called(), 0);
    assert_eq!(rewards(&desk, &turns), [None, Some(1.0)]);
}

#[tokio::test]
async fn what_a_group_judge_fails_on_or_refuses_is_no_verdict_for_every_choice() {
    let unsupported = FaultKind::PluginError {
        kind: PluginErrorKind::Unsupported,
        message: "more replies than letters".to_owned(),
    };
    for (kind, reason) in [(FaultKind::Stack, "stack"), (unsupported, "abstained")] {
        let desk = Desk::new();
        let turns = desk.choices(2, |_, _| ());
        let fails = Ranking::new(move |_| Err(Fault::new(kind.clone())));
        let seats = bench(fails, StandIn::thanks());
        let state = settle_with(&desk, seats, JudgingOptions::default()).await;
        assert_eq!(rewards(&desk, &turns), [None, None]);
        let expected = Some(format!("no verdict: {reason}"));
        assert_eq!(reasons(&desk, &turns), [expected.clone(), expected.clone()]);
        assert_eq!(state.no_verdict.get(reason), Some(&2));
        // What follows opens nothing that was closed: it is still no verdict, and no zero.
        desk.then(turns[0], "thanks");
        let seats = bench(Ranking::of(&[1.0, 1.0]), StandIn::thanks());
        settle_with(&desk, seats, JudgingOptions::default()).await;
        assert_eq!(rewards(&desk, &turns), [None, None]);
        assert_eq!(reasons(&desk, &turns)[0], expected);
    }
}

#[tokio::test]
async fn the_fault_policy_holds_for_group_judges() {
    let failing = || Ranking::new(|_| Err(Fault::new(FaultKind::Stack)));
    let options = |on_fault| JudgingOptions {
        on_fault,
        quarantine_after: 2,
        concurrency: 1,
        ..JudgingOptions::default()
    };
    let desk = Desk::new();
    for _ in 0..4 {
        desk.choices(2, |_, _| ());
    }
    let ranking = failing();
    let seats = bench(ranking.clone(), StandIn::thanks());
    let state = settle_with(&desk, seats, options(FaultPolicy::Quarantine)).await;
    assert_eq!(
        (ranking.called(), state.quarantined),
        (2, vec!["ranking".to_owned()])
    );
    assert_eq!(state.no_verdict.get("quarantined"), Some(&4));

    let desk = Desk::new();
    let turns = desk.choices(2, |_, _| ());
    let seats = bench(failing(), StandIn::thanks());
    let state = settle_with(&desk, seats, options(FaultPolicy::Stop)).await;
    assert!(state.stopped.unwrap().contains("ranking failed on turns"));
    // Nothing of it is recorded; the next start judges it.
    assert_eq!(desk.journal.ready_together(9).unwrap().len(), 1);
    let seats = bench(Ranking::of(&[1.0, -1.0]), StandIn::thanks());
    settle_with(&desk, seats, options(FaultPolicy::Stop)).await;
    assert_eq!(rewards(&desk, &turns), [Some(1.0), Some(-1.0)]);
}

#[tokio::test]
async fn choices_that_may_not_train_are_shown_all_the_same() {
    let desk = Desk::new();
    let turns = desk.choices(3, |choice, completion| {
        if choice == 1 {
            completion.finish = Finish::Length;
        }
    });
    let refusing = Ranking::new(|group| {
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
    let seats = bench(refusing, StandIn::thanks());
    settle_with(&desk, seats, JudgingOptions::default()).await;
    assert_eq!(rewards(&desk, &turns), [Some(1.0), None, None]);
    let said = ["truncated reply", "not accepted by the judge"].map(|why| Some(why.to_owned()));
    assert_eq!(reasons(&desk, &turns)[1..], said);
}

#[tokio::test]
async fn several_group_judges_combine_by_the_rule_of_the_judges() {
    let desk = Desk::new();
    let turns = desk.choices(2, |_, _| ());
    let seats = Seated {
        groups: vec![Ranking::of(&[1.0, -0.5]), Ranking::of(&[0.5, 0.0])],
        ..Seated::default()
    };
    let options = JudgingOptions {
        combine: Combine::Mean,
        ..JudgingOptions::default()
    };
    settle_with(&desk, seats, options).await;
    assert_eq!(rewards(&desk, &turns), [Some(0.75), Some(-0.25)]);
}

#[tokio::test]
async fn a_choice_that_is_gone_on_from_is_shown_to_extractors() {
    let desk = Desk::new();
    let turns = desk.choices(2, |_, _| ());
    let advising = Advising::new(None);
    let seats = || Seated {
        hints: vec![advising.clone()],
        ..bench(Ranking::of(&[1.0, -1.0]), StandIn::thanks())
    };
    settle_with(&desk, seats(), JudgingOptions::default()).await;
    assert!(advising.told.lock().unwrap().is_empty(), "nothing followed");
    desk.then(turns[0], "shorter please");
    settle_with(&desk, seats(), JudgingOptions::default()).await;
    assert_eq!(*advising.told.lock().unwrap(), ["shorter please"]);
    assert_eq!(desk.journal.hints(turns[0]).unwrap().len(), 1);
    assert_eq!(rewards(&desk, &turns), [Some(1.0), Some(-1.0)]);
}

#[tokio::test]
async fn they_are_judged_anew_together() {
    let desk = Desk::new();
    let turns = desk.choices(2, |_, _| ());
    let seats = bench(Ranking::of(&[1.0, -1.0]), StandIn::thanks());
    settle_with(&desk, seats, JudgingOptions::default()).await;
    desk.then(turns[0], "hm");
    desk.feedback(turns[1], Some(0.25), None);
    let seats = bench(Ranking::of(&[1.0, -1.0]), StandIn::thanks());
    settle_with(&desk, seats, JudgingOptions::default()).await;

    let ranking = Ranking::of(&[-0.5, 0.5]);
    let seats = bench(ranking.clone(), StandIn::thanks());
    let rejudging = Rejudging::with(seats, JudgingOptions::default());
    let told = rejudging.together(&desk.journal, turns[1]).await.unwrap();
    let opinions: Vec<_> = told.iter().map(|t| t.opinion.unwrap().reward).collect();
    assert_eq!(opinions, [Some(-0.5), Some(0.5)]);
    let recorded: Vec<_> = told.iter().map(|t| t.recorded.unwrap().reward).collect();
    assert_eq!(recorded, [Some(1.0), Some(-1.0)]);
    // The user's word about the second is the last.
    let samples: Vec<_> = told.iter().map(|t| t.sample.clone()).collect();
    assert_eq!(samples, [Ok(Some(-0.5)), Ok(Some(0.25))]);
    assert_eq!(ranking.called(), 1);
    for verdict in &told[0].verdicts {
        assert!(matches!(verdict.outcome, VerdictOutcome::Verdict { .. }));
    }
    // By themselves there is nothing to ask about the first.
    assert!(
        rejudging
            .turn(&desk.journal, turns[0])
            .await
            .unwrap()
            .is_none()
    );
}
