//! Releases by training steps and operators.

use tempfile::tempdir;

use super::published;
use crate::*;

/// A journal with versions 1 to `count` published by steps.
fn journal_with_versions(count: u64) -> Journal {
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

fn served_version(journal: &Journal) -> u64 {
    let active = journal.active_adapter().unwrap();
    let version = active.map_or(0, |row| row.version);
    assert_eq!(journal.release_state().unwrap().version, version);
    version
}

#[test]
fn steps_publish_consecutive_versions() {
    let journal = Journal::in_memory().unwrap();
    assert_eq!(journal.release_state().unwrap(), ReleaseState::default());
    let journal = journal_with_versions(2);
    let state = journal.release_state().unwrap();
    assert_eq!((state.version, state.head, state.back), (2, 2, Some(1)));
    let actions: Vec<(u64, ReleaseAction)> = journal
        .releases(9)
        .unwrap()
        .iter()
        .map(|row| (row.version, row.act))
        .collect();
    assert_eq!(
        actions,
        [(2, ReleaseAction::Step), (1, ReleaseAction::Step)]
    );
}

#[test]
fn consecutive_rollbacks_go_further_back() {
    let journal = journal_with_versions(3);
    let back = || journal.apply_release_change(ReleaseChange::Rollback, None);
    journal
        .apply_release_change(ReleaseChange::Promote(1), Some("ops"))
        .unwrap();
    assert_eq!(
        (served_version(&journal), states(&journal).as_str()),
        (1, "arr")
    );
    assert_eq!(journal.releases(1).unwrap()[0].by.as_deref(), Some("ops"));
    // The promotion is rolled back first, then the steps.
    for expected in [3, 2, 1, 0] {
        assert_eq!(back().unwrap().version, expected);
        assert_eq!(served_version(&journal), expected);
    }
    assert_eq!(states(&journal), "rrr");
    let error = back().unwrap_err();
    assert!(matches!(error, JournalError::NoPreviousVersion), "{error}");
    // A later release can be rolled back as usual.
    journal.commit_step(&published(&[], 4, 0)).unwrap();
    assert_eq!(back().unwrap().version, 0);
}

#[test]
fn a_pinned_version_stays_and_training_continues_from_the_newest_candidate() {
    let journal = journal_with_versions(2);
    let held = journal
        .apply_release_change(ReleaseChange::Pin(1), None)
        .unwrap();
    assert_eq!((held.version, held.pinned, held.head), (1, true, 1));
    for (version, parent) in [(3, 1), (4, 3)] {
        let step = journal
            .commit_step_at_line(&published(&[], version, parent), Some(held.line))
            .unwrap();
        assert!(!step.released);
        assert_eq!((step.state.version, step.state.head), (1, version));
    }
    assert_eq!(states(&journal), "arcc");
    for change in [ReleaseChange::Promote(2), ReleaseChange::Rollback] {
        let error = journal.apply_release_change(change, None).unwrap_err();
        assert!(
            matches!(error, JournalError::VersionPinned { version: 1 }),
            "{error}"
        );
    }
    let free = journal
        .apply_release_change(ReleaseChange::Unpin, None)
        .unwrap();
    assert_eq!(
        (free.version, free.pinned, free.head, free.line),
        (1, false, 4, held.line)
    );
    let step = journal
        .commit_step_at_line(&published(&[], 5, 4), Some(free.line))
        .unwrap();
    assert!(step.released);
    assert_eq!((served_version(&journal), step.state.back), (5, Some(1)));
    assert_eq!(states(&journal), "rrcca");
}

#[test]
fn another_version_can_be_pinned_instead() {
    let journal = journal_with_versions(2);
    journal
        .apply_release_change(ReleaseChange::Pin(2), None)
        .unwrap();
    let moved = journal
        .apply_release_change(ReleaseChange::Pin(1), None)
        .unwrap();
    assert_eq!((moved.version, moved.pinned, moved.head), (1, true, 1));
    journal
        .apply_release_change(ReleaseChange::Unpin, None)
        .unwrap();
    // Pinning the served version did not change it, so one rollback skips the pin.
    let back = journal
        .apply_release_change(ReleaseChange::Rollback, None)
        .unwrap();
    assert_eq!((back.version, back.back), (2, Some(1)));
}

#[test]
fn an_operator_change_takes_precedence_over_a_running_step() {
    let journal = journal_with_versions(2);
    let begun = journal.release_state().unwrap().line;
    journal
        .apply_release_change(ReleaseChange::Promote(1), None)
        .unwrap();
    let step = journal
        .commit_step_at_line(&published(&[], 3, 2), Some(begun))
        .unwrap();
    assert!(!step.released);
    // The candidate does not descend from the served version, so training does not continue from it.
    assert_eq!((step.state.version, step.state.head), (1, 1));
    assert_eq!(states(&journal), "arc");
    let now = journal
        .apply_release_change(ReleaseChange::Promote(3), None)
        .unwrap();
    assert_eq!((now.version, now.head, now.back), (3, 3, Some(1)));
}

#[test]
fn the_base_model_can_be_pinned_before_any_release() {
    let journal = Journal::in_memory().unwrap();
    let held = journal
        .apply_release_change(ReleaseChange::Pin(0), None)
        .unwrap();
    assert_eq!((held.version, held.pinned, held.back), (0, true, None));
    let step = journal
        .commit_step_at_line(&published(&[], 1, 0), Some(held.line))
        .unwrap();
    assert_eq!((step.released, step.state.head), (false, 1));
    journal
        .apply_release_change(ReleaseChange::Unpin, None)
        .unwrap();
    assert_eq!(journal.release_state().unwrap().head, 1);
    assert!(matches!(
        journal
            .apply_release_change(ReleaseChange::Rollback, None)
            .unwrap_err(),
        JournalError::NoPreviousVersion
    ));
    assert_eq!(
        journal
            .apply_release_change(ReleaseChange::Promote(1), None)
            .unwrap()
            .back,
        Some(0)
    );
}

#[test]
fn no_op_changes_are_not_recorded_and_unknown_versions_are_rejected() {
    let journal = journal_with_versions(1);
    let count = || journal.releases(99).unwrap().len();
    journal
        .apply_release_change(ReleaseChange::Promote(1), None)
        .unwrap();
    journal
        .apply_release_change(ReleaseChange::Unpin, None)
        .unwrap();
    assert_eq!(count(), 1);
    journal
        .apply_release_change(ReleaseChange::Pin(1), None)
        .unwrap();
    journal
        .apply_release_change(ReleaseChange::Pin(1), None)
        .unwrap();
    assert_eq!(count(), 2);
    journal
        .apply_release_change(ReleaseChange::Unpin, None)
        .unwrap();
    for change in [ReleaseChange::Promote(9), ReleaseChange::Pin(9)] {
        let error = journal.apply_release_change(change, None).unwrap_err();
        assert!(
            matches!(error, JournalError::UnknownAdapter { version: 9 }),
            "{error}"
        );
    }
    assert_eq!((count(), served_version(&journal)), (3, 1));
}

#[test]
fn releases_survive_a_restart() {
    let dir = tempdir().unwrap();
    let before = {
        let journal = Journal::open(dir.path()).unwrap();
        for version in 1..=2 {
            journal
                .commit_step(&published(&[], version, version - 1))
                .unwrap();
        }
        let held = journal
            .apply_release_change(ReleaseChange::Pin(1), Some("ops"))
            .unwrap();
        journal
            .commit_step_at_line(&published(&[], 3, 1), Some(held.line))
            .unwrap()
            .state
    };
    let journal = Journal::open(dir.path()).unwrap();
    assert_eq!(journal.release_state().unwrap(), before);
    assert_eq!((before.version, before.head), (1, 3));
}
