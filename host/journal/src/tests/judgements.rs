use serde_json::json;

use super::{arrival, completion, feedback, sample_of, step, verdict, vote};
use crate::*;

#[test]
fn a_judgement_round_trips() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    let none = VerdictRecord {
        outcome: VerdictOutcome::None {
            reason: "timeout".to_owned(),
        },
        digest: None,
        ..verdict(0.0)
    };
    let receipts = [json!({ "cpu_ms": 3 }), json!({ "cpu_ms": 4 })];
    let sample = journal
        .commit_judgement(
            turn,
            &[verdict(0.1), none],
            Some(&sample_of(turn, 0.1)),
            None,
            &receipts,
        )
        .unwrap()
        .unwrap();
    let verdicts = journal.verdicts(turn).unwrap();
    assert_eq!(
        verdicts[0].outcome,
        VerdictOutcome::Verdict {
            reward: 0.1,
            accept: true
        }
    );
    assert_eq!(
        verdicts[1].outcome,
        VerdictOutcome::None {
            reason: "timeout".to_owned()
        }
    );
    assert_eq!(
        (&verdicts[0].votes, verdicts[1].digest.as_ref()),
        (&vec![vote(1.0), vote(1.0), None], None)
    );
    assert_eq!(journal.receipts(turn).unwrap(), receipts);
    let page = |after| journal.receipts_after(after, 1).unwrap();
    let (first, second) = (page(0), page(page(0)[0].id));
    assert_eq!(
        [&first[0].receipt, &second[0].receipt],
        [&receipts[0], &receipts[1]]
    );
    assert!(first.len() == 1 && page(second[0].id).is_empty());
    let record = journal.record(turn);
    assert_eq!(
        (record.judging, record.next_judged),
        (JudgingState::Done, true)
    );

    let samples = journal.samples_of_turn(turn).unwrap();
    let done = completion();
    assert_eq!(
        (samples[0].id, samples[0].reward.map(f32::to_bits)),
        (sample, Some(0.1f32.to_bits()))
    );
    assert_eq!(
        (&samples[0].token_ids, &samples[0].logprobs),
        (&done.token_ids, &done.logprobs)
    );
    assert_eq!(samples[0].full_logprobs, done.full_logprobs);
    assert_eq!(
        (samples[0].prompt_ids.len(), samples[0].adapter_version),
        (3, 3)
    );
    assert_eq!(samples, journal.queued_samples(9).unwrap());
    assert_eq!(journal.queued_count().unwrap(), 1);
    assert_eq!(
        journal.oldest_queued_ms().unwrap(),
        Some(samples[0].created_ms)
    );
    let counts = journal.counts().unwrap();
    assert_eq!((counts.verdicts, counts.no_verdict["timeout"]), (1, 1));
}

#[test]
fn a_turn_is_judged_once() {
    let journal = Journal::in_memory().unwrap();
    let done = journal.ready_turn_in("s");
    journal
        .commit_judgement(done, &[verdict(1.0)], None, None, &[])
        .unwrap();
    let skipped = journal.ready_turn_in("t");
    journal
        .commit_judgement(skipped, &[], None, Some("truncated"), &[])
        .unwrap();
    for turn in [done, skipped] {
        let record = journal.record(turn);
        for seen in [
            EvidenceSnapshot::from(turn),
            EvidenceSnapshot::from(&record),
        ] {
            let error = journal
                .commit_judgement(
                    seen,
                    &[verdict(1.0)],
                    Some(&sample_of(turn, 1.0)),
                    None,
                    &[],
                )
                .unwrap_err();
            assert!(
                matches!(error, JournalError::AlreadyJudged { .. }),
                "{error}"
            );
        }
    }
    assert_eq!(journal.record(skipped).reason.as_deref(), Some("truncated"));
    assert_eq!(
        (
            journal.counts().unwrap().verdicts,
            journal.queued_count().unwrap()
        ),
        (1, 0)
    );
}

#[test]
fn turns_without_evidence_cannot_be_judged() {
    let journal = Journal::in_memory().unwrap();
    let waiting = journal.turn_in("s");
    let running = journal.record_request(&arrival("s", None)).unwrap()[0];
    let failed = journal.record_request(&arrival("s", None)).unwrap()[0];
    journal.fail(failed, "engine fault", None).unwrap();
    for turn in [waiting, running, failed] {
        let error = journal
            .commit_judgement(turn, &[verdict(1.0)], None, None, &[])
            .unwrap_err();
        assert!(matches!(error, JournalError::NotReady { .. }), "{error}");
    }
    let error = journal
        .commit_judgement(TurnId(99), &[], None, None, &[])
        .unwrap_err();
    assert!(matches!(error, JournalError::UnknownTurn { .. }), "{error}");
}

#[test]
fn an_invalid_judgement_is_rejected_completely() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    let bad = [
        journal.commit_judgement(turn, &[verdict(1.0), verdict(f32::NAN)], None, None, &[]),
        journal.commit_judgement(turn, &[], Some(&sample_of(turn, f32::INFINITY)), None, &[]),
        journal.commit_judgement(turn, &[], Some(&sample_of(TurnId(2), 1.0)), None, &[]),
        journal.commit_judgement(turn, &[], Some(&sample_of(turn, 1.0)), Some("why"), &[]),
    ];
    for error in bad {
        assert!(matches!(error, Err(JournalError::Invalid(_))), "{error:?}");
    }
    assert_eq!(journal.record(turn).judging, JudgingState::Ready);
    assert!(journal.verdicts(turn).unwrap().is_empty());
}

