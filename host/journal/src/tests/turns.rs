use clawhost_chat::Message;
use serde_json::json;

use super::{arrival, by_header, completion, feedback, new_turn, sample_of, verdict};
use crate::*;

#[test]
fn a_turn_round_trips() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.turn_in("s");
    let record = journal.record(turn);
    let (new, done) = (new_turn(None), completion());
    assert_eq!(
        (record.id, record.seq, record.session.as_str()),
        (turn, 0, "s")
    );
    assert_eq!(
        (record.response_id, record.group, record.choice),
        (new.response_id, new.group, 0)
    );
    assert_eq!((record.messages, record.tools), (new.messages, new.tools));
    assert_eq!(
        (record.prompt_ids, record.sampling),
        (new.prompt_ids, new.sampling)
    );
    assert_eq!(record.temperature.to_bits(), 0.7_f32.to_bits());
    assert_eq!(
        (record.adapter_version, record.adapter_digest),
        (3, new.adapter_digest)
    );
    assert_eq!(
        (record.request_digest, record.matched),
        (new.request_digest, new.matched)
    );
    assert_eq!(record.completion, Some(done));
    assert_eq!(
        (record.state, record.judging),
        (TurnState::Complete, JudgingState::Waiting)
    );
    assert_eq!(
        (record.kind, record.next_state, record.reason),
        (TurnKind::Unknown, None, None)
    );
}

#[test]
fn the_next_request_makes_a_turn_main_and_ready() {
    let journal = Journal::in_memory().unwrap();
    let first = journal.turn_in("s");
    assert!(journal.ready_for_judging(9).unwrap().is_empty());
    let second = journal.record_request(&arrival("s", Some(first))).unwrap()[0];
    let ready = journal.ready_for_judging(9).unwrap();
    assert_eq!(ready.len(), 1);
    assert_eq!((ready[0].id, ready[0].kind), (first, TurnKind::Main));
    assert_eq!(ready[0].next_state, Some(vec![Message::user("and now?")]));
    assert_eq!(ready[0].next_ms, Some(2_000));
    let second = journal.record(second);
    assert_eq!((second.seq, second.parent), (1, Some(first)));
}

#[test]
fn a_next_state_before_the_reply_waits_for_the_reply() {
    let journal = Journal::in_memory().unwrap();
    let first = journal.record_request(&arrival("s", None)).unwrap()[0];
    journal.record_request(&arrival("s", Some(first))).unwrap();
    assert!(journal.ready_for_judging(9).unwrap().is_empty());
    journal.complete(first, &completion()).unwrap();
    assert_eq!(journal.ready_for_judging(9).unwrap()[0].id, first);
}

#[test]
fn a_second_next_state_is_recorded_as_a_fork() {
    let journal = Journal::in_memory().unwrap();
    let first = journal.ready_turn_in("s");
    let mut fork = arrival("s", Some(first));
    fork.next_state_of[0].messages = vec![Message::user("something else")];
    let turn = journal.record_request(&fork).unwrap()[0];
    assert_eq!(
        journal.record(turn).matched,
        MatchRecord {
            fork_of: vec![first],
            ..by_header()
        }
    );
    let kept = journal.record(first);
    assert_eq!(kept.next_state, Some(vec![Message::user("and now?")]));

    fork.turns.clear();
    journal.record_request(&fork).unwrap();
    journal.record_request(&fork).unwrap();
    let forks = journal.record(first).matched.forks;
    assert_eq!(forks.len(), 2);
    assert_eq!(forks[1].messages, fork.next_state_of[0].messages);
}

#[test]
fn the_same_next_state_again_is_not_a_fork() {
    let journal = Journal::in_memory().unwrap();
    let first = journal.ready_turn_in("s");
    let again = journal.record_request(&arrival("s", Some(first))).unwrap()[0];
    assert_eq!(journal.record(again).matched, by_header());
    assert_eq!(journal.record(first).matched, by_header());
}

