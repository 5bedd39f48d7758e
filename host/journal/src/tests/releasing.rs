//! Which version is served, and whose word counts.

use tempfile::tempdir;

use super::published;
use crate::*;

/// Versions 1, 2, … published one after the other.
fn released(count: u64) -> Journal {
    let journal = Journal::in_memory().unwrap();
    for version in 1..=count {
        journal
            .commit_step(&published(&[], version, version - 1))
            .unwrap();
    }
    journal
}

fn states(journal: &Journal) -> String {
    let rows = journal.adapters().unwrap();
    rows.iter()
        .map(|row| row.state.chars().next().unwrap())
        .collect()
}

fn version(journal: &Journal) -> u64 {
    let active = journal.active_adapter().unwrap();
    let version = active.map_or(0, |row| row.version);
    assert_eq!(journal.standing().unwrap().version, version);
    version
}

#[test]
fn steps_release_one_version_after_the_other() {
    let journal = Journal::in_memory().unwrap();
    assert_eq!(journal.standing().unwrap(), Standing::default());
    let journal = released(2);
    let standing = journal.standing().unwrap();
    assert_eq!(
        (standing.version, standing.head, standing.back),
        (2, 2, Some(1))
    );
    let told: Vec<(u64, ReleaseAct)> = journal
        .releases(9)
        .unwrap()
        .iter()
        .map(|row| (row.version, row.act))
        .collect();
    assert_eq!(told, [(2, ReleaseAct::Step), (1, ReleaseAct::Step)]);
}

#[test]
fn a_rollback_takes_the_last_change_back_and_the_next_one_goes_further() {
    let journal = released(3);
    let back = || journal.release(Change::Rollback, None);
    journal.release(Change::Promote(1), Some("ops")).unwrap();
    assert_eq!((version(&journal), states(&journal).as_str()), (1, "arr"));
    assert_eq!(journal.releases(1).unwrap()[0].by.as_deref(), Some("ops"));
    // The promotion is taken back, then the steps.
    for expected in [3, 2, 1, 0] {
        assert_eq!(back().unwrap().version, expected);
        assert_eq!(version(&journal), expected);
    }
    assert_eq!(states(&journal), "rrr");
    let error = back().unwrap_err();
    assert!(matches!(error, JournalError::NothingBefore), "{error}");
    // What follows is a change like any other.
    journal.commit_step(&published(&[], 4, 0)).unwrap();
    assert_eq!(back().unwrap().version, 0);
}

#[test]
fn what_is_held_stays_and_training_goes_on_from_what_was_made_meanwhile() {
    let journal = released(2);
    let held = journal.release(Change::Pin(1), None).unwrap();
    assert_eq!((held.version, held.pinned, held.head), (1, true, 1));
    for (version, parent) in [(3, 1), (4, 3)] {
        let step = journal
            .commit_step_begun(&published(&[], version, parent), Some(held.line))
            .unwrap();
        assert!(!step.released);
        assert_eq!((step.standing.version, step.standing.head), (1, version));
    }
    assert_eq!(states(&journal), "arcc");
    for change in [Change::Promote(2), Change::Rollback] {
        let error = journal.release(change, None).unwrap_err();
        assert!(
            matches!(error, JournalError::VersionPinned { version: 1 }),
            "{error}"
        );
    }
    let free = journal.release(Change::Unpin, None).unwrap();
    assert_eq!(
        (free.version, free.pinned, free.head, free.line),
        (1, false, 4, held.line)
    );
    let step = journal
        .commit_step_begun(&published(&[], 5, 4), Some(free.line))
        .unwrap();
    assert!(step.released);
    assert_eq!((version(&journal), step.standing.back), (5, Some(1)));
    assert_eq!(states(&journal), "rrcca");
}

#[test]
fn another_version_can_be_held_instead() {
    let journal = released(2);
    journal.release(Change::Pin(2), None).unwrap();
    let moved = journal.release(Change::Pin(1), None).unwrap();
    assert_eq!((moved.version, moved.pinned, moved.head), (1, true, 1));
    journal.release(Change::Unpin, None).unwrap();
    // The hold itself was no change of what is served, so one rollback passes it by.
    let back = journal.release(Change::Rollback, None).unwrap();
    assert_eq!((back.version, back.back), (2, Some(1)));
}

#[test]
fn a_person_counts_more_than_a_step_that_had_begun() {
    let journal = released(2);
    let begun = journal.standing().unwrap().line;
    journal.release(Change::Promote(1), None).unwrap();
    let step = journal
        .commit_step_begun(&published(&[], 3, 2), Some(begun))
        .unwrap();
    assert!(!step.released);
    // It does not descend from what is served, so training does not go on from it either.
    assert_eq!((step.standing.version, step.standing.head), (1, 1));
    assert_eq!(states(&journal), "arc");
    let now = journal.release(Change::Promote(3), None).unwrap();
    assert_eq!((now.version, now.head, now.back), (3, 3, Some(1)));
}

#[test]
fn the_base_model_can_be_held_before_anything_was_learned() {
    let journal = Journal::in_memory().unwrap();
    let held = journal.release(Change::Pin(0), None).unwrap();
    assert_eq!((held.version, held.pinned, held.back), (0, true, None));
    let step = journal
        .commit_step_begun(&published(&[], 1, 0), Some(held.line))
        .unwrap();
    assert_eq!((step.released, step.standing.head), (false, 1));
    journal.release(Change::Unpin, None).unwrap();
    assert_eq!(journal.standing().unwrap().head, 1);
    assert!(matches!(
        journal.release(Change::Rollback, None).unwrap_err(),
        JournalError::NothingBefore
    ));
    assert_eq!(
        journal.release(Change::Promote(1), None).unwrap().back,
        Some(0)
    );
}

#[test]
fn what_changes_nothing_is_not_recorded_and_what_does_not_exist_is_refused() {
    let journal = released(1);
    let count = || journal.releases(99).unwrap().len();
    journal.release(Change::Promote(1), None).unwrap();
    journal.release(Change::Unpin, None).unwrap();
    assert_eq!(count(), 1);
    journal.release(Change::Pin(1), None).unwrap();
    journal.release(Change::Pin(1), None).unwrap();
    assert_eq!(count(), 2);
    journal.release(Change::Unpin, None).unwrap();
    for change in [Change::Promote(9), Change::Pin(9)] {
        let error = journal.release(change, None).unwrap_err();
        assert!(
            matches!(error, JournalError::UnknownAdapter { version: 9 }),
            "{error}"
        );
    }
    assert_eq!((count(), version(&journal)), (3, 1));
}

#[test]
fn it_outlives_a_restart() {
    let dir = tempdir().unwrap();
    let before = {
        let journal = Journal::open(dir.path()).unwrap();
        for version in 1..=2 {
            journal
                .commit_step(&published(&[], version, version - 1))
                .unwrap();
        }
        let held = journal.release(Change::Pin(1), Some("ops")).unwrap();
        journal
            .commit_step_begun(&published(&[], 3, 1), Some(held.line))
            .unwrap()
            .standing
    };
    let journal = Journal::open(dir.path()).unwrap();
    assert_eq!(journal.standing().unwrap(), before);
    assert_eq!((before.version, before.head), (1, 3));
}
