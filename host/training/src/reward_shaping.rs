//! Reward shaping and advantage post-processing: overlong penalty, episode votes, whitening, and the KL penalty of
//! REINFORCE++.

use clawhost_journal::{SampleProvenance, SampleRecord};

use crate::advantage::EstimatorConfig;
use crate::advantage::{
    EpisodePosition, Estimator, OverlongPenalty, RewardedSample, discounted_returns,
    kl_penalized_rewards, mean_token_advantage, whiten,
};
use crate::batch_sample::BatchSample;
use crate::forced_tokens::{self, scatter_trained, select_trained};
use crate::loss::{KlEstimator, KlTerm};
use crate::options::overlong_penalty;
use clawhost_config::TrainingOptions;

/// The sample with its shaped reward: the judged reward plus the overlong penalty.
pub(crate) fn shape_reward<'a>(
    sample: &'a SampleRecord,
    reward: f32,
    overlong: Option<&OverlongPenalty>,
) -> RewardedSample<'a> {
    let tokens = sample.token_ids.len();
    RewardedSample {
        reward: f64::from(reward) + overlong.map_or(0.0, |overlong| overlong.shaping(tokens)),
        tokens,
        group: &sample.group,
        baseline_key: &sample.baseline_key,
        episode: episode(&sample.provenance),
    }
}

/// Whether an environment made this sample.
pub(crate) fn is_episode(sample: &SampleRecord) -> bool {
    sample.provenance.episode.is_some()
}

/// The factor on the advantage of a sample: the weight of its environment, 1 for a conversation.
pub(crate) fn episode_weight(sample: &SampleRecord) -> f64 {
    let episode = sample.provenance.episode.as_ref();
    episode.map_or(1.0, |episode| episode.weight)
}

/// The position of a sample in an episode; none if it has none, or votes that are no numbers.
fn episode(provenance: &SampleProvenance) -> Option<EpisodePosition<'_>> {
    let episode = provenance.episode.as_ref()?;
    let votes = &episode.votes;
    #[allow(clippy::cast_precision_loss, reason = "a step has a few votes")]
    let mean = (!votes.is_empty()).then(|| votes.iter().sum::<f64>() / votes.len() as f64);
    mean.is_none_or(f64::is_finite).then_some(EpisodePosition {
        trajectory: &episode.trajectory,
        step: episode.step,
        votes: mean,
    })
}

/// What this estimator needs and the sample lacks; none if it lacks nothing.
pub(crate) fn missing_input(estimator: Estimator, sample: &SampleRecord) -> Option<&'static str> {
    if estimator != Estimator::Step || sample.reward.is_none() {
        return None;
    }
    if episode(&sample.provenance).is_none() {
        return Some(
            "training.estimator = \"step\" needs its trajectory and step, which come from environments",
        );
    }
    let episode = sample.provenance.episode.as_ref();
    let unjudged = episode.is_some_and(|episode| episode.judged && episode.votes.is_empty());
    unjudged.then_some("its step judge gave no vote, which is not a vote of 0")
}

/// The estimator's input for a sample with this reward, with the penalty of `training.advantage.overlong_length`.
pub fn shaped_sample<'a>(
    options: &TrainingOptions,
    sample: &'a SampleRecord,
    reward: f32,
) -> RewardedSample<'a> {
    shape_reward(
        sample,
        reward,
        overlong_penalty(&options.advantage).as_ref(),
    )
}

/// Whether advantages are whitened when the batch is built. `reinforce++` whitens later, because its advantages need
/// the reference log-probs.
pub(crate) fn whitens_batch(options: &TrainingOptions) -> bool {
    options.estimator != Estimator::ReinforcePlusPlus
        && options.advantage.whitens(options.estimator)
}

/// The masks of tokens that no grammar forced, of the samples at `indices`.
fn masks(chosen: &[BatchSample], indices: &[usize]) -> Vec<Vec<bool>> {
    let mask = |index: &usize| forced_tokens::train_mask(&chosen[*index].sample);
    indices.iter().map(mask).collect()
}

/// Whitens over the trained tokens and sets the others to 0.
fn whiten_trained(rows: &mut [Vec<f32>], masks: &[Vec<bool>]) {
    let pairs = rows.iter().zip(masks);
    let mut trained: Vec<Vec<f32>> = pairs.map(|(row, mask)| select_trained(row, mask)).collect();
    whiten(&mut trained);
    for ((row, mask), trained) in rows.iter_mut().zip(masks).zip(trained) {
        *row = scatter_trained(trained, mask, 0.0);
    }
}

