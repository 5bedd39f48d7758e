//! The choices of a request are judged once: as a group or one by one.

use serde_json::json;

use super::{arrival, completion, feedback, new_turn, sample_of, step, verdict};
use crate::*;

/// A request with this many running choices.
fn running_choices(journal: &Journal, choices: u32) -> Vec<TurnId> {
    let mut several = arrival("s", None);
    several.turns = (0..choices)
        .map(|choice| NewTurn {
            choice,
            ..new_turn(None)
        })
        .collect();
    journal.record_request(&several).unwrap()
}

/// A request with this many complete choices.
fn complete_choices(journal: &Journal, choices: u32) -> Vec<TurnId> {
    let turns = running_choices(journal, choices);
    for turn in &turns {
        journal.complete(*turn, &completion()).unwrap();
    }
    turns
}

fn ready_groups(journal: &Journal) -> Vec<Vec<TurnId>> {
    let ready = journal.ready_choice_groups(9).unwrap();
    let ids = |choices: &Vec<TurnRecord>| choices.iter().map(|turn| turn.id).collect();
    ready.iter().map(ids).collect()
}

fn ready_singles(journal: &Journal) -> Vec<TurnId> {
    let ready = journal.ready_single_turns(9).unwrap();
    ready.iter().map(|turn| turn.id).collect()
}

