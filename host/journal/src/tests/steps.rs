use super::{published, step};
use crate::*;

#[test]
fn a_step_dequeues_its_samples_and_publishes_its_adapter() {
    let journal = Journal::in_memory().unwrap();
    let samples = [
        journal.sample_in("a"),
        journal.sample_in("b"),
        journal.sample_in("c"),
    ];
    let new = NewStep {
        dropped: vec![(samples[2], "stale".to_owned())],
        meta: vec![("cursor".to_owned(), "7".to_owned())],
        ..published(&samples[..2], 1, 0)
    };
    let id = journal.commit_step(&new).unwrap();
    let read = journal.step(id).unwrap().unwrap();
    assert_eq!((&read.trained, &read.dropped), (&new.trained, &new.dropped));
    let samples = journal.samples_of_step(read.id).unwrap();
    let order: Vec<SampleId> = samples.iter().map(|sample| sample.id).collect();
    let trained = new.trained.iter().map(|(id, _)| *id);
    let mut expected: Vec<SampleId> = trained
        .chain(new.dropped.iter().map(|(id, _)| *id))
        .collect();
    expected.sort_unstable();
    assert_eq!(order, expected);
    assert_eq!(
        (read.trained_count, read.dropped_count, read.adapter),
        (2, 1, Some(1))
    );
    assert_eq!(
        (read.outcome, &read.metrics),
        (StepOutcome::Published, &new.metrics)
    );
    let active = journal.active_adapter().unwrap().unwrap();
    assert_eq!(
        (active.version, active.parent, active.step),
        (1, 0, Some(id))
    );
    assert_eq!(active.path, "adapters/1");
    assert_eq!(journal.meta("cursor").unwrap().as_deref(), Some("7"));
    assert_eq!(journal.queued_count().unwrap(), 0);
    let trained = journal.samples_of_turn(TurnId(1)).unwrap().remove(0);
    assert_eq!(
        (trained.state, trained.step, trained.advantage),
        (SampleState::Trained, Some(id), Some(0.25))
    );
}

#[test]
fn a_sample_trains_once() {
    let journal = Journal::in_memory().unwrap();
    let (used, fresh) = (journal.sample_in("a"), journal.sample_in("b"));
    journal.commit_step(&published(&[used], 1, 0)).unwrap();
    let mut again = published(&[fresh, used], 2, 1);
    again.meta.push(("cursor".to_owned(), "9".to_owned()));
    let error = journal.commit_step(&again).unwrap_err();
    assert!(
        matches!(error, JournalError::SampleNotQueued { sample, state: Some(SampleState::Trained) } if sample == used),
        "{error}"
    );
    // The rejected step recorded nothing.
    assert_eq!(journal.queued_samples(9).unwrap()[0].id, fresh);
    assert_eq!(journal.active_adapter().unwrap().unwrap().version, 1);
    assert_eq!(
        (
            journal.steps(9).unwrap().len(),
            journal.meta("cursor").unwrap()
        ),
        (1, None)
    );

    for twice in [step(&[fresh, fresh]), step(&[SampleId(99)])] {
        let error = journal.commit_step(&twice).unwrap_err();
        assert!(
            matches!(error, JournalError::SampleNotQueued { .. }),
            "{error}"
        );
    }
    let mut both = step(&[fresh]);
    both.dropped.push((fresh, "stale".to_owned()));
    assert!(journal.commit_step(&both).is_err());
    journal.commit_step(&step(&[fresh])).unwrap();
}

#[test]
fn one_adapter_is_active_and_versions_are_not_reused() {
    let journal = Journal::in_memory().unwrap();
    journal.commit_step(&published(&[], 1, 0)).unwrap();
    journal.commit_step(&published(&[], 2, 1)).unwrap();
    let candidate = NewStep {
        outcome: StepOutcome::NoSignal,
        ..published(&[], 3, 2)
    };
    journal.commit_step(&candidate).unwrap();
    let states: Vec<_> = journal
        .adapters()
        .unwrap()
        .into_iter()
        .map(|row| (row.version, row.state))
        .collect();
    let expected = [(1, "retired"), (2, "active"), (3, "candidate")];
    assert_eq!(
        states,
        expected.map(|(version, state)| (version, state.to_owned()))
    );
    let error = journal.commit_step(&published(&[], 2, 1)).unwrap_err();
    assert!(
        matches!(error, JournalError::AdapterExists { version: 2 }),
        "{error}"
    );
    assert_eq!(journal.active_adapter().unwrap().unwrap().version, 2);
}

#[test]
fn an_invalid_step_is_rejected() {
    let journal = Journal::in_memory().unwrap();
    let sample = journal.sample_in("a");
    let bad = [
        NewStep {
            outcome: StepOutcome::Published,
            ..step(&[])
        },
        NewStep {
            outcome: StepOutcome::Failed,
            ..step(&[sample])
        },
        NewStep {
            trained: vec![(sample, f32::NAN)],
            ..step(&[])
        },
        published(&[], 0, 0),
        published(&[], u64::MAX, 0),
    ];
    for new in bad {
        let error = journal.commit_step(&new).unwrap_err();
        assert!(matches!(error, JournalError::Invalid(_)), "{error}");
    }
    assert_eq!(
        (
            journal.queued_count().unwrap(),
            journal.steps(9).unwrap().len()
        ),
        (1, 0)
    );
}

#[test]
fn steps_are_listed_newest_first_and_counts_match() {
    let journal = Journal::in_memory().unwrap();
    let sample = journal.sample_in("a");
    journal.commit_step(&step(&[sample])).unwrap();
    let failed = NewStep {
        outcome: StepOutcome::Failed,
        ..step(&[])
    };
    let last = journal.commit_step(&failed).unwrap();
    let steps = journal.steps(1).unwrap();
    assert_eq!((steps.len(), steps[0].id), (1, last));
    let counts = journal.counts().unwrap();
    assert_eq!(
        (
            counts.steps[&StepOutcome::NoSignal],
            counts.steps[&StepOutcome::Failed]
        ),
        (1, 1)
    );
    assert_eq!(counts.samples[&SampleState::Trained], 1);
    assert_eq!(
        (
            counts.turns[&TurnState::Complete],
            counts.judging[&JudgingState::Done]
        ),
        (2, 1)
    );
    let json = serde_json::to_value(&counts).unwrap();
    assert_eq!(json["steps"]["no_signal"], 1);
}

#[test]
fn a_dropped_sample_without_a_reason_is_corruption() {
    let journal = Journal::in_memory().unwrap();
    let sample = journal.sample_in("a");
    let dropped = NewStep {
        dropped: vec![(sample, "stale".to_owned())],
        ..step(&[])
    };
    let id = journal.commit_step(&dropped).unwrap();
    let read = journal.step(id).unwrap().unwrap();
    assert_eq!(read.dropped, [(sample, "stale".to_owned())]);
    journal
        .write(|tx| Ok(tx.execute("UPDATE samples SET reason = NULL", [])?))
        .unwrap();
    let error = journal.step(id).unwrap_err();
    assert!(matches!(error, JournalError::Corrupt { .. }), "{error}");
}