/// Whitens the advantages of those samples of a batch for which `whitens` is true, over all their trained tokens.
pub(crate) fn whiten_batch(chosen: &mut [BatchSample], whitens: impl Fn(&SampleRecord) -> bool) {
    let (indices, mut rows): (Vec<usize>, Vec<Vec<f32>>) = chosen
        .iter()
        .enumerate()
        .filter(|(_, chosen)| whitens(&chosen.sample))
        .filter_map(|(index, chosen)| Some((index, chosen.per_token()?)))
        .unzip();
    let masks = masks(chosen, &indices);
    whiten_trained(&mut rows, &masks);
    for ((index, row), mask) in indices.into_iter().zip(rows).zip(masks) {
        let mean = mean_token_advantage(&select_trained(&row, &mask));
        chosen[index].advantage = Some(mean);
        chosen[index].token_advantages = Some(row);
    }
}

/// The token advantages of each sample with a reward: the estimated ones, or for conversations with `reinforce++` the
/// discounted returns of the reward less the KL penalty of each token.
pub(crate) fn batch_token_advantages(
    chosen: &[BatchSample],
    reference: &[Vec<f32>],
    options: &TrainingOptions,
) -> Vec<Option<Vec<f32>>> {
    let mut advantages: Vec<Option<Vec<f32>>> = chosen.iter().map(BatchSample::per_token).collect();
    if options.estimator != Estimator::ReinforcePlusPlus {
        return advantages;
    }
    let advantage = &options.advantage;
    let discount = EstimatorConfig::of_conversations(options).gamma;
    let (indices, mut rows): (Vec<usize>, Vec<Vec<f32>>) = chosen
        .iter()
        .zip(reference)
        .enumerate()
        // Keep token advantages from a component, and those of episodes.
        .filter(|(_, (chosen, _))| chosen.token_advantages.is_none() && !is_episode(&chosen.sample))
        .filter_map(|(index, (chosen, reference))| {
            // KL (k1) of the policy that sampled the reply from the reference.
            let mut kl: Vec<f32> = chosen
                .sample
                .full_logprobs
                .iter()
                .zip(reference)
                .map(|(&logprob, &reference)| KlEstimator::K1.token(logprob, reference).value)
                .collect();
            // Tokens that a grammar forced get no KL penalty.
            forced_tokens::fill(&mut kl, &chosen.sample.forced, 1, 0.0);
            #[allow(
                clippy::cast_possible_truncation,
                reason = "losses are computed in f32, as the parameters are"
            )]
            let reward = chosen.advantage? as f32;
            let rewards = kl_penalized_rewards(reward, &kl, advantage.reward_kl_coef());
            Some((index, discounted_returns(&rewards, discount)))
        })
        .unzip();
    if advantage.whitens(options.estimator) {
        whiten_trained(&mut rows, &masks(chosen, &indices));
    }
    for (index, row) in indices.into_iter().zip(rows) {
        advantages[index] = Some(row);
    }
    advantages
}

#[cfg(test)]
mod tests {
    use clawhost_journal::EpisodeStep;

    use super::*;
    use crate::tests::sample;
    use clawhost_config::AdvantageOptions;

    fn chosen(id: i64, advantage: Option<f64>) -> BatchSample {
        BatchSample {
            sample: sample(id, 1.0),
            advantage,
            token_advantages: None,
            hinted: Vec::new(),
            off_policy: false,
            staleness: 0,
        }
    }

    #[test]
    fn an_episode_without_votes_is_scored_by_its_outcome() {
        let provenance = |votes: &[f64]| SampleProvenance {
            episode: Some(EpisodeStep {
                trajectory: "t".to_owned(),
                step: 2,
                votes: votes.to_vec(),
                judged: false,
                weight: 1.0,
            }),
            ..SampleProvenance::default()
        };
        let whole = provenance(&[1.0, -1.0, 1.0]);
        let read = episode(&whole).unwrap();
        assert_eq!((read.trajectory, read.step), ("t", 2));
        assert!((read.votes.unwrap() - 1.0 / 3.0).abs() < 1e-12);
        let unjudged = provenance(&[]);
        assert_eq!(episode(&unjudged).unwrap().votes, None);
        assert_eq!(episode(&provenance(&[f64::NAN])), None);
        assert_eq!(episode(&SampleProvenance::default()), None);
        let mut live = sample(1, 1.0);
        assert!(missing_input(Estimator::Step, &live).is_some());
        assert_eq!(missing_input(Estimator::Group, &live), None);
        live.provenance = whole;
        assert_eq!(missing_input(Estimator::Step, &live), None);
        // A judge that gave no vote did not vote 0.
        live.provenance = unjudged;
        assert_eq!(missing_input(Estimator::Step, &live), None);
        live.provenance.episode.as_mut().unwrap().judged = true;
        let missing = missing_input(Estimator::Step, &live).unwrap();
        assert!(missing.contains("not a vote of 0"), "{missing}");
        assert_eq!(missing_input(Estimator::Group, &live), None);
    }