#[test]
fn a_rejected_request_records_nothing() {
    let journal = Journal::in_memory().unwrap();
    let mut lost = arrival("s", Some(TurnId(77)));
    let error = journal.record_request(&lost).unwrap_err();
    assert!(
        matches!(error, JournalError::UnknownTurn { turn: TurnId(77) }),
        "{error}"
    );
    lost.next_state_of.clear();
    lost.turns[0].parent = None;
    lost.turns[0].sampling.params.temperature = f32::NAN;
    let error = journal.record_request(&lost).unwrap_err();
    assert!(error.to_string().contains("temperature"), "{error}");
    assert!(journal.sessions(9).unwrap().is_empty());
    assert_eq!(journal.counts().unwrap(), Counts::default());
}

#[test]
fn choices_are_siblings_with_their_own_positions() {
    let journal = Journal::in_memory().unwrap();
    let mut three = arrival("s", None);
    three.turns = (0..3)
        .map(|choice| NewTurn {
            choice,
            ..new_turn(None)
        })
        .collect();
    let ids = journal.record_request(&three).unwrap();
    let group = journal.turns_in_group("g1").unwrap();
    assert_eq!(group.iter().map(|turn| turn.id).collect::<Vec<_>>(), ids);
    assert_eq!(
        group.iter().map(|turn| turn.seq).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(group[2].messages, three.turns[2].messages);
    assert_eq!(
        journal.turns_of_response("chatcmpl-1").unwrap()[1].choice,
        1
    );
    assert_eq!(journal.session_turns(&"s".into()).unwrap()[2].id, ids[2]);
}

#[test]
fn a_reply_is_recorded_once_with_one_logprob_per_token() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.record_request(&arrival("s", None)).unwrap()[0];
    let short = Completion {
        logprobs: vec![-0.1],
        ..completion()
    };
    let error = journal.complete(turn, &short).unwrap_err();
    assert!(
        error.to_string().contains("2 tokens but 1 logprobs"),
        "{error}"
    );
    assert_eq!(journal.record(turn).state, TurnState::Generating);
    journal.complete(turn, &completion()).unwrap();
    let again = journal.complete(turn, &completion()).unwrap_err();
    assert!(
        matches!(
            again,
            JournalError::TurnEnded {
                state: TurnState::Complete,
                ..
            }
        ),
        "{again}"
    );
    let late = journal.fail(turn, "late", None).unwrap_err();
    assert!(matches!(late, JournalError::TurnEnded { .. }), "{late}");
}

#[test]
fn an_aborted_turn_keeps_its_partial_reply_and_is_never_judged() {
    let journal = Journal::in_memory().unwrap();
    let cut = journal.record_request(&arrival("s", None)).unwrap()[0];
    let partial = Completion {
        finish: Finish::Aborted,
        ..completion()
    };
    journal.fail(cut, "client gone", Some(&partial)).unwrap();
    let broken = journal.record_request(&arrival("s", Some(cut))).unwrap()[0];
    journal.fail(broken, "engine fault", None).unwrap();
    journal.add_feedback(&feedback(cut, -1.0)).unwrap();
    let (cut, broken) = (journal.record(cut), journal.record(broken));
    assert_eq!(
        (cut.state, cut.completion),
        (TurnState::Aborted, Some(partial))
    );
    assert_eq!(
        (cut.reason.as_deref(), cut.judging),
        (Some("client gone"), JudgingState::Skipped)
    );
    assert!(cut.next_state.is_some() && cut.feedback.len() == 1);
    assert_eq!((broken.state, broken.completion), (TurnState::Failed, None));
    assert!(journal.ready_for_judging(9).unwrap().is_empty());
}

