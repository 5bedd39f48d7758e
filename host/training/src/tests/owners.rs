//! One adapter for each owner over one base model.

use clawhost_journal::{AdapterOwner, JournalError, ReleaseChange, SampleId, StepOutcome};

use super::fixture::{Fixture, options};
use crate::TrainingError;
use crate::trainer::{Due, Trainer};
use clawhost_config::TrainingOptions;

/// What Alice thinks of the replies, and Bob.
const LIKED: [f32; 4] = [1.0, -1.0, 1.0, -1.0];
const DISLIKED: [f32; 4] = [-1.0, 1.0, -1.0, 1.0];

fn alice() -> AdapterOwner {
    AdapterOwner::of_key("alice")
}

fn bob() -> AdapterOwner {
    AdapterOwner::of_key("bob")
}

impl Fixture {
    /// Eight samples of an owner with these rewards, repeated.
    fn eight_of(&mut self, owner: Option<AdapterOwner>, rewards: [f32; 4]) -> Vec<SampleId> {
        self.owner = owner;
        // The same replies for everybody.
        self.count = 0;
        let rewards = rewards.into_iter().cycle().take(8);
        rewards.map(|reward| self.sample(reward)).collect()
    }
}

fn step(trainer: &mut Trainer) -> Option<AdapterOwner> {
    let step = trainer.step_when_due(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    assert!(step.publish_error.is_none());
    trainer.owner().cloned()
}

/// Options whose baselines change with each step.
fn baseline_options() -> TrainingOptions {
    TrainingOptions {
        estimator: crate::advantage::Estimator::Baseline,
        ..options()
    }
}

#[test]
fn two_owners_with_opposite_rewards_each_get_their_own_adapter() {
    let mut fixture = Fixture::new();
    let liked = fixture.eight_of(Some(alice()), LIKED);
    fixture.eight_of(Some(bob()), DISLIKED);
    let mut trainer = fixture.trainer(&options());
    assert_eq!(trainer.due(10).unwrap(), Due::Now);
    let owners: Vec<_> = (0..4).map(|_| step(&mut trainer)).collect();
    assert_eq!(
        owners,
        [Some(alice()), Some(bob()), Some(alice()), Some(bob())],
        "they take turns"
    );
    assert!(trainer.step_when_due(10).unwrap().is_none());

    let chains: Vec<_> = fixture
        .journal
        .adapters()
        .unwrap()
        .into_iter()
        .map(|row| (row.version, row.parent, row.owner.unwrap()))
        .collect();
    assert_eq!(
        chains,
        [
            (1, 0, alice()),
            (2, 0, bob()),
            (3, 1, alice()),
            (4, 2, bob())
        ]
    );
    assert_eq!(
        fixture.engine.active().version,
        0,
        "the shared adapter is not trained"
    );
    let publisher = &trainer.publisher;
    let (first, second) = (
        publisher.version_of(&alice()).unwrap(),
        publisher.version_of(&bob()).unwrap(),
    );
    assert_eq!((first.version, second.version), (3, 4));
    // How much more probable the replies are that Alice liked and Bob disliked, less those of the opposite.
    let preference = |fixture: &Fixture, version: &clawhost_engine::LoadedVersion| -> f32 {
        let scores = liked.iter().zip([1.0, -1.0].into_iter().cycle());
        scores
            .map(|(id, sign)| sign * fixture.score_under(version, *id))
            .sum()
    };
    let base = preference(&fixture, &fixture.engine.active());
    let (first, second) = (
        preference(&fixture, &first) - base,
        preference(&fixture, &second) - base,
    );
    assert!(first > 0.1 && second < -0.1, "alice {first}, bob {second}");

    // Mixed into one adapter, they cancel out.
    let mut mixed = Fixture::new();
    mixed.eight_of(None, LIKED);
    mixed.eight_of(None, DISLIKED);
    let mut trainer = mixed.trainer(&TrainingOptions {
        batch_size: 16,
        ..options()
    });
    trainer.step(10).unwrap();
    let shared = preference(&mixed, &mixed.engine.active()) - base;
    assert!(shared.abs() < first.min(-second) / 4.0, "shared {shared}");
}

#[test]
fn a_restart_restores_every_owner() {
    let run = |restart: bool| {
        let mut fixture = Fixture::new();
        let options = baseline_options();
        fixture.eight_of(Some(alice()), LIKED);
        fixture.eight_of(Some(bob()), [-1.0, -1.0, -1.0, 1.0]);
        fixture.eight_of(None, LIKED);
        let mut trainer = fixture.trainer(&options);
        for _ in 0..3 {
            step(&mut trainer);
        }
        if restart {
            fixture.restart();
            trainer = fixture.trainer(&options);
            assert_eq!(fixture.engine.active().version, 3);
            assert_eq!(trainer.publisher.version_of(&alice()).unwrap().version, 1);
            assert_eq!(trainer.publisher.version_of(&bob()).unwrap().version, 2);
        }
        let owners: Vec<_> = (0..3).map(|_| step(&mut trainer)).collect();
        assert_eq!(owners, [Some(alice()), Some(bob()), None]);
        let rows = fixture.journal.adapters().unwrap();
        let digests: Vec<String> = rows.into_iter().map(|row| row.digest).collect();
        let served = trainer.publisher.version_of(&bob()).unwrap();
        assert_eq!(served.digest(), digests[4]);
        let baselines = fixture
            .journal
            .meta("training.baselines/key:bob")
            .unwrap()
            .unwrap();
        assert_ne!(
            Some(&baselines),
            fixture.journal.meta("training.baselines").unwrap().as_ref()
        );
        (digests, baselines)
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn evicted_adapters_are_read_again_and_never_mixed_up() {
    let mut fixture = Fixture::new();
    let options = TrainingOptions {
        max_loaded_adapters: 1,
        keep_checkpoints: 1,
        keep_adapters: 1,
        ..options()
    };
    fixture.eight_of(Some(alice()), LIKED);
    fixture.eight_of(Some(bob()), DISLIKED);
    let mut trainer = fixture.trainer(&options);
    for _ in 0..4 {
        step(&mut trainer);
    }
    let rows = fixture.journal.adapters().unwrap();
    let held = trainer.publisher.version_of(&alice()).unwrap();
    for _ in 0..2 {
        for (owner, version) in [(alice(), 3), (bob(), 4)] {
            let served = trainer.publisher.version_of(&owner).unwrap();
            let row = rows.iter().find(|row| row.version == version).unwrap();
            assert_eq!(
                (served.version, served.digest()),
                (version, row.digest.as_str())
            );
        }
    }
    assert_eq!(held.version, 3, "a request in flight keeps its adapter");
    let nobody = AdapterOwner::of_key("carol");
    assert_eq!(trainer.publisher.version_of(&nobody).unwrap().version, 0);
}

#[test]
fn a_release_change_concerns_one_owner() {
    let mut fixture = Fixture::new();
    let options = TrainingOptions {
        max_staleness: 0,
        ..options()
    };
    fixture.eight_of(Some(alice()), LIKED);
    fixture.eight_of(Some(bob()), DISLIKED);
    let mut trainer = fixture.trainer(&TrainingOptions {
        max_staleness: 4,
        ..options.clone()
    });
    for _ in 0..4 {
        step(&mut trainer);
    }
    drop(trainer);
    let mut trainer = fixture.trainer(&options);
    let publisher = trainer.publisher.clone();
    let served = |owner: AdapterOwner| publisher.version_of(&owner).unwrap().version;
    let change =
        |owner: &AdapterOwner, change| publisher.apply_of(Some(owner), change, Some("ops"));
    change(&alice(), ReleaseChange::Rollback).unwrap();
    assert_eq!((served(alice()), served(bob())), (1, 4));
    change(&alice(), ReleaseChange::Rollback).unwrap();
    assert_eq!((served(alice()), served(bob())), (0, 4));
    let error = change(&alice(), ReleaseChange::Promote(4)).unwrap_err();
    assert!(
        matches!(
            &error,
            TrainingError::Journal(JournalError::VersionOfAnotherOwner { .. })
        ),
        "{error}"
    );
    assert_eq!(served(alice()), 0);
    change(&bob(), ReleaseChange::Pin(2)).unwrap();
    assert_eq!(served(bob()), 2);

    // Alice's training goes on from the base model; that of Bob's pinned version goes on as candidates that wait.
    fixture.eight_of(Some(alice()), LIKED);
    assert_eq!(step(&mut trainer), Some(alice()));
    let rows = fixture.journal.adapters().unwrap();
    assert_eq!((rows[4].version, rows[4].parent), (5, 0));
    assert_eq!((served(alice()), served(bob())), (5, 2));
}