/// Commits a group judgement with a reward, or none, per choice.
fn commit_group(
    journal: &Journal,
    turns: &[TurnId],
    rewards: &[Option<f32>],
) -> Result<Vec<Option<SampleId>>, JournalError> {
    let samples: Vec<Option<NewSample>> = turns
        .iter()
        .zip(rewards)
        .map(|(turn, reward)| reward.map(|reward| sample_of(*turn, reward)))
        .collect();
    let verdicts: Vec<[VerdictRecord; 1]> = rewards
        .iter()
        .map(|reward| match reward {
            Some(reward) => [verdict(*reward)],
            None => [VerdictRecord {
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
            turn: EvidenceSnapshot::from(&journal.record(*turn)),
            verdicts,
            hints: &[],
            experience: None,
            receipts: if at == 0 { &receipts } else { &[] },
            outcome: match sample {
                Some(sample) => JudgementOutcome::Sample(sample),
                None => JudgementOutcome::Skipped("no verdict: cpu"),
            },
        })
        .collect();
    journal.commit_choice_group(&choices)
}

fn add_next_state(journal: &Journal, turn: TurnId) {
    journal.record_request(&arrival("s", Some(turn))).unwrap();
}

#[test]
fn choice_groups_are_ready_when_all_choices_have_ended() {
    let journal = Journal::in_memory().unwrap();
    journal.turn_in("s");
    let turns = running_choices(&journal, 3);
    for turn in &turns[..2] {
        journal.complete(*turn, &completion()).unwrap();
        assert_eq!(ready_groups(&journal), [[]; 0]);
    }
    journal.fail(turns[2], "cut", None).unwrap();
    assert_eq!(ready_groups(&journal), [turns[..2].to_vec()]);
    assert!(journal.has_open_choice_group(&"s".into()).unwrap());

    let samples = commit_group(&journal, &turns[..2], &[Some(1.0), None]).unwrap();
    assert_eq!((samples[0].is_some(), samples[1]), (true, None));
    assert_eq!(ready_groups(&journal), [[]; 0]);
    assert!(!journal.has_open_choice_group(&"s".into()).unwrap());
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
fn choices_are_judged_either_as_a_group_or_one_by_one() {
    let journal = Journal::in_memory().unwrap();
    let first = complete_choices(&journal, 2);
    let rewards = [Some(1.0), Some(-1.0)];
    commit_group(&journal, &first, &rewards).unwrap();
    let again = commit_group(&journal, &first, &rewards).unwrap_err();
    assert!(
        matches!(again, JournalError::AlreadyJudged { .. }),
        "{again}"
    );
    assert_eq!(journal.queued_count().unwrap(), 2);

    let second = complete_choices(&journal, 2);
    add_next_state(&journal, second[0]);
    assert_eq!(
        ready_singles(&journal),
        [],
        "it waits for being judged together"
    );
    journal
        .commit_judgement(second[0], &[verdict(1.0)], None, None, &[])
        .unwrap();
    assert_eq!(ready_groups(&journal), [[]; 0]);
    let late = commit_group(&journal, &second, &rewards).unwrap_err();
    assert!(matches!(late, JournalError::AlreadyJudged { .. }), "{late}");
    // The remaining choices are judged as any turn.
    add_next_state(&journal, second[1]);
    assert_eq!(ready_singles(&journal), [second[1]]);
}

#[test]
fn group_judgements_are_atomic() {
    let journal = Journal::in_memory().unwrap();
    let turns = complete_choices(&journal, 3);
    let rewards = [Some(1.0), Some(0.0), Some(-1.0)];
    let some = commit_group(&journal, &turns[..2], &rewards).unwrap_err();
    assert!(some.to_string().contains("the complete choices"), "{some}");
    let broken = [Some(1.0), Some(f32::NAN), Some(-1.0)];
    commit_group(&journal, &turns, &broken).unwrap_err();
    assert_eq!(journal.queued_count().unwrap(), 0);
    assert!(journal.verdicts(turns[0]).unwrap().is_empty());
    assert_eq!(ready_groups(&journal), std::slice::from_ref(&turns));
    commit_group(&journal, &turns, &rewards).unwrap();
    assert_eq!(journal.queued_count().unwrap(), 3);
}

#[test]
fn fewer_than_two_complete_choices_are_judged_one_by_one() {
    let journal = Journal::in_memory().unwrap();
    let turns = running_choices(&journal, 2);
    journal.complete(turns[0], &completion()).unwrap();
    add_next_state(&journal, turns[0]);
    assert_eq!(
        ready_singles(&journal),
        [],
        "the other one may still become whole"
    );
    journal.abort(turns[1], "gone", None).unwrap();
    assert_eq!(
        (ready_groups(&journal), ready_singles(&journal)),
        (vec![], vec![turns[0]])
    );

    // In the other order, and after the server stopped in between.
    let first = turns[0];
    let turns = running_choices(&journal, 2);
    journal.fail(turns[0], "cut", None).unwrap();
    journal.complete(turns[1], &completion()).unwrap();
    let cut = running_choices(&journal, 2);
    journal.complete(cut[0], &completion()).unwrap();
    journal.abort_interrupted_turns().unwrap();
    assert_eq!(ready_groups(&journal), [[]; 0]);
    for turn in [turns[1], cut[0]] {
        add_next_state(&journal, turn);
    }
    assert_eq!(ready_singles(&journal), [first, turns[1], cut[0]]);
}

#[test]
fn side_turns_form_no_choice_group() {
    let journal = Journal::in_memory().unwrap();
    let mut side = arrival("s", None);
    side.turns = (0..2)
        .map(|choice| NewTurn {
            choice,
            kind: TurnKind::Side,
            ..new_turn(None)
        })
        .collect();
    for turn in journal.record_request(&side).unwrap() {
        journal.complete(turn, &completion()).unwrap();
        assert!(journal.complete_choices(turn).unwrap().is_empty());
    }
    assert_eq!(ready_groups(&journal), [[]; 0]);
}

#[test]
fn later_evidence_keeps_the_sample_unless_the_outcome_replaces_it() {
    let journal = Journal::in_memory().unwrap();
    let turns = complete_choices(&journal, 2);
    let samples = commit_group(&journal, &turns, &[Some(1.0), None]).unwrap();
    for (turn, judging) in [
        (turns[0], JudgingState::Done),
        (turns[1], JudgingState::Skipped),
    ] {
        add_next_state(&journal, turn);
        let seen = journal.ready_single_turns(1).unwrap().remove(0);
        assert_eq!(seen.id, turn);
        let as_before = NewJudgement {
            turn: EvidenceSnapshot::from(&seen),
            verdicts: &[],
            hints: &[],
            experience: None,
            receipts: &[],
            outcome: JudgementOutcome::KeepPrevious(Some("no verdict: cpu")),
        };
        assert_eq!(journal.commit(&as_before).unwrap(), None);
        assert_eq!(journal.record(turn).judging, judging);
    }
    let queued = journal.queued_samples(9).unwrap();
    assert_eq!(Some(queued[0].id), samples[0]);
    assert_eq!(queued.len(), 1);
    // The same for a sample that has trained.
    journal.commit_step(&step(&[queued[0].id])).unwrap();
    journal.add_feedback(&feedback(turns[0], -1.0)).unwrap();
    journal
        .commit_judgement(turns[0], &[], Some(&sample_of(turns[0], -1.0)), None, &[])
        .unwrap();
    assert_eq!(journal.samples_of_turn(turns[0]).unwrap().len(), 2);
}
