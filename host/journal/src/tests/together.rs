//! The choices of a request are judged once: all together, or each by itself.

use serde_json::json;

use super::{arrival, completion, feedback, new_turn, sample_of, step, verdict};
use crate::*;

/// A request of so many choices, none of which has ended.
fn asked(journal: &Journal, choices: u32) -> Vec<TurnId> {
    let mut several = arrival("s", None);
    several.turns = (0..choices)
        .map(|choice| NewTurn {
            choice,
            ..new_turn(None)
        })
        .collect();
    journal.arrive(&several).unwrap()
}

/// The same, all of them whole.
fn replied(journal: &Journal, choices: u32) -> Vec<TurnId> {
    let turns = asked(journal, choices);
    for turn in &turns {
        journal.complete(*turn, &completion()).unwrap();
    }
    turns
}

fn waiting(journal: &Journal) -> Vec<Vec<TurnId>> {
    let ready = journal.ready_together(9).unwrap();
    let ids = |choices: &Vec<TurnRecord>| choices.iter().map(|turn| turn.id).collect();
    ready.iter().map(ids).collect()
}

fn apart(journal: &Journal) -> Vec<TurnId> {
    let ready = journal.ready_apart(9).unwrap();
    ready.iter().map(|turn| turn.id).collect()
}

/// What was thought of each choice: a reward, or none.
fn commit(
    journal: &Journal,
    turns: &[TurnId],
    rewards: &[Option<f32>],
) -> Result<Vec<Option<SampleId>>, JournalError> {
    let samples: Vec<Option<NewSample>> = turns
        .iter()
        .zip(rewards)
        .map(|(turn, reward)| reward.map(|reward| sample_of(*turn, reward)))
        .collect();
    let verdicts: Vec<[NewVerdict; 1]> = rewards
        .iter()
        .map(|reward| match reward {
            Some(reward) => [verdict(*reward)],
            None => [NewVerdict {
                outcome: VerdictOutcome::None {
                    reason: "cpu".to_owned(),
                },
                ..verdict(0.0)
            }],
        })
        .collect();
    let receipts = [json!({"world": "group-judge-plugin"})];
    let choices: Vec<NewJudgement<'_>> = turns
        .iter()
        .zip(samples.iter().zip(&verdicts))
        .enumerate()
        .map(|(at, (turn, (sample, verdicts)))| NewJudgement {
            turn: TurnSeen::from(&journal.record(*turn)),
            verdicts,
            hints: &[],
            receipts: if at == 0 { &receipts } else { &[] },
            outcome: match sample {
                Some(sample) => JudgementOutcome::Sample(sample),
                None => JudgementOutcome::Skipped("no verdict: cpu"),
            },
        })
        .collect();
    journal.commit_together(&choices)
}

fn follow(journal: &Journal, turn: TurnId) {
    journal.arrive(&arrival("s", Some(turn))).unwrap();
}

#[test]
fn choices_are_ready_together_once_all_have_ended_and_without_a_next_state() {
    let journal = Journal::in_memory().unwrap();
    journal.turn_in("s");
    let turns = asked(&journal, 3);
    for turn in &turns[..2] {
        journal.complete(*turn, &completion()).unwrap();
        assert_eq!(waiting(&journal), [[]; 0]);
    }
    journal.fail(turns[2], "cut", None).unwrap();
    assert_eq!(waiting(&journal), [turns[..2].to_vec()]);
    assert!(journal.awaits_judging_together(&"s".into()).unwrap());

    let samples = commit(&journal, &turns[..2], &[Some(1.0), None]).unwrap();
    assert_eq!((samples[0].is_some(), samples[1]), (true, None));
    assert_eq!(waiting(&journal), [[]; 0]);
    assert!(!journal.awaits_judging_together(&"s".into()).unwrap());
    let states: Vec<JudgingState> = turns.iter().map(|t| journal.record(*t).judging).collect();
    use JudgingState::{Done, Skipped};
    assert_eq!(states, [Done, Skipped, Skipped]);
    assert_eq!(
        journal.record(turns[1]).reason.as_deref(),
        Some("no verdict: cpu")
    );
    assert!(journal.judgements(turns[0]).unwrap()[0].together);
    assert_eq!(journal.receipts(turns[0]).unwrap().len(), 1);
    assert_eq!(journal.receipts(turns[1]).unwrap().len(), 0);
}

