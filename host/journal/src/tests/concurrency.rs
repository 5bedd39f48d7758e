use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::tempdir;

use super::{arrival, completion, published, sample_of, verdict};
use crate::*;

const WRITERS: usize = 4;
const TURNS: usize = 40;

#[test]
fn concurrent_readers_see_only_whole_transactions() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let journal = journal.clone();
                scope.spawn(move || {
                    let session = format!("s{writer}");
                    let mut previous = None;
                    for _ in 0..TURNS {
                        let turn = journal
                            .record_request(&arrival(&session, previous))
                            .unwrap()[0];
                        journal.complete(turn, &completion()).unwrap();
                        // A thread reads its own commits immediately.
                        assert_eq!(journal.record(turn).state, TurnState::Complete);
                        previous = Some(turn);
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            let (journal, done) = (journal.clone(), &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let counts = journal.counts().unwrap();
                    let turns: u64 = counts.turns.values().sum();
                    assert_eq!(counts.judging.values().sum::<u64>(), turns);
                    for turn in journal.session_turns(&"s0".into()).unwrap() {
                        assert_eq!(turn.state == TurnState::Complete, turn.completion.is_some());
                        assert_eq!(turn.next_state.is_some(), turn.kind == TurnKind::Main);
                    }
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    for writer in 0..WRITERS {
        let session: SessionId = format!("s{writer}").as_str().into();
        let turns = journal.session_turns(&session).unwrap();
        let positions: Vec<usize> = turns.iter().map(|turn| turn.seq as usize).collect();
        assert_eq!(positions, (0..TURNS).collect::<Vec<_>>());
    }
    let ready = journal.counts().unwrap().judging[&JudgingState::Ready];
    assert_eq!(ready, (WRITERS * (TURNS - 1)) as u64);
    // Turns of one conversation are judged in order.
    assert_eq!(journal.ready_for_judging(9_999).unwrap().len(), WRITERS);
}

#[test]
fn concurrent_commits_of_one_turn_or_sample_succeed_once() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    for number in 0..12 {
        journal.ready_turn_in(&format!("s{number}"));
    }
    let race = |work: &(dyn Fn(u64) -> u64 + Sync)| -> u64 {
        thread::scope(|scope| {
            let racers: Vec<_> = (0..WRITERS as u64)
                .map(|me| scope.spawn(move || work(me)))
                .collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).sum()
        })
    };
    let judged = race(&|_| {
        let mut won = 0;
        for turn in journal.ready_for_judging(99).unwrap() {
            let sample = sample_of(turn.id, 1.0);
            match journal.commit_judgement(&turn, &[verdict(1.0)], Some(&sample), None, &[]) {
                Ok(_) => won += 1,
                Err(JournalError::AlreadyJudged { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        won
    });
    assert_eq!((judged, journal.counts().unwrap().verdicts), (12, 12));
    let samples: Vec<SampleId> = journal
        .queued_samples(99)
        .unwrap()
        .iter()
        .map(|sample| sample.id)
        .collect();
    let steps = race(&|me| {
        let mut won = 0;
        for (number, batch) in (0..).zip(samples.chunks(3)) {
            match journal.commit_step(&published(batch, 1 + me * 100 + number, 0)) {
                Ok(_) => won += 1,
                Err(JournalError::SampleNotQueued { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        won
    });
    assert_eq!(steps, 4);
    let trained: Vec<SampleId> = journal
        .steps(99)
        .unwrap()
        .iter()
        .flat_map(|step| step.trained.iter().map(|(sample, _)| *sample))
        .collect();
    assert_eq!(trained.len(), 12);
    assert_eq!(trained.into_iter().collect::<BTreeSet<_>>().len(), 12);
}