#[test]
fn ending_a_session_skips_turns_without_a_next_state() {
    let journal = Journal::in_memory().unwrap();
    let first = journal.ready_turn_in("s");
    let last = journal.session_turns(&"s".into()).unwrap()[1].id;
    let running = journal.record_request(&arrival("s", None)).unwrap()[0];
    journal.end_session(&"s".into(), "idle").unwrap();
    journal.end_session(&"s".into(), "done").unwrap();
    journal.complete(running, &completion()).unwrap();
    let session = journal.session(&"s".into()).unwrap().unwrap();
    assert_eq!(
        (session.end_reason.as_deref(), session.turns),
        (Some("idle"), 3)
    );
    assert_eq!(journal.record(first).judging, JudgingState::Ready);
    for turn in [last, running] {
        let turn = journal.record(turn);
        assert_eq!(turn.judging, JudgingState::Skipped);
        assert_eq!(turn.reason.as_deref(), Some(NO_NEXT_STATE));
    }
    let unknown = journal.end_session(&"t".into(), "idle").unwrap_err();
    assert!(
        matches!(unknown, JournalError::UnknownSession { .. }),
        "{unknown}"
    );
}

#[test]
fn a_returning_client_reopens_its_session_and_its_last_turn() {
    let journal = Journal::in_memory().unwrap();
    let last = journal.turn_in("s");
    journal.end_session(&"s".into(), "idle").unwrap();
    journal.record_request(&arrival("s", Some(last))).unwrap();
    let turn = journal.record(last);
    assert_eq!((turn.judging, turn.reason), (JudgingState::Ready, None));
    assert_eq!(
        journal.session(&"s".into()).unwrap().unwrap().ended_ms,
        None
    );
}

#[test]
fn idle_sessions_have_no_recent_activity() {
    let journal = Journal::in_memory().unwrap();
    journal.turn_in("old");
    journal.record_request(&arrival("busy", None)).unwrap();
    journal.turn_in("ended");
    journal.end_session(&"ended".into(), "done").unwrap();
    assert_eq!(journal.idle_sessions(1_500).unwrap(), []);
    assert_eq!(journal.idle_sessions(1_501).unwrap(), ["old".into()]);
}

#[test]
fn feedback_needs_a_turn_and_a_score_or_text() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.turn_in("s");
    for score in [1.5, f32::NAN] {
        let error = journal.add_feedback(&feedback(turn, score)).unwrap_err();
        assert!(error.to_string().contains("-1 to 1"), "{error}");
    }
    let empty = Feedback {
        score: None,
        text: Some("  ".to_owned()),
        ..feedback(turn, 0.0)
    };
    assert!(matches!(
        journal.add_feedback(&empty),
        Err(JournalError::Invalid(_))
    ));
    let unknown = journal
        .add_feedback(&feedback(TurnId(99), 1.0))
        .unwrap_err();
    assert!(
        matches!(unknown, JournalError::UnknownTurn { .. }),
        "{unknown}"
    );
    assert!(journal.record(turn).feedback.is_empty());
}

#[test]
fn summaries_are_found_by_reply_request_session_and_parent() {
    let journal = Journal::in_memory().unwrap();
    let first = journal.ready_turn_in("s");
    let second = journal.session_turns(&"s".into()).unwrap()[1].id;
    let mut other = arrival("t", None);
    other.session.key = Some("work".to_owned());
    other.turns[0].key = Some("work".to_owned());
    other.turns[0].received_ms = 5_000;
    let third = journal.record_request(&other).unwrap()[0];
    journal.complete(third, &completion()).unwrap();

    let ids = |hits: Vec<TurnSummary>| hits.iter().map(|hit| hit.id).collect::<Vec<_>>();
    let (home, work) = (Some("home"), Some("work"));
    let by_reply = |key, limit| ids(journal.summaries_by_reply("a56", key, limit).unwrap());
    assert_eq!(by_reply(home, 9), [second, first]);
    assert_eq!(by_reply(home, 1), [second]);
    assert_eq!(by_reply(work, 9), [third]);
    assert_eq!(by_reply(None, 9), []);
    assert_eq!(
        ids(journal.summaries_by_reply("other", home, 9).unwrap()),
        []
    );
    let by_request = |key, since| ids(journal.summaries_by_request("d1", key, since, 9).unwrap());
    assert_eq!(by_request(home, 0), [second, first]);
    assert_eq!(by_request(home, 2_000), []);
    assert_eq!(by_request(work, 2_000), [third]);
    assert_eq!(by_request(None, 0), []);
    assert_eq!(ids(journal.last_turns(&"s".into(), 1).unwrap()), [second]);
    let child = journal.children(first, 9).unwrap().remove(0);
    assert_eq!(
        (child.id, child.has_next, child.completed_ms),
        (second, false, Some(1_500))
    );
    assert!(journal.summaries_by_reply("a56", home, 9).unwrap()[1].has_next);
}