#[test]
fn feedback_makes_a_judged_turn_ready_and_replaces_its_queued_sample() {
    let journal = Journal::in_memory().unwrap();
    let first = journal.sample_in("s");
    let turn = TurnId(1);
    journal.add_feedback(&feedback(turn, -1.0)).unwrap();
    let ready = journal.ready_for_judging(9).unwrap().remove(0);
    assert_eq!(
        (ready.id, ready.next_judged, ready.feedback_judged),
        (turn, true, 0)
    );
    let second = journal
        .commit_judgement(
            &ready,
            &[verdict(-1.0)],
            Some(&sample_of(turn, -1.0)),
            None,
            &[],
        )
        .unwrap()
        .unwrap();
    assert_eq!(journal.record(turn).feedback_judged, 1);
    let samples = journal.samples_of_turn(turn).unwrap();
    assert_eq!(
        (samples[0].id, samples[0].state),
        (first, SampleState::Dropped)
    );
    assert_eq!(
        samples[0].reason.as_deref(),
        Some(REPLACED_BY_LATER_JUDGEMENT)
    );
    assert_eq!(
        (samples[1].id, samples[1].state),
        (second, SampleState::Queued)
    );
    let error = journal.commit_step(&step(&[first])).unwrap_err();
    assert!(
        matches!(
            error,
            JournalError::SampleNotQueued {
                state: Some(SampleState::Dropped),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn evidence_that_arrives_during_judging_is_judged_later() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    let seen = journal.record(turn);
    journal.add_feedback(&feedback(turn, 1.0)).unwrap();
    journal
        .commit_judgement(&seen, &[verdict(1.0)], None, None, &[])
        .unwrap();
    let again = journal.ready_for_judging(9).unwrap().remove(0);
    assert_eq!(
        (again.id, again.feedback.len(), again.feedback_judged),
        (turn, 1, 0)
    );
    // A judgement of evidence that was judged in the meantime is rejected.
    let stale = journal
        .commit_judgement(&seen, &[verdict(1.0)], None, None, &[])
        .unwrap_err();
    assert!(
        matches!(stale, JournalError::AlreadyJudged { .. }),
        "{stale}"
    );
    journal
        .commit_judgement(&again, &[], None, None, &[])
        .unwrap();
    assert!(journal.ready_for_judging(9).unwrap().is_empty());
}

#[test]
fn feedback_and_a_later_next_state_are_judged_separately() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.turn_in("s");
    journal.end_session(&"s".into(), "idle").unwrap();
    journal.add_feedback(&feedback(turn, 1.0)).unwrap();
    assert_eq!(journal.ready_for_judging(9).unwrap()[0].id, turn);
    journal
        .commit_judgement(turn, &[verdict(1.0)], None, None, &[])
        .unwrap();
    journal.record_request(&arrival("s", Some(turn))).unwrap();
    let ready = journal.ready_for_judging(9).unwrap();
    assert_eq!(
        (ready[0].id, ready[0].feedback_judged, ready[0].next_judged),
        (turn, 1, false)
    );
}

#[test]
fn judgements_record_the_evidence_that_they_saw() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    let other = journal.turn_in("t");
    assert_eq!(journal.judgements(turn).unwrap(), []);
    assert_eq!(journal.judged_turns(None, 9).unwrap(), []);
    let seen = journal.record(turn);
    // Arrives during judging.
    journal.add_feedback(&feedback(turn, 1.0)).unwrap();
    journal
        .commit_judgement(&seen, &[verdict(0.5)], None, None, &[])
        .unwrap();
    journal.add_feedback(&feedback(turn, -1.0)).unwrap();
    journal
        .commit_judgement(turn, &[verdict(1.0), verdict(-1.0)], None, None, &[])
        .unwrap();
    journal.add_feedback(&feedback(other, 1.0)).unwrap();
    journal
        .commit_judgement(other, &[], None, Some("no judge"), &[])
        .unwrap();
    let rows: Vec<(bool, u32, usize)> = journal
        .judgements(turn)
        .unwrap()
        .iter()
        .map(|j| (j.next_state, j.feedback, j.verdicts.len()))
        .collect();
    assert_eq!(rows, [(true, 0, 1), (true, 2, 2)]);
    let bare = journal.judgements(other).unwrap();
    assert_eq!((bare[0].next_state, bare[0].feedback), (false, 1));
    assert_eq!(journal.judged_turns(None, 9).unwrap(), [turn, other]);
    assert_eq!(journal.judged_turns(None, 1).unwrap(), [other]);
    assert_eq!(journal.judged_turns(Some(&"s".into()), 9).unwrap(), [turn]);
    journal.forget_session(&"s".into()).unwrap();
    assert_eq!(journal.judgements(turn).unwrap(), []);
}

#[test]
fn receipts_of_training_and_judging_are_recorded() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    let first = json!({ "plugin": "loss", "call": "training/step 1/0" });
    let second = json!({ "plugin": "loss", "call": "training/step 1/1" });
    journal
        .record_receipts(&[first.clone(), second.clone()])
        .unwrap();
    journal.record_receipts(&[]).unwrap();
    assert_eq!(
        journal.receipts(turn).unwrap(),
        Vec::<serde_json::Value>::new()
    );
    let all = journal.receipts_after(0, 10).unwrap();
    assert_eq!(
        all.iter().map(|kept| &kept.receipt).collect::<Vec<_>>(),
        [&first, &second]
    );
    assert_eq!(journal.receipts_after(all[0].id, 10).unwrap().len(), 1);
}
