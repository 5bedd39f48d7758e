//! Rounds of environments: what is held back, resumed and counted.

use super::*;

fn episode(session: &SessionId, reward: f32) -> NewEpisode {
    NewEpisode {
        session: SessionUpsert {
            id: session.clone(),
            name: None,
            origin: "episode".to_owned(),
            key: None,
            user: None,
            ms: 1,
        },
        turns: vec![NewEpisodeTurn {
            turn: NewTurn {
                response_id: session.as_str().to_owned(),
                key: None,
                ..new_turn(None)
            },
            completion: completion(),
            next_state: Vec::new(),
            baseline_key: "task/a".to_owned(),
            step_verdicts: Vec::new(),
            provenance: SampleProvenance::default(),
        }],
        reward,
        verdict: verdict(reward),
        receipts: Vec::new(),
    }
}

fn sessions(round: u64) -> [SessionId; 3] {
    [0, 1, 2].map(|sample| SessionId(format!("episode/env/round-{round}/a/{sample}")))
}

fn offered(journal: &Journal) -> usize {
    let queued = journal.list_queued_samples(None).unwrap().len();
    let counted: u64 = journal
        .owner_queues()
        .unwrap()
        .iter()
        .map(|queue| queue.samples)
        .sum();
    assert_eq!(queued as u64, counted);
    queued
}

#[test]
fn samples_of_a_round_are_offered_once_it_is_closed() {
    let journal = Journal::in_memory().unwrap();
    let round = journal.open_round("env").unwrap();
    assert_eq!(round, 1);
    let [a, b, c] = sessions(round);
    journal
        .start_episodes("env", round, &[a.clone(), b.clone(), c.clone()])
        .unwrap();
    journal.record_episode(&episode(&a, 1.0)).unwrap();
    journal.record_episode(&episode(&b, 0.0)).unwrap();
    // A conversation does not wait.
    journal.sample_in("talk");
    assert_eq!(offered(&journal), 1);
    // The process is killed: the same round is open, and the episode that was running is run again.
    journal.release_rounds_except(&["env"]).unwrap();
    assert_eq!(journal.open_round("env").unwrap(), round);
    let ended = journal.ended_episodes("env", round).unwrap();
    assert_eq!(ended.into_iter().collect::<Vec<_>>(), [a, b]);
    assert_eq!(offered(&journal), 1);
    journal
        .start_episodes("env", round, std::slice::from_ref(&c))
        .unwrap();
    journal.fail_episode(&c, "the wall limit").unwrap();
    assert_eq!(journal.ended_episodes("env", round).unwrap().len(), 3);
    journal.close_round("env", round).unwrap();
    journal.close_round("env", round).unwrap();
    assert_eq!(offered(&journal), 3);
    let stats = journal.environment_stats().unwrap().pop().unwrap();
    assert_eq!((stats.round, stats.open), (2, false));
    assert_eq!((stats.running, stats.done), (0, 2));
    assert_eq!(stats.failed, [("the wall limit".to_owned(), 1)]);
    assert_eq!(stats.reward_mean, Some(0.5));
    assert_eq!(stats.samples, [(SampleState::Queued, 2)].into());
    assert!(stats.per_second > 0.0);
    assert_eq!(journal.open_round("env").unwrap(), 2);
}

#[test]
fn an_environment_that_is_not_run_any_more_holds_nothing_back() {
    let journal = Journal::in_memory().unwrap();
    let round = journal.open_round("env").unwrap();
    let [a, b, _] = sessions(round);
    journal
        .start_episodes("env", round, &[a.clone(), b])
        .unwrap();
    journal.record_episode(&episode(&a, 1.0)).unwrap();
    assert_eq!(offered(&journal), 0);
    journal.release_rounds_except(&["other"]).unwrap();
    assert_eq!(offered(&journal), 1);
    assert_eq!(journal.environment_stats().unwrap()[0].running, 0);
    // It continues where it was.
    assert_eq!(journal.open_round("env").unwrap(), round);
    assert_eq!(journal.ended_episodes("env", round).unwrap().len(), 1);
}
