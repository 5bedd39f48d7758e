//! Chains of adapters of several owners in one journal.

use super::*;

fn alice() -> AdapterOwner {
    AdapterOwner::of_key("alice")
}

#[test]
fn the_text_form_of_an_owner_is_unambiguous() {
    assert_eq!(alice().to_string(), "key:alice");
    let (one, other) = (
        AdapterOwner::of_user(Some("a/b"), "c"),
        AdapterOwner::of_user(Some("a"), "b/c"),
    );
    assert_eq!(
        (one.as_str(), other.as_str()),
        ("user:a%2Fb/c", "user:a/b/c")
    );
    assert_eq!(one.as_str().parse(), Ok(one));
    assert_ne!(AdapterOwner::of_user(None, "x"), AdapterOwner::of_key("/x"));
    for text in ["", "alice", "key:", "user:bob", "user:a/"] {
        text.parse::<AdapterOwner>().unwrap_err();
    }
}

#[test]
fn each_owner_has_releases_of_its_own() {
    let journal = Journal::in_memory().unwrap();
    let alice = alice();
    let step = |owner, version, parent| {
        journal
            .commit_step_of(
                owner,
                &published(&[], version, parent),
                Some(0).filter(|_| parent == 0),
            )
            .unwrap()
    };
    assert!(step(None, 1, 0).released);
    assert!(step(Some(&alice), 2, 0).released);
    assert!(step(Some(&alice), 3, 2).released);
    let shared = journal.release_state().unwrap();
    assert_eq!((shared.version, shared.head, shared.back), (1, 1, Some(0)));
    let own = journal.release_state_of(Some(&alice)).unwrap();
    assert_eq!((own.version, own.head, own.back), (3, 3, Some(2)));
    let states: Vec<(String, Option<AdapterOwner>)> = journal
        .adapters()
        .unwrap()
        .into_iter()
        .map(|row| (row.state, row.owner))
        .collect();
    assert_eq!(states[0], ("active".to_owned(), None));
    assert_eq!(states[1], ("retired".to_owned(), Some(alice.clone())));
    assert_eq!(states[2], ("active".to_owned(), Some(alice.clone())));
    assert_eq!(journal.active_adapter().unwrap().unwrap().version, 1);
    assert_eq!(
        journal
            .active_adapter_of(Some(&alice))
            .unwrap()
            .unwrap()
            .version,
        3
    );
    let owners = journal.adapter_owners(9).unwrap();
    assert_eq!(owners, [Some(alice.clone()), None], "newest step first");
    assert_eq!(journal.adapter_owners(1).unwrap().len(), 1);
    let steps = |after, limit| {
        let steps = journal.steps_of(Some(&alice), StepId(after), limit);
        steps
            .unwrap()
            .iter()
            .map(|step| step.id.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (steps(0, 9), steps(2, 9), steps(0, 1)),
        (vec![2, 3], vec![3], vec![3])
    );
    let releases = journal.releases_of(Some(&alice), 9).unwrap();
    assert_eq!((releases.len(), releases[0].version), (2, 3));
    let counts = journal.owner_counts(Some(&alice)).unwrap();
    assert_eq!((counts.queued, counts.adapters), (0, 2));
    assert_eq!(counts.steps[&StepOutcome::Published], 2);

    // A rollback and a pin of one owner leave the others as they are.
    let change = |owner, change| journal.apply_release_change_of(owner, change, Some("ops"));
    let own = change(Some(&alice), ReleaseChange::Rollback).unwrap();
    assert_eq!((own.version, own.back), (2, Some(0)));
    change(Some(&alice), ReleaseChange::Pin(3)).unwrap();
    assert_eq!(journal.release_state().unwrap(), shared);
    let error = change(None, ReleaseChange::Promote(3)).unwrap_err();
    assert!(
        matches!(
            error,
            JournalError::VersionOfAnotherOwner { version: 3, .. }
        ),
        "{error}"
    );
    assert_eq!(
        error.to_string(),
        "adapter version 3 is not in the chain of the shared adapter: it belongs to `key:alice`; name that owner with `owner`"
    );
    let unknown = change(Some(&alice), ReleaseChange::Pin(9)).unwrap_err();
    assert!(matches!(
        unknown,
        JournalError::UnknownAdapter { version: 9 }
    ));
    let newest = journal.releases(1).unwrap().remove(0);
    assert_eq!((newest.version, newest.owner), (3, Some(alice)));
}

#[test]
fn owners_take_turns_by_their_last_step_and_then_by_their_oldest_sample() {
    let journal = Journal::in_memory().unwrap();
    let (alice, bob) = (alice(), AdapterOwner::of_key("bob"));
    let sample = |owner: Option<&AdapterOwner>| {
        let mut request = arrival("s", None);
        request.turns[0].owner = owner.cloned();
        let turn = journal.record_request(&request).unwrap()[0];
        journal.complete(turn, &completion()).unwrap();
        let next = journal.record_request(&arrival("s", Some(turn))).unwrap()[0];
        journal.complete(next, &completion()).unwrap();
        let sample = sample_of(turn, 1.0);
        let judged = journal.commit_judgement(turn, &[verdict(1.0)], Some(&sample), None, &[]);
        judged.unwrap().unwrap()
    };
    let owners = || -> Vec<(Option<AdapterOwner>, u64)> {
        let queues = journal.owner_queues().unwrap();
        queues
            .into_iter()
            .map(|queue| (queue.owner, queue.samples))
            .collect()
    };
    assert_eq!(owners(), []);
    let first = sample(Some(&bob));
    let second = sample(Some(&alice));
    sample(Some(&bob));
    sample(None);
    assert_eq!(
        owners(),
        [(Some(bob.clone()), 2), (Some(alice.clone()), 1), (None, 1)]
    );
    let queued = journal.list_queued_samples(Some(&alice)).unwrap();
    assert_eq!(
        queued.iter().map(|sample| sample.id).collect::<Vec<_>>(),
        [second]
    );
    journal
        .commit_step_of(Some(&bob), &published(&[first], 1, 0), None)
        .unwrap();
    assert_eq!(
        owners(),
        [(Some(alice), 1), (None, 1), (Some(bob.clone()), 1)]
    );
    assert_eq!(journal.steps(1).unwrap()[0].owner, Some(bob));
}
