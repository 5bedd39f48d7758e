//! Corruption and lost commits are detected at startup, and the readable rows are recovered.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::{TempDir, tempdir};

use super::{arrival, completion, published};
use crate::*;

fn database(dir: &Path) -> PathBuf {
    dir.join("journal.sqlite")
}

fn wal_file(dir: &Path) -> PathBuf {
    dir.join("journal.sqlite-wal")
}

/// A data directory as a kill leaves it: `turns` acknowledged turns, many of them only in the write-ahead log.
fn killed_image(turns: usize) -> TempDir {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    for _ in 0..turns {
        journal.turn_in("s");
    }
    let image = tempdir().unwrap();
    for name in ["journal.sqlite", "journal.sqlite-wal", "journal.mark"] {
        fs::copy(dir.path().join(name), image.path().join(name)).unwrap();
    }
    image
}

/// Flips one bit in the middle of a file.
fn flip_bit(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).unwrap();
}

fn count_turns(dir: &Path) -> usize {
    let journal = Journal::open(dir).unwrap();
    let turns = journal.session_turns(&"s".into()).unwrap();
    let whole = |turn: &&TurnRecord| turn.completion.as_ref() == Some(&completion());
    assert_eq!(turns.iter().filter(whole).count(), turns.len());
    turns.len()
}

#[test]
fn after_a_clean_stop_the_database_file_is_complete() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    for _ in 0..60 {
        let turn = journal.turn_in("s");
        // Open a pooled reader, which is a connection too.
        journal.record(turn);
    }
    drop(journal);
    assert!(!wal_file(dir.path()).exists());
    let alone = tempdir().unwrap();
    fs::copy(database(dir.path()), database(alone.path())).unwrap();
    assert_eq!(count_turns(alone.path()), 60);
}

#[test]
fn a_reader_of_another_process_does_not_block_the_final_checkpoint() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let reader = Journal::open_read_only(dir.path()).unwrap();
    for _ in 0..9 {
        journal.turn_in("s");
    }
    assert_eq!(reader.session_turns(&"s".into()).unwrap().len(), 9);
    drop(journal);
    let alone = tempdir().unwrap();
    fs::copy(database(dir.path()), database(alone.path())).unwrap();
    assert_eq!(count_turns(alone.path()), 9);
    drop(reader);
}

#[test]
fn the_write_ahead_log_stays_short_while_running() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let mut written = 0;
    let mut largest = 0;
    while written < 96 << 20 {
        let mut large = arrival("s", None);
        large.turns[0].prompt_ids = vec![7; 100_000];
        journal.record_request(&large).unwrap();
        written += 400_000;
        largest = largest.max(fs::metadata(wal_file(dir.path())).map_or(0, |found| found.len()));
    }
    assert!(largest < 48 << 20, "{largest} bytes of log");
}

