use clawhost_chat::Message;

use super::{arrival, by_header, completion, feedback, published, sample_of, verdict};
use crate::*;

fn retraction(turn: TurnId) -> NewRetraction {
    NewRetraction {
        turn,
        reason: "a later request leaves it out".to_owned(),
        ms: 5_000,
    }
}

/// A request that continues `turn` with other messages and retracts its recorded next state.
fn correction(turn: TurnId, says: &str) -> NewRequest {
    let mut arrival = arrival("s", Some(turn));
    arrival.retract = vec![retraction(turn)];
    arrival.next_state_of[0].messages = vec![Message::user(says)];
    arrival
}

#[test]
fn a_retracted_next_state_is_replaced_and_stays_recorded() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.turn_in("s");
    let title = journal.record_request(&arrival("s", Some(turn))).unwrap()[0];
    assert_eq!(journal.record(turn).next_source, Some(title));
    assert_eq!(journal.next_source(turn).unwrap(), Some(Some(title)));

    let real = journal.record_request(&correction(turn, "wrong")).unwrap()[0];
    let record = journal.record(turn);
    assert_eq!(record.next_state, Some(vec![Message::user("wrong")]));
    assert_eq!(
        (record.next_source, record.judging),
        (Some(real), JudgingState::Ready)
    );
    let [retracted] = record.retractions.try_into().unwrap();
    assert_eq!(
        (retracted.source, retracted.came_ms, retracted.judged),
        (Some(title), 2_000, false)
    );
    assert_eq!(
        (retracted.reason.as_str(), retracted.ms),
        ("a later request leaves it out", 5_000)
    );
    assert_eq!(retracted.messages, vec![Message::user("and now?")]);
    assert_eq!(journal.counts().unwrap().retractions, 1);
    assert_eq!(journal.record(real).matched, by_header(), "no fork");

    journal.forget_session(&"s".into()).unwrap();
    assert_eq!(journal.counts().unwrap().retractions, 0);
}

#[test]
fn a_sample_of_a_retracted_next_state_is_dropped_unless_it_has_trained() {
    for trained in [false, true] {
        let journal = Journal::in_memory().unwrap();
        let sample = journal.sample_in("s");
        let turn = TurnId(1);
        if trained {
            journal.commit_step(&published(&[sample], 1, 0)).unwrap();
        }
        journal.record_request(&correction(turn, "wrong")).unwrap();
        let samples = journal.samples_of_turn(turn).unwrap();
        if trained {
            assert_eq!(samples[0].state, SampleState::Trained);
        } else {
            assert_eq!(samples[0].state, SampleState::Dropped);
            assert_eq!(samples[0].reason.as_deref(), Some(NEXT_STATE_RETRACTED));
            let error = journal
                .commit_step(&published(&[sample], 1, 0))
                .unwrap_err();
            assert!(
                matches!(error, JournalError::SampleNotQueued { .. }),
                "a step under way with it is not recorded: {error}"
            );
        }
        // The new next state is judged, and the earlier judgement keeps the retracted one.
        let ready = journal.ready_for_judging(9).unwrap().remove(0);
        assert_eq!((ready.id, ready.next_judged), (turn, false));
        journal
            .commit_judgement(
                &ready,
                &[verdict(-1.0)],
                Some(&sample_of(turn, -1.0)),
                None,
                &[],
            )
            .unwrap();
        let judgements = journal.judgements(turn).unwrap();
        let retracted = judgements[0].retracted.as_ref().unwrap();
        assert_eq!(retracted.messages, vec![Message::user("and now?")]);
        assert!(retracted.judged && judgements[1].retracted.is_none());
    }
}

#[test]
fn a_judgement_of_a_retracted_next_state_is_rejected() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    let seen = journal.record(turn);
    journal.record_request(&correction(turn, "wrong")).unwrap();
    let stale = journal
        .commit_judgement(&seen, &[verdict(1.0)], None, None, &[])
        .unwrap_err();
    assert!(
        matches!(stale, JournalError::AlreadyJudged { .. }),
        "{stale}"
    );
    assert_eq!(journal.record(turn).judging, JudgingState::Ready);
}

#[test]
fn a_turn_with_a_retracted_next_state_waits_and_keeps_its_feedback() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.ready_turn_in("s");
    let mut held = correction(turn, "wrong");
    held.next_state_of.clear();
    journal.record_request(&held).unwrap();
    let record = journal.record(turn);
    assert_eq!(
        (record.judging, record.next_state),
        (JudgingState::Waiting, None)
    );
    journal.add_feedback(&feedback(turn, 1.0)).unwrap();
    assert_eq!(journal.record(turn).judging, JudgingState::Ready);

    let error = journal.record_request(&held).unwrap_err();
    assert!(error.to_string().contains("no next state"), "{error}");
}

#[test]
fn held_back_next_states_are_recorded_without_a_request() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.turn_in("s");
    let source = journal.record_request(&arrival("s", None)).unwrap()[0];
    journal.complete(source, &completion()).unwrap();
    let next = NextState {
        source: Some(source),
        ..arrival("s", Some(turn)).next_state_of.remove(0)
    };
    journal
        .record_next_states(std::slice::from_ref(&next))
        .unwrap();
    journal.end_session(&"s".into(), "idle").unwrap();
    let record = journal.record(turn);
    assert_eq!(
        (record.judging, record.next_source),
        (JudgingState::Ready, Some(source))
    );
    assert_eq!(journal.record(source).judging, JudgingState::Skipped);
}