    #[test]
    fn an_overlong_reply_is_penalized() {
        let overlong = OverlongPenalty {
            longest: 2,
            buffer: 1,
            penalty: 0.5,
        };
        let sample = sample(1, 1.0);
        assert_eq!(shape_reward(&sample, 1.0, Some(&overlong)).reward, 0.5);
        assert_eq!(shape_reward(&sample, 1.0, None).reward, 1.0);
    }

    #[test]
    fn whitening_skips_samples_without_a_reward() {
        let mut batch = [chosen(1, Some(1.0)), chosen(2, None), chosen(3, Some(3.0))];
        whiten_batch(&mut batch, |_| true);
        assert_eq!(
            (batch[1].advantage, &batch[1].token_advantages),
            (None, &None)
        );
        assert!(
            (batch[0].advantage.unwrap() + 1.0).abs() < 1e-6,
            "{batch:?}"
        );
        assert!(
            (batch[2].advantage.unwrap() - 1.0).abs() < 1e-6,
            "{batch:?}"
        );
    }

    #[test]
    fn forced_tokens_are_neither_whitened_nor_penalized() {
        let with_forced = |forced: &[u32], values: &[f32]| {
            let mut one = chosen(1, Some(1.0));
            one.sample.forced = forced.to_vec();
            one.token_advantages = Some(values.to_vec());
            one
        };
        let mut batch = [
            with_forced(&[1], &[1.0, 50.0]),
            with_forced(&[], &[3.0, 2.0]),
        ];
        whiten_batch(&mut batch, |_| true);
        let deviation = (2.0f32 / 3.0).sqrt();
        let first = batch[0].token_advantages.clone().unwrap();
        assert!((first[0] + 1.0 / deviation).abs() < 1e-6 && first[1] == 0.0);
        assert!((batch[0].advantage.unwrap() + f64::from(1.0 / deviation)).abs() < 1e-6);

        let options = TrainingOptions {
            estimator: Estimator::ReinforcePlusPlus,
            advantage: AdvantageOptions {
                gamma: Some(0.5),
                reward_kl_coef: Some(0.1),
                whiten: Some(false),
                ..AdvantageOptions::default()
            },
            ..TrainingOptions::default()
        };
        let mut one = chosen(1, Some(1.0));
        one.sample.forced = vec![1];
        let found = batch_token_advantages(&[one], &[vec![-2.0, -0.5]], &options);
        let tokens = found[0].clone().unwrap();
        assert!((tokens[1] - 1.0).abs() < 1e-6 && (tokens[0] - 0.4).abs() < 1e-6);
    }

    #[test]
    fn reinforce_plus_plus_penalizes_the_kl_of_each_token() {
        let options = TrainingOptions {
            estimator: Estimator::ReinforcePlusPlus,
            advantage: AdvantageOptions {
                gamma: Some(0.5),
                reward_kl_coef: Some(0.1),
                whiten: Some(false),
                ..AdvantageOptions::default()
            },
            ..TrainingOptions::default()
        };
        let mut one = chosen(1, Some(1.0));
        one.sample.full_logprobs = vec![-1.0, -1.0];
        let batch = [one, chosen(2, None)];
        let reference = [vec![-2.0, -0.5], vec![-1.0, -1.0]];
        let found = batch_token_advantages(&batch, &reference, &options);
        // Token rewards are -0.1 * 1 and 1 - 0.1 * -0.5.
        let tokens = found[0].clone().unwrap();
        assert!(
            (tokens[1] - 1.05).abs() < 1e-6 && (tokens[0] - 0.425).abs() < 1e-6,
            "{tokens:?}"
        );
        assert_eq!(found[1], None);
        let other = TrainingOptions::default();
        assert_eq!(
            batch_token_advantages(&batch, &reference, &other),
            [Some(vec![1.0; 2]), None]
        );
    }
}
