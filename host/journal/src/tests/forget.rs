use tempfile::tempdir;

use super::{arrival, completion, feedback, published};
use crate::*;

#[test]
fn forgetting_deletes_rows_and_records_trained_adapters() {
    let journal = Journal::in_memory().unwrap();
    let (gone, kept) = (journal.sample_in("gone"), journal.sample_in("kept"));
    journal.add_feedback(&feedback(TurnId(1), 1.0)).unwrap();
    let step = journal.commit_step(&published(&[gone], 1, 0)).unwrap();
    journal.commit_step(&published(&[kept], 2, 1)).unwrap();
    journal.commit_step(&published(&[], 3, 0)).unwrap();

    let forgotten = journal.forget_session(&"gone".into()).unwrap();
    assert_eq!(forgotten.turns, [TurnId(1), TurnId(2)]);
    assert_eq!(
        (
            &forgotten.samples[..],
            forgotten.verdicts,
            forgotten.feedback
        ),
        (&[gone][..], 1, 1)
    );
    // 2 was trained from 1; 3 from the base model.
    assert_eq!(forgotten.adapters, [1, 2]);
    assert_eq!(journal.forget_records(9).unwrap(), [forgotten]);

    assert_eq!(journal.turn(TurnId(1)).unwrap(), None);
    assert_eq!(journal.session(&"gone".into()).unwrap(), None);
    assert!(journal.verdicts(TurnId(1)).unwrap().is_empty());
    assert_eq!(journal.session_turns(&"kept".into()).unwrap().len(), 2);
    let step = journal.step(step).unwrap().unwrap();
    assert_eq!((step.trained.len(), step.trained_count), (0, 1));
    let again = journal.forget_session(&"gone".into()).unwrap_err();
    assert!(
        matches!(again, JournalError::UnknownSession { .. }),
        "{again}"
    );
}

#[test]
fn running_work_on_a_forgotten_session_is_rejected() {
    let journal = Journal::in_memory().unwrap();
    let sample = journal.sample_in("s");
    let running = journal.record_request(&arrival("s", None)).unwrap()[0];
    journal.forget_session(&"s".into()).unwrap();
    let step = journal
        .commit_step(&published(&[sample], 1, 0))
        .unwrap_err();
    assert!(
        matches!(step, JournalError::SampleNotQueued { state: None, .. }),
        "{step}"
    );
    assert_eq!(journal.active_adapter().unwrap(), None);
    let reply = journal.complete(running, &completion()).unwrap_err();
    assert!(matches!(reply, JournalError::UnknownTurn { .. }), "{reply}");
}

#[test]
fn ids_of_forgotten_turns_are_not_reused() {
    let journal = Journal::in_memory().unwrap();
    let old = journal.turn_in("s");
    journal.forget_session(&"s".into()).unwrap();
    let new = journal.turn_in("s");
    assert!(new > old);
    assert_eq!(journal.record(new).seq, 0);
}

#[test]
fn forgotten_text_is_erased_from_the_files() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let mut secret = arrival("s", None);
    secret.turns[0].messages = vec![clawhost_chat::Message::user("xyzzy-plugh".repeat(2_000))];
    journal.record_request(&secret).unwrap();
    journal.turn_in("other");
    let holds = || {
        std::fs::read_dir(dir.path()).unwrap().any(|file| {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            bytes.windows(11).any(|window| window == b"xyzzy-plugh")
        })
    };
    assert!(holds());
    journal.forget_session(&"s".into()).unwrap();
    assert!(!holds());
}

#[test]
fn forgetting_a_response_leaves_the_others_of_its_session() {
    let journal = Journal::in_memory().unwrap();
    let sample = journal.sample_in("s");
    journal.add_feedback(&feedback(TurnId(1), 1.0)).unwrap();
    journal.commit_step(&published(&[sample], 1, 0)).unwrap();
    let mut later = arrival("s", None);
    later.turns[0].response_id = "chatcmpl-2".to_owned();
    let kept = journal.record_request(&later).unwrap()[0];

    let forgotten = journal.forget_response("chatcmpl-1").unwrap();
    assert_eq!(forgotten.session, "s".into());
    assert_eq!(forgotten.turns, [TurnId(1), TurnId(2)]);
    assert_eq!((forgotten.samples, forgotten.feedback), (vec![sample], 1));
    assert_eq!(forgotten.adapters, [1]);
    assert_eq!(journal.turn(TurnId(1)).unwrap(), None);
    let left = journal.session_turns(&"s".into()).unwrap();
    assert_eq!(left.iter().map(|turn| turn.id).collect::<Vec<_>>(), [kept]);

    // The session is deleted with its last response.
    journal.forget_response("chatcmpl-2").unwrap();
    assert_eq!(journal.session(&"s".into()).unwrap(), None);
    assert_eq!(journal.forget_records(9).unwrap().len(), 2);
    let again = journal.forget_response("chatcmpl-1").unwrap_err();
    assert!(
        matches!(again, JournalError::UnknownResponse { .. }),
        "{again}"
    );
}