#[test]
fn a_flipped_bit_in_the_write_ahead_log_is_detected_and_recovered() {
    let image = killed_image(60);
    let dir = image.path();
    flip_bit(&wal_file(dir));
    let before = (
        fs::read(database(dir)).unwrap(),
        fs::read(wal_file(dir)).unwrap(),
    );
    let error = Journal::open(dir).unwrap_err();
    let JournalError::Truncated {
        turns: found,
        expected_turns: 60,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert!(found < 60);
    for part in ["journal recover", "restore", "60 turns", "journal.mark"] {
        assert!(error.to_string().contains(part), "no {part} in {error}");
    }
    // Every attempt to open it fails, and none modifies it.
    Journal::open(dir).unwrap_err();
    let after = (
        fs::read(database(dir)).unwrap(),
        fs::read(wal_file(dir)).unwrap(),
    );
    assert!(before == after, "a refused journal was changed");

    let checked = check(dir).unwrap();
    assert_eq!(checked.problems.len(), 2, "{:?}", checked.problems);
    assert!(checked.problems[1].contains("does not verify"));

    let salvaged = recover_journal(dir).unwrap();
    assert_eq!(salvaged.acknowledged_turns, Some(60));
    assert!(salvaged.damaged_frames > 0);
    let kept = (
        fs::read(database(&salvaged.damaged_dir)).unwrap(),
        fs::read(wal_file(&salvaged.damaged_dir)).unwrap(),
    );
    assert!(before == kept, "the damaged journal is kept as it was");
    // The flipped bit may lie in a page that a later frame repeats, or cost the rows of one page.
    let journal = Journal::open(dir).unwrap();
    let saved = journal.session_turns(&"s".into()).unwrap().len();
    assert!(saved >= 55, "{saved}");
    drop(journal);
    assert!(check(dir).unwrap().is_intact());
    let again = recover_journal(dir).unwrap_err();
    assert!(matches!(again, JournalError::Intact { .. }), "{again}");
}

#[test]
fn a_truncated_write_ahead_log_is_detected() {
    let image = killed_image(20);
    let bytes = fs::read(wal_file(image.path())).unwrap();
    fs::write(wal_file(image.path()), &bytes[..bytes.len() - 5 * 4120]).unwrap();
    let error = Journal::open(image.path()).unwrap_err();
    assert!(matches!(error, JournalError::Truncated { .. }), "{error}");
    fs::remove_file(wal_file(image.path())).unwrap();
    Journal::open(image.path()).unwrap_err();
    // Removing the watermark accepts the loss.
    fs::remove_file(image.path().join("journal.mark")).unwrap();
    Journal::open(image.path()).unwrap();
}

#[test]
fn commits_lost_to_a_power_loss_are_not_corruption() {
    let image = killed_image(20);
    let mark = image.path().join("journal.mark");
    let other = watermark::Watermark {
        boot: "before the power cut".to_owned(),
        ..watermark::read(image.path()).unwrap()
    };
    assert_eq!((other.turns, other.synced), (20, 0));
    fs::write(&mark, watermark::encode(&other).unwrap()).unwrap();
    let bytes = fs::read(wal_file(image.path())).unwrap();
    fs::write(wal_file(image.path()), &bytes[..bytes.len() - 5 * 4120]).unwrap();
    let journal = Journal::open(image.path()).unwrap();
    let left = journal.session_turns(&"s".into()).unwrap().len();
    assert!((10..=20).contains(&left), "{left}");
}

#[test]
fn a_watermark_of_another_journal_is_reported() {
    let image = killed_image(2);
    let mark = image.path().join("journal.mark");
    let other = watermark::Watermark {
        journal: "another".to_owned(),
        ..watermark::read(image.path()).unwrap()
    };
    fs::write(&mark, watermark::encode(&other).unwrap()).unwrap();
    let problems = check(image.path()).unwrap().problems;
    assert!(
        problems[0].contains("belongs to another journal"),
        "{problems:?}"
    );
    drop(Journal::open(image.path()).unwrap());
    assert!(check(image.path()).unwrap().is_intact());
}

#[test]
fn a_zeroed_page_is_detected_and_the_other_rows_are_recovered() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    for _ in 0..200 {
        journal.turn_in("s");
    }
    let page: u64 = journal
        .with_writer(|conn| {
            let leaf = "SELECT pageno FROM dbstat WHERE name = 'replies' AND pagetype = 'leaf' ORDER BY pageno LIMIT 1 OFFSET 3";
            conn.query_row(leaf, [], |row| row.get::<_, i64>(0))
                .map(|page| page as u64)
        })
        .unwrap_or(0);
    drop(journal);
    let file = database(dir.path());
    let mut bytes = fs::read(&file).unwrap();
    // Without the page list, zero a page in the middle.
    let at = match page {
        0 => bytes.len() / 4096 / 2 * 4096,
        page => (page as usize - 1) * 4096,
    };
    bytes[at..at + 4096].fill(0);
    fs::write(&file, bytes).unwrap();
    let error = Journal::open(dir.path()).unwrap_err();
    assert!(matches!(error, JournalError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("journal check"), "{error}");
    let salvaged = recover_journal(dir.path()).unwrap();
    assert!(salvaged.rows["turns"] >= 150, "{salvaged:?}");
    let journal = Journal::open(dir.path()).unwrap();
    for turn in journal.session_turns(&"s".into()).unwrap() {
        journal.turn(turn.id).unwrap();
    }
    // Ids are not reused.
    assert!(journal.turn_in("s") > TurnId(200));
}

#[test]
fn missing_rows_without_a_deletion_record_are_detected() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let gone = journal.sample_in("gone");
    journal.commit_step(&published(&[gone], 1, 0)).unwrap();
    journal.sample_in("kept");
    journal.forget_session(&"gone".into()).unwrap();
    // Repeated and existing rows: the tally counts rows, not inserts.
    journal.record_request(&arrival("kept", None)).unwrap();
    drop(journal);
    let journal = Journal::open(dir.path()).unwrap();
    journal
        .with_writer(|conn| {
            conn.execute_batch(
                "DROP TRIGGER tally_replies_removed; DELETE FROM replies WHERE turn = (SELECT MIN(turn) FROM replies)",
            )
        })
        .unwrap();
    drop(journal);
    let error = Journal::open(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("replies has 1 rows, but 2 were counted"),
        "{error}"
    );
}

