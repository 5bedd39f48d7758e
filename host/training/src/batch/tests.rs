//! What trains, what is dropped and why, on queues of hand-made samples.

use super::*;
use crate::advantage::Estimator;
use crate::tests::sample;

fn rules(lineage: &Lineage, estimator: Estimator) -> BatchRules<'_> {
    BatchRules {
        method: TrainingMethod::Binary,
        prompts: &|_| Ok(DistillationPrompts::default()),
        estimator_config: estimator.into(),
        episode_estimator: Estimator::Step.into(),
        overlong: None,
        whitens: false,
        whitens_episodes: false,
        min_advantage: 0.0,
        component: None,
        batch: 2,
        max_staleness: 4,
        max_tokens: 64,
        vocabulary: 100,
        active: 0,
        lineage,
        group_cutoff_ms: 1_000,
    }
}

fn ids(batch: &Batch) -> (Vec<i64>, Vec<i64>) {
    (
        batch.chosen.iter().map(|c| c.sample.id.0).collect(),
        batch.dropped.iter().map(|(id, _)| id.0).collect(),
    )
}

#[test]
fn a_batch_is_filled_past_samples_without_signal() {
    let lineage = Lineage::default();
    let queue = vec![
        sample(1, 0.0),
        sample(2, 1.0),
        sample(3, 0.0),
        sample(4, -1.0),
        sample(5, 1.0),
    ];
    let batch = build_batch(
        queue,
        &rules(&lineage, Estimator::Raw),
        &Baselines::new(0.5, 0.0),
    )
    .unwrap()
    .unwrap();
    assert_eq!(ids(&batch), (vec![2, 4], vec![1, 3]));
    assert_eq!(batch.without_signal, 2);
}

#[test]
fn baselines_include_dropped_samples() {
    let lineage = Lineage::default();
    let queue = vec![
        sample(1, 0.0),
        sample(2, 1.0),
        sample(3, 1.0),
        sample(4, -1.0),
    ];
    let before = Baselines::new(0.5, 0.0).after([("default", 0.0)]);
    let batch = build_batch(queue, &rules(&lineage, Estimator::Baseline), &before)
        .unwrap()
        .unwrap();
    assert_eq!(ids(&batch), (vec![2, 3], vec![1]));
    let mean = batch.baselines.mean("default");
    assert!((mean - 1.0 / 3.0).abs() < 1e-12, "{mean}");
}

#[test]
fn a_reply_accepted_as_expected_gives_no_signal() {
    let lineage = Lineage::default();
    let queue = vec![sample(1, 1.0), sample(2, -1.0)];
    let before = Baselines::new(0.5, 0.0).after([("default", 0.9)]);
    let rules = BatchRules {
        min_advantage: 0.2,
        ..rules(&lineage, Estimator::Baseline)
    };
    let batch = build_batch(queue, &rules, &before).unwrap().unwrap();
    assert_eq!(ids(&batch), (vec![2], vec![1]));
    assert_eq!(batch.baselines.signal(), 0.75);
}

#[test]
fn unusable_samples_are_dropped_with_a_reason() {
    let lineage = Lineage::default();
    let mut bad = vec![
        sample(1, 1.0),
        sample(2, 1.0),
        sample(3, f32::NAN),
        sample(4, 1.0),
        sample(5, 1.0),
        sample(6, 1.0),
    ];
    bad[0].token_ids.clear();
    bad[1].full_logprobs.pop();
    bad[3].token_ids[0] = 100;
    bad[4].prompt_ids = vec![1; 64];
    bad[5].adapter_version = 7;
    let batch = build_batch(
        bad,
        &rules(&lineage, Estimator::Raw),
        &Baselines::new(0.5, 0.0),
    )
    .unwrap()
    .unwrap();
    assert!(batch.chosen.is_empty());
    let reasons: Vec<&str> = batch.dropped.iter().map(|(_, r)| r.as_str()).collect();
    for (i, part) in [
        "no prompt tokens or no reply",
        "1 log-probs for 2 tokens",
        "reward is not finite",
        "outside of the model's vocabulary of 100",
        "max_sample_tokens allows 64",
        "the journal does not know",
    ]
    .iter()
    .enumerate()
    {
        assert!(reasons[i].contains(part), "{reasons:?}");
    }
    assert_eq!(batch.stale, 1);
}

#[test]
fn groups_are_batched_whole_and_only_after_they_stop_growing() {
    let lineage = Lineage::default();
    let grouped = |id, reward, group: &str, created_ms| {
        let mut s = sample(id, reward);
        s.group = group.to_owned();
        s.created_ms = created_ms;
        s
    };
    let queue = vec![
        grouped(1, 1.0, "growing", 0),
        grouped(2, 1.0, "a", 0),
        grouped(3, 0.5, "constant", 0),
        grouped(4, -1.0, "a", 5),
        grouped(5, 0.5, "constant", 5),
        grouped(6, 0.0, "a", 6),
        grouped(7, -1.0, "growing", 2_000),
        grouped(8, 1.0, "singleton", 7),
    ];
    let rules = rules(&lineage, Estimator::Group);
    let batch = build_batch(queue.clone(), &rules, &Baselines::new(0.5, 0.0))
        .unwrap()
        .unwrap();
    assert_eq!(ids(&batch), (vec![2, 4], vec![6]));
    let growing = vec![queue[0].clone(), queue[6].clone()];
    let waiting = build_batch(growing, &rules, &Baselines::new(0.5, 0.0)).unwrap();
    assert!(waiting.is_none());
}