#[test]
fn they_are_judged_once_whoever_is_first() {
    let journal = Journal::in_memory().unwrap();
    let first = replied(&journal, 2);
    let rewards = [Some(1.0), Some(-1.0)];
    commit(&journal, &first, &rewards).unwrap();
    let again = commit(&journal, &first, &rewards).unwrap_err();
    assert!(
        matches!(again, JournalError::AlreadyJudged { .. }),
        "{again}"
    );
    assert_eq!(journal.queued_count().unwrap(), 2);

    let second = replied(&journal, 2);
    follow(&journal, second[0]);
    assert_eq!(apart(&journal), [], "it waits for being judged together");
    journal
        .commit_judgement(second[0], &[verdict(1.0)], None, None, &[])
        .unwrap();
    assert_eq!(waiting(&journal), [[]; 0]);
    let late = commit(&journal, &second, &rewards).unwrap_err();
    assert!(matches!(late, JournalError::AlreadyJudged { .. }), "{late}");
    // What is left of them is judged as any turn.
    follow(&journal, second[1]);
    assert_eq!(apart(&journal), [second[1]]);
}

#[test]
fn all_choices_are_recorded_or_none() {
    let journal = Journal::in_memory().unwrap();
    let turns = replied(&journal, 3);
    let rewards = [Some(1.0), Some(0.0), Some(-1.0)];
    let some = commit(&journal, &turns[..2], &rewards).unwrap_err();
    assert!(some.to_string().contains("the whole choices"), "{some}");
    let broken = [Some(1.0), Some(f32::NAN), Some(-1.0)];
    commit(&journal, &turns, &broken).unwrap_err();
    assert_eq!(journal.queued_count().unwrap(), 0);
    assert!(journal.verdicts(turns[0]).unwrap().is_empty());
    assert_eq!(waiting(&journal), std::slice::from_ref(&turns));
    commit(&journal, &turns, &rewards).unwrap();
    assert_eq!(journal.queued_count().unwrap(), 3);
}

#[test]
fn fewer_than_two_whole_choices_are_judged_one_by_one() {
    let journal = Journal::in_memory().unwrap();
    let turns = asked(&journal, 2);
    journal.complete(turns[0], &completion()).unwrap();
    follow(&journal, turns[0]);
    assert_eq!(apart(&journal), [], "the other one may still become whole");
    journal.abort(turns[1], "gone", None).unwrap();
    assert_eq!(
        (waiting(&journal), apart(&journal)),
        (vec![], vec![turns[0]])
    );

    // The other way round, and when the server stopped meanwhile.
    let first = turns[0];
    let turns = asked(&journal, 2);
    journal.fail(turns[0], "cut", None).unwrap();
    journal.complete(turns[1], &completion()).unwrap();
    let cut = asked(&journal, 2);
    journal.complete(cut[0], &completion()).unwrap();
    journal.recover().unwrap();
    assert_eq!(waiting(&journal), [[]; 0]);
    for turn in [turns[1], cut[0]] {
        follow(&journal, turn);
    }
    assert_eq!(apart(&journal), [first, turns[1], cut[0]]);
}

#[test]
fn side_turns_are_nothing_to_choose_among() {
    let journal = Journal::in_memory().unwrap();
    let mut side = arrival("s", None);
    side.turns = (0..2)
        .map(|choice| NewTurn {
            choice,
            kind: TurnKind::Side,
            ..new_turn(None)
        })
        .collect();
    for turn in journal.arrive(&side).unwrap() {
        journal.complete(turn, &completion()).unwrap();
        assert!(journal.choices_of(turn).unwrap().is_empty());
    }
    assert_eq!(waiting(&journal), [[]; 0]);
}

#[test]
fn what_follows_later_leaves_the_sample_as_it_is_unless_it_says_otherwise() {
    let journal = Journal::in_memory().unwrap();
    let turns = replied(&journal, 2);
    let samples = commit(&journal, &turns, &[Some(1.0), None]).unwrap();
    for (turn, judging) in [
        (turns[0], JudgingState::Done),
        (turns[1], JudgingState::Skipped),
    ] {
        follow(&journal, turn);
        let seen = journal.ready_apart(1).unwrap().remove(0);
        assert_eq!(seen.id, turn);
        let as_before = NewJudgement {
            turn: TurnSeen::from(&seen),
            verdicts: &[],
            hints: &[],
            receipts: &[],
            outcome: JudgementOutcome::AsBefore(Some("no verdict: cpu")),
        };
        assert_eq!(journal.commit(&as_before).unwrap(), None);
        assert_eq!(journal.record(turn).judging, judging);
    }
    let queued = journal.queued_samples(9).unwrap();
    assert_eq!(Some(queued[0].id), samples[0]);
    assert_eq!(queued.len(), 1);
    // A sample that has trained is one as well.
    journal.commit_step(&step(&[queued[0].id])).unwrap();
    journal.add_feedback(&feedback(turns[0], -1.0)).unwrap();
    journal
        .commit_judgement(turns[0], &[], Some(&sample_of(turns[0], -1.0)), None, &[])
        .unwrap();
    assert_eq!(journal.samples_of(turns[0]).unwrap().len(), 2);
}