#[test]
fn an_emptied_database_is_not_replaced_by_a_new_one() {
    let image = killed_image(3);
    fs::write(database(image.path()), b"").unwrap();
    let error = Journal::open(image.path()).unwrap_err().to_string();
    assert!(error.contains("write-ahead log"), "{error}");
    assert!(fs::metadata(wal_file(image.path())).unwrap().len() > 0);
    fs::remove_file(wal_file(image.path())).unwrap();
    let error = Journal::open(image.path()).unwrap_err().to_string();
    assert!(error.contains("3 turns"), "{error}");

    // The database is moved away without its WAL, which SQLite would delete.
    let image = killed_image(3);
    fs::remove_file(database(image.path())).unwrap();
    let error = Journal::open(image.path()).unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");
    assert!(fs::metadata(wal_file(image.path())).unwrap().len() > 0);
    // Both are moved away: an empty journal is created.
    fs::remove_file(wal_file(image.path())).unwrap();
    assert_eq!(count_turns(image.path()), 0);
    assert_eq!(count_turns(image.path()), 0);
}

#[test]
fn a_backup_is_a_snapshot_under_concurrent_writes() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    for _ in 0..5 {
        journal.turn_in("s");
    }
    let copies = tempdir().unwrap();
    std::thread::scope(|scope| {
        let writing = journal.clone();
        scope.spawn(move || {
            for _ in 0..60 {
                writing.turn_in("s");
            }
        });
        let beside = Journal::open_read_only(dir.path()).unwrap();
        for copy in 0..5 {
            let place = copies.path().join(copy.to_string());
            fs::create_dir(&place).unwrap();
            beside.backup(&database(&place)).unwrap();
            assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "one file");
            let copy = Journal::open(&place).unwrap();
            copy.abort_interrupted_turns().unwrap();
            let turns = copy.session_turns(&"s".into()).unwrap();
            assert!((5..=65).contains(&turns.len()), "{}", turns.len());
        }
    });
    let error = journal.backup(&database(dir.path())).unwrap_err();
    assert!(matches!(error, JournalError::Io { .. }), "{error}");
    assert_eq!(journal.session_turns(&"s".into()).unwrap().len(), 65);
}

#[cfg(unix)]
#[test]
fn journal_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempdir().unwrap();
    let dir = root.path().join("data");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let all = |journal: Journal| {
        journal.turn_in("s");
        let entries = fs::read_dir(&dir).unwrap();
        let paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        assert!(paths.len() >= 4, "{paths:?}");
        for path in paths {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    };
    all(Journal::open(&dir).unwrap());
    assert_eq!(mode(&dir), 0o700);
    // Files created by an older version.
    for name in ["journal.sqlite", "journal.lock", "journal.mark"] {
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    all(Journal::open(&dir).unwrap());
}
