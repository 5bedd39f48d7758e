//! Finalization of ended sessions.

use super::*;

const NEUTRAL: &str = "neutral verdict";

/// An ended session of two turns; the first is judged with `reward` and `skipped`, the second has no next state.
fn ended_session(journal: &Journal, session: &str, reward: f32, skipped: Option<&str>) -> TurnId {
    let turn = journal.ready_turn_in(session);
    journal
        .commit_judgement(turn, &[verdict(reward)], None, skipped, &[])
        .unwrap();
    journal.end_session(&session.into(), "done").unwrap();
    turn
}

fn due_sessions(journal: &Journal) -> Vec<SessionId> {
    journal.sessions_to_finalize(9).unwrap()
}

#[test]
fn a_neutral_session_yields_one_sample() {
    let journal = Journal::in_memory().unwrap();
    let turn = ended_session(&journal, "s", 0.0, Some(NEUTRAL));
    let session: SessionId = "s".into();
    assert_eq!(due_sessions(&journal), ["s".into()]);
    let neutral = journal.neutral_turns(&session, NEUTRAL).unwrap();
    assert_eq!(neutral, [(turn, completion().full_logprobs)]);

    let sample = sample_of(turn, 0.0);
    let settle = || journal.finalize_session(&session, NEUTRAL, Some(&sample));
    let id = settle().unwrap().expect("a sample");
    assert_eq!(settle().unwrap(), None, "a second time");
    assert_eq!(due_sessions(&journal), []);
    assert_eq!(journal.neutral_turns(&session, NEUTRAL).unwrap(), []);
    let samples = journal.samples_of_turn(turn).unwrap();
    assert_eq!(
        (samples.len(), samples[0].id, samples[0].reward),
        (1, id, Some(0.0))
    );
    let record = journal.record(turn);
    assert_eq!((record.judging, record.reason), (JudgingState::Done, None));

    // The client returns and the session ends again: it is due again, and has its sample.
    let other = journal.record_request(&arrival("s", None)).unwrap()[0];
    journal.complete(other, &completion()).unwrap();
    assert_eq!(due_sessions(&journal), []);
    journal.end_session(&session, "idle").unwrap();
    assert_eq!(due_sessions(&journal), ["s".into()]);
    assert_eq!(settle().unwrap(), None);
    assert_eq!(due_sessions(&journal), []);
    assert_eq!(journal.samples_of_turn(turn).unwrap().len(), 1);
}

#[test]
fn a_session_with_a_sample_or_another_verdict_yields_none() {
    let journal = Journal::in_memory().unwrap();
    for (session, reward, skipped) in [
        ("refused", 1.0, Some("truncated reply")),
        ("trains", 1.0, None),
        ("mute", 0.0, Some("no verdict: failed")),
    ] {
        let turn = ended_session(&journal, session, reward, skipped);
        let id: SessionId = session.into();
        assert_eq!(
            journal.neutral_turns(&id, NEUTRAL).unwrap(),
            [],
            "{session}"
        );
        let sample = sample_of(turn, 0.0);
        let given = journal
            .finalize_session(&id, NEUTRAL, Some(&sample))
            .unwrap();
        assert_eq!(given, None, "{session}");
        assert_eq!(journal.samples_of_turn(turn).unwrap().len(), 0, "{session}");
    }
    assert_eq!(due_sessions(&journal), []);
}

#[test]
fn a_zero_reward_without_votes_is_not_neutral() {
    let journal = Journal::in_memory().unwrap();
    let session: SessionId = "s".into();
    let without_votes = |source: &str| VerdictRecord {
        source: source.to_owned(),
        votes: Vec::new(),
        ..verdict(0.0)
    };
    let abstained = journal.ready_turn_in("s");
    let judged = [without_votes("plugin:judge-next-state")];
    journal
        .commit_judgement(abstained, &judged, None, Some(NEUTRAL), &[])
        .unwrap();
    journal.end_session(&session, "done").unwrap();
    assert_eq!(journal.neutral_turns(&session, NEUTRAL).unwrap(), []);
    let sample = sample_of(abstained, 0.0);
    let given = journal.finalize_session(&session, NEUTRAL, Some(&sample));
    assert_eq!(given.unwrap(), None);
    assert!(journal.samples_of_turn(abstained).unwrap().is_empty());

    // A user score of 0 is neutral without votes.
    let scored = journal.ready_turn_in("t");
    let judged = [without_votes("user")];
    journal
        .commit_judgement(scored, &judged, None, Some(NEUTRAL), &[])
        .unwrap();
    let neutral = journal.neutral_turns(&"t".into(), NEUTRAL).unwrap();
    assert_eq!(neutral.len(), 1);
}

#[test]
fn finalization_checks_its_preconditions_again() {
    let journal = Journal::in_memory().unwrap();
    let session: SessionId = "s".into();
    let turn = ended_session(&journal, "s", 0.0, Some(NEUTRAL));
    let sample = sample_of(turn, 0.0);
    // Feedback makes the turn ready again: the session is not finalized until it is judged.
    journal.add_feedback(&feedback(turn, 1.0)).unwrap();
    assert_eq!(due_sessions(&journal), []);
    let settle = || {
        journal
            .finalize_session(&session, NEUTRAL, Some(&sample))
            .unwrap()
    };
    assert_eq!(settle(), None);
    journal
        .commit_judgement(
            turn,
            &[verdict(1.0)],
            Some(&sample_of(turn, 1.0)),
            None,
            &[],
        )
        .unwrap();
    assert_eq!(due_sessions(&journal), ["s".into()]);
    assert_eq!(settle(), None, "it has a sample now");
    assert_eq!(
        (
            due_sessions(&journal),
            journal.samples_of_turn(turn).unwrap().len()
        ),
        (vec![], 1)
    );

    let of_another = ended_session(&journal, "t", 0.0, Some(NEUTRAL));
    let ended = ended_session(&journal, "u", 0.0, Some(NEUTRAL));
    let wrong = journal.finalize_session(&"t".into(), NEUTRAL, Some(&sample_of(ended, 0.0)));
    assert!(matches!(wrong, Err(JournalError::Invalid(_))), "{wrong:?}");
    assert_eq!(
        due_sessions(&journal),
        ["t".into(), "u".into()],
        "a refusal writes nothing"
    );
    assert!(journal.samples_of_turn(of_another).unwrap().is_empty());
    let unknown = journal.finalize_session(&"nobody".into(), NEUTRAL, None);
    assert!(matches!(unknown, Err(JournalError::UnknownSession { .. })));
}

#[test]
fn only_ended_sessions_are_finalized() {
    let journal = Journal::in_memory().unwrap();
    let open = journal.turn_in("open");
    assert_eq!(due_sessions(&journal), []);
    journal.end_session(&"open".into(), "done").unwrap();
    assert_eq!(due_sessions(&journal), ["open".into()]);
    assert_eq!(
        journal
            .finalize_session(&"open".into(), NEUTRAL, None)
            .unwrap(),
        None
    );
    assert_eq!(due_sessions(&journal), []);
    assert!(journal.samples_of_turn(open).unwrap().is_empty());
}
