use tempfile::tempdir;

use super::{arrival, completion, new_turn};
use crate::*;

#[test]
fn a_data_directory_is_locked_by_one_server() {
    let dir = tempdir().unwrap();
    let first = Journal::open(dir.path()).unwrap();
    let error = Journal::open(dir.path()).unwrap_err();
    let JournalError::Locked { holder, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*holder, Some(std::process::id()));
    let text = error.to_string();
    assert!(
        text.contains(&dir.path().display().to_string()) && text.contains("--data"),
        "{text}"
    );
    drop(first);
    Journal::open(dir.path()).unwrap();
}

#[tokio::test]
async fn the_lock_is_released_when_the_last_clone_is_dropped() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let late = journal.clone();
    let released = tokio::spawn(journal.wait_closed());
    late.turn_in("s");
    tokio::task::yield_now().await;
    assert!(!released.is_finished(), "a clone is still there");
    // Dropped on another thread, as for a task that outlives its owner.
    let other = std::thread::spawn(move || drop(late));
    released.await.unwrap();
    Journal::open(dir.path()).unwrap();
    other.join().unwrap();
}

#[test]
fn a_read_only_journal_reads_but_does_not_write() {
    let dir = tempdir().unwrap();
    let missing = Journal::open_read_only(dir.path()).unwrap_err();
    assert!(
        matches!(missing, JournalError::NotFound { .. }),
        "{missing}"
    );
    let server = Journal::open(dir.path()).unwrap();
    let turn = server.turn_in("s");
    let reader = Journal::open_read_only(dir.path()).unwrap();
    assert_eq!(reader.record(turn), server.record(turn));
    let later = server.turn_in("s");
    assert_eq!(reader.record(later).seq, 1);
    let error = reader.set_meta("a", "b").unwrap_err();
    assert!(matches!(error, JournalError::ReadOnly { .. }), "{error}");
}

#[test]
fn a_full_disk_is_an_error_and_the_journal_stays_usable() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let turn = journal.turn_in("s");
    let running = journal.record_request(&arrival("s", None)).unwrap()[0];
    let limit = |pages: i64| {
        journal.with_writer(|conn| {
            conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |row| {
                row.get::<_, i64>(0)
            })
        })
    };
    let pages = journal
        .with_writer(|conn| conn.query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0)))
        .unwrap();
    limit(pages).unwrap();

    let mut large = arrival("t", Some(turn));
    large.turns = vec![NewTurn {
        prompt_ids: vec![7; 100_000],
        ..new_turn(None)
    }];
    let error = journal.record_request(&large).unwrap_err();
    assert!(
        matches!(error, JournalError::DiskFull { .. }) && error.is_retryable(),
        "{error}"
    );
    assert!(error.to_string().contains("free space"), "{error}");
    // The failed request recorded nothing; earlier data is intact.
    assert_eq!(journal.session(&"t".into()).unwrap(), None);
    assert_eq!(journal.record(turn).next_state, None);
    assert_eq!(journal.record(running).state, TurnState::Generating);

    limit(1_000_000).unwrap();
    journal.record_request(&large).unwrap();
    journal.complete(running, &completion()).unwrap();
    assert_eq!(journal.ready_for_judging(9).unwrap()[0].id, turn);
}

#[test]
fn the_write_check_fails_while_the_disk_is_full() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let limit = |pages: &str| {
        journal.with_writer(|conn| {
            let pages = conn.query_row(pages, [], |row| row.get::<_, i64>(0))?;
            conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |row| {
                row.get::<_, i64>(0)
            })
        })
    };
    limit("PRAGMA page_count").unwrap();
    let error = journal.check_writable().unwrap_err();
    assert!(matches!(error, JournalError::DiskFull { .. }), "{error}");
    limit("SELECT 1000000").unwrap();
    let loops = journal.watch();
    journal.check_writable().unwrap();
    journal.check_writable().unwrap();
    assert!(!loops.has_changed().unwrap(), "a check wakes no loop");
    let reader = Journal::open_read_only(dir.path()).unwrap();
    let error = reader.check_writable().unwrap_err();
    assert!(matches!(error, JournalError::ReadOnly { .. }), "{error}");
}

#[test]
fn a_file_that_is_not_a_database_is_rejected() {
    let dir = tempdir().unwrap();
    std::fs::write(
        dir.path().join("journal.sqlite"),
        b"never a database".repeat(500),
    )
    .unwrap();
    let error = Journal::open(dir.path()).unwrap_err();
    assert!(matches!(error, JournalError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("clawhost restore"), "{error}");
}

#[test]
fn damaged_rows_are_errors() {
    let journal = Journal::in_memory().unwrap();
    let turn = journal.turn_in("s");
    for damage in [
        "UPDATE requests SET prompt_ids = x'010203'",
        "UPDATE requests SET prompt_ids = x'', messages = '[not json'",
        "UPDATE requests SET messages = '[]'; UPDATE turns SET adapter_version = -1",
    ] {
        journal
            .with_writer(|conn| conn.execute_batch(damage))
            .unwrap();
        let error = journal.turn(turn).unwrap_err();
        assert!(
            matches!(error, JournalError::Corrupt { .. }),
            "{damage}: {error}"
        );
    }
}

#[test]
fn a_damaged_page_is_an_error() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    for _ in 0..50 {
        journal.turn_in("s");
    }
    drop(journal);
    let file = dir.path().join("journal.sqlite");
    let mut bytes = std::fs::read(&file).unwrap();
    // After the header and the schema, so that opening succeeds and reading fails.
    for byte in bytes.iter_mut().skip(40 * 4096) {
        *byte = 0xa5;
    }
    std::fs::write(&file, bytes).unwrap();
    let outcome = Journal::open(dir.path()).and_then(|journal| journal.session_turns(&"s".into()));
    assert!(
        matches!(outcome, Err(JournalError::Corrupt { .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_data_directory_that_cannot_be_created_is_an_error() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Journal::open(&file.join("data")).unwrap_err();
    assert!(matches!(error, JournalError::Io { .. }), "{error}");
}

#[test]
fn a_newer_schema_is_rejected_by_writers_and_readers() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    journal
        .with_writer(|conn| conn.execute("INSERT INTO schema_version VALUES (99, 0)", []))
        .unwrap();
    drop(journal);
    for outcome in [
        Journal::open(dir.path()),
        Journal::open_read_only(dir.path()),
    ] {
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, JournalError::TooNew { found: 99, .. }),
            "{error}"
        );
    }
}

#[test]
fn data_survives_a_restart() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    journal.sample_in("s");
    journal.set_meta("a", "1").unwrap();
    journal.set_meta("a", "2").unwrap();
    let before = (
        journal.counts().unwrap(),
        journal.session_turns(&"s".into()).unwrap(),
    );
    drop(journal);
    let journal = Journal::open(dir.path()).unwrap();
    assert_eq!(
        (
            journal.counts().unwrap(),
            journal.session_turns(&"s".into()).unwrap()
        ),
        before
    );
    assert_eq!(journal.meta("a").unwrap().as_deref(), Some("2"));
}

#[test]
fn the_write_benchmark_records_complete_conversations() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let seconds = bench::append_turns(&journal, 20).unwrap();
    assert!(seconds.len() == 20 && seconds.iter().all(|second| *second > 0.0));
    let counts = journal.counts().unwrap();
    assert_eq!(
        (counts.sessions, counts.turns[&TurnState::Complete]),
        (3, 20)
    );
    assert_eq!(counts.judging[&JudgingState::Ready], 17);
}
