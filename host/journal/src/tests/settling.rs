//! What an ended session contributes as a whole.

use super::*;

const NEUTRAL: &str = "neutral verdict";

/// A session of two turns; the first is judged as given, the second has no next state.
fn ended(journal: &Journal, session: &str, reward: f32, skipped: Option<&str>) -> TurnId {
    let turn = journal.ready_turn_in(session);
    journal
        .commit_judgement(turn, &[verdict(reward)], None, skipped, &[])
        .unwrap();
    journal.end_session(&session.into(), "done").unwrap();
    turn
}

fn due(journal: &Journal) -> Vec<SessionId> {
    journal.sessions_to_settle(9).unwrap()
}

#[test]
fn a_neutral_session_gives_one_sample_once() {
    let journal = Journal::in_memory().unwrap();
    let turn = ended(&journal, "s", 0.0, Some(NEUTRAL));
    let session: SessionId = "s".into();
    assert_eq!(due(&journal), ["s".into()]);
    let neutral = journal.neutral_turns(&session, NEUTRAL).unwrap();
    assert_eq!(neutral, [(turn, completion().full_logprobs)]);

    let sample = sample_of(turn, 0.0);
    let settle = || journal.settle_session(&session, NEUTRAL, Some(&sample));
    let id = settle().unwrap().expect("a sample");
    assert_eq!(settle().unwrap(), None, "a second time");
    assert_eq!(due(&journal), []);
    assert_eq!(journal.neutral_turns(&session, NEUTRAL).unwrap(), []);
    let samples = journal.samples_of(turn).unwrap();
    assert_eq!(
        (samples.len(), samples[0].id, samples[0].reward),
        (1, id, Some(0.0))
    );
    let record = journal.record(turn);
    assert_eq!((record.judging, record.reason), (JudgingState::Done, None));

    // The client comes back, and the session ends again: it is asked again, and has its sample.
    let other = journal.arrive(&arrival("s", None)).unwrap()[0];
    journal.complete(other, &completion()).unwrap();
    assert_eq!(due(&journal), []);
    journal.end_session(&session, "idle").unwrap();
    assert_eq!(due(&journal), ["s".into()]);
    assert_eq!(settle().unwrap(), None);
    assert_eq!(due(&journal), []);
    assert_eq!(journal.samples_of(turn).unwrap().len(), 1);
}

#[test]
fn a_session_that_says_something_else_gives_none() {
    let journal = Journal::in_memory().unwrap();
    for (session, reward, skipped) in [
        ("refused", 1.0, Some("truncated reply")),
        ("trains", 1.0, None),
        ("mute", 0.0, Some("no verdict: failed")),
    ] {
        let turn = ended(&journal, session, reward, skipped);
        let id: SessionId = session.into();
        assert_eq!(
            journal.neutral_turns(&id, NEUTRAL).unwrap(),
            [],
            "{session}"
        );
        let sample = sample_of(turn, 0.0);
        let given = journal.settle_session(&id, NEUTRAL, Some(&sample)).unwrap();
        assert_eq!(given, None, "{session}");
        assert_eq!(journal.samples_of(turn).unwrap().len(), 0, "{session}");
    }
    assert_eq!(due(&journal), []);
}

#[test]
fn a_reward_of_0_that_nobody_voted_for_is_not_neutral() {
    let journal = Journal::in_memory().unwrap();
    let session: SessionId = "s".into();
    let without_votes = |source: &str| NewVerdict {
        source: source.to_owned(),
        votes: json!([]),
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
    let given = journal.settle_session(&session, NEUTRAL, Some(&sample));
    assert_eq!(given.unwrap(), None);
    assert!(journal.samples_of(abstained).unwrap().is_empty());

    // The user needs no votes to say so.
    let scored = journal.ready_turn_in("t");
    let judged = [without_votes("user")];
    journal
        .commit_judgement(scored, &judged, None, Some(NEUTRAL), &[])
        .unwrap();
    let neutral = journal.neutral_turns(&"t".into(), NEUTRAL).unwrap();
    assert_eq!(neutral.len(), 1);
}

#[test]
fn what_came_in_between_is_not_overlooked() {
    let journal = Journal::in_memory().unwrap();
    let session: SessionId = "s".into();
    let turn = ended(&journal, "s", 0.0, Some(NEUTRAL));
    let sample = sample_of(turn, 0.0);
    // Feedback opens the turn again: nothing is settled until it is judged.
    journal.add_feedback(&feedback(turn, 1.0)).unwrap();
    assert_eq!(due(&journal), []);
    let settle = || {
        journal
            .settle_session(&session, NEUTRAL, Some(&sample))
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
    assert_eq!(due(&journal), ["s".into()]);
    assert_eq!(settle(), None, "it has a sample now");
    assert_eq!(
        (due(&journal), journal.samples_of(turn).unwrap().len()),
        (vec![], 1)
    );

    let of_another = ended(&journal, "t", 0.0, Some(NEUTRAL));
    let ended = ended(&journal, "u", 0.0, Some(NEUTRAL));
    let wrong = journal.settle_session(&"t".into(), NEUTRAL, Some(&sample_of(ended, 0.0)));
    assert!(matches!(wrong, Err(JournalError::Invalid(_))), "{wrong:?}");
    assert_eq!(
        due(&journal),
        ["t".into(), "u".into()],
        "a refusal writes nothing"
    );
    assert!(journal.samples_of(of_another).unwrap().is_empty());
    let unknown = journal.settle_session(&"nobody".into(), NEUTRAL, None);
    assert!(matches!(unknown, Err(JournalError::UnknownSession { .. })));
}

#[test]
fn a_session_is_asked_when_it_ends_and_not_before() {
    let journal = Journal::in_memory().unwrap();
    let open = journal.turn_in("open");
    assert_eq!(due(&journal), []);
    journal.end_session(&"open".into(), "done").unwrap();
    assert_eq!(due(&journal), ["open".into()]);
    assert_eq!(
        journal
            .settle_session(&"open".into(), NEUTRAL, None)
            .unwrap(),
        None
    );
    assert_eq!(due(&journal), []);
    assert!(journal.samples_of(open).unwrap().is_empty());
}