#[test]
fn episodes_are_compared_within_their_group_beside_conversations() {
    let lineage = Lineage::default();
    // A group of episodes does not wait: it is in the queue when it is complete.
    let episode = |id, reward| {
        let mut one = sample(id, reward);
        one.group = "env/round-1/sum".to_owned();
        one.created_ms = 2_000;
        one.provenance.episode = Some(clawhost_journal::EpisodeStep {
            trajectory: id.to_string(),
            step: 0,
            votes: Vec::new(),
            judged: false,
            weight: 1.0,
        });
        one
    };
    // The group of a conversation does not matter to an estimator that compares no groups.
    let mut live = sample(3, 0.5);
    live.created_ms = 2_000;
    let rules = BatchRules {
        batch: 8,
        whitens: true,
        ..rules(&lineage, Estimator::Raw)
    };
    let baselines = Baselines::new(0.5, 0.0);
    let queue = vec![episode(1, 1.0), live, sample(4, -0.5), episode(2, 0.0)];
    let batch = build_batch(queue, &rules, &baselines).unwrap().unwrap();
    let found: Vec<(i64, f64)> = batch
        .chosen
        .iter()
        .map(|one| (one.sample.id.0, one.advantage.unwrap()))
        .collect();
    let half = 1.0 / std::f64::consts::SQRT_2;
    for ((id, advantage), expected) in
        found
            .iter()
            .zip([(1, half), (2, -half), (3, 1.0), (4, -1.0)])
    {
        // The conversations are whitened, the episodes are not.
        assert_eq!(*id, expected.0);
        assert!((advantage - expected.1).abs() < 1e-5, "{found:?}");
    }
    // The weight of an environment scales its advantages.
    let mut light = [episode(1, 1.0), episode(2, 0.0)];
    for one in &mut light {
        one.provenance.episode.as_mut().unwrap().weight = 0.25;
    }
    let light = build_batch(light.to_vec(), &rules, &baselines);
    let light = light.unwrap().unwrap().chosen[1].advantage.unwrap();
    assert!((light + half / 4.0).abs() < 1e-5, "{light}");
}

#[test]
fn votes_on_steps_join_the_outcome_with_their_coefficient() {
    let lineage = Lineage::default();
    let episode = |id, reward, votes: &[f64]| {
        let mut one = sample(id, reward);
        one.group = "env/round-1/sum".to_owned();
        one.provenance.episode = Some(clawhost_journal::EpisodeStep {
            trajectory: id.to_string(),
            step: 0,
            votes: votes.to_vec(),
            judged: true,
            weight: 1.0,
        });
        one
    };
    let advantages = |step_coefficient| {
        let rules = BatchRules {
            batch: 8,
            episode_estimator: EstimatorConfig {
                step_coefficient,
                ..Estimator::Step.into()
            },
            ..rules(&lineage, Estimator::Raw)
        };
        let queue = vec![
            episode(1, 1.0, &[1.0]),
            episode(2, -1.0, &[0.5, -0.5]),
            episode(3, -1.0, &[-1.0]),
            // Its judge gave no vote, so it is part of no mean.
            episode(4, 1.0, &[]),
        ];
        let batch = build_batch(queue, &rules, &Baselines::new(0.5, 0.0));
        let batch = batch.unwrap().unwrap();
        let (id, reason) = &batch.dropped[0];
        assert_eq!((id.0, batch.dropped.len()), (4, 1));
        assert!(reason.contains("not a vote of 0"), "{reason}");
        let mut found: Vec<(i64, f64)> = batch
            .chosen
            .iter()
            .map(|one| (one.sample.id.0, one.advantage.unwrap()))
            .collect();
        found.sort_by_key(|(id, _)| *id);
        found
    };
    // Scores 1.2, -1 and -1.2: mean -1/3, deviation sqrt(1.773333) = 1.331666.
    let judged = [1.151440, -0.500626, -0.650813];
    // Scores 1, -1 and -1: mean -1/3, deviation sqrt(4/3) = 1.154701.
    let outcome = [1.154700, -0.577350, -0.577350];
    for (coefficient, expected) in [(0.2, judged), (0.0, outcome)] {
        let found = advantages(coefficient);
        for ((_, advantage), expected) in found.iter().zip(expected) {
            assert!(
                (advantage - expected).abs() < 1e-5,
                "{coefficient}: {found:?}"
            );
        }
    }
}