#[test]
fn the_watch_changes_on_commits_but_not_on_errors() {
    let journal = Journal::in_memory().unwrap();
    let mut watch = journal.watch();
    assert!(!watch.has_changed().unwrap());
    journal.turn_in("s");
    assert_eq!(*watch.borrow_and_update(), 2);
    journal.end_session(&"nobody".into(), "idle").unwrap_err();
    journal.counts().unwrap();
    assert!(!watch.has_changed().unwrap());
}

#[test]
fn prompt_inputs_round_trip() {
    let journal = Journal::in_memory().unwrap();
    let mut asking = arrival("s", None);
    asking.turns[0].received_ms = 1_234_567;
    let tool = serde_json::from_value(json!({ "function": { "name": "read" } })).unwrap();
    asking.turns[0].tools = vec![tool];
    asking.turns[0]
        .template
        .insert("enable_thinking".to_owned(), false.into());
    let mut plain = asking.turns[0].clone();
    plain.choice = 1;
    plain.template.clear();
    asking.turns.push(plain);
    let turns = journal.record_request(&asking).unwrap();
    let asked = journal.prompt_inputs(turns[0]).unwrap().unwrap();
    assert_eq!(asked.messages, asking.turns[0].messages);
    assert_eq!(asked.tools, asking.turns[0].tools);
    assert_eq!(asked.template, asking.turns[0].template);
    assert_eq!(asked.received_ms, 1_234_567);
    let other = journal.prompt_inputs(turns[1]).unwrap().unwrap();
    assert!(other.template.is_empty(), "it is not the same request");
    assert_eq!(journal.record(turns[0]).template, asking.turns[0].template);
    assert_eq!(journal.prompt_inputs(TurnId(99)).unwrap(), None);
}

#[test]
fn forced_positions_round_trip_with_turns_and_samples() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.record_request(&arrival("s", None)).unwrap()[0];
    for wrong in [vec![2], vec![1, 0], vec![0, 0]] {
        let reply = Completion {
            forced: wrong,
            ..completion()
        };
        let refused = journal.complete(turn, &reply).unwrap_err();
        assert!(matches!(refused, JournalError::Invalid(_)), "{refused}");
    }
    let reply = Completion {
        forced: vec![1],
        ..completion()
    };
    journal.complete(turn, &reply).unwrap();
    assert_eq!(journal.record(turn).completion.unwrap(), reply);
    let next = journal.record_request(&arrival("s", Some(turn))).unwrap()[0];
    journal.complete(next, &completion()).unwrap();
    assert_eq!(journal.record(next).completion.unwrap().forced, [0u32; 0]);
    let sample = sample_of(turn, 1.0);
    journal
        .commit_judgement(turn, &[verdict(1.0)], Some(&sample), None, &[])
        .unwrap();
    assert_eq!(journal.queued_samples(9).unwrap()[0].forced, [1]);
    // A record without the field has no forced positions.
    let mut old = serde_json::to_value(completion()).unwrap();
    old.as_object_mut().unwrap().remove("forced");
    let read: Completion = serde_json::from_value(old).unwrap();
    assert_eq!(read, completion());
}
