//! Reward shaping and advantage post-processing: overlong penalty, episode votes, whitening, and the KL penalty of
//! REINFORCE++.

use clawhost_journal::SampleRecord;
use serde_json::Value;

use crate::advantage::{
    EpisodePosition, Estimator, OverlongPenalty, RewardedSample, discounted_returns,
    kl_penalized_rewards, mean_token_advantage, whiten,
};
use crate::batch::BatchSample;
use crate::forced_tokens::{self, scatter_trained, select_trained};
use crate::loss::KlEstimator;
use crate::options::TrainingOptions;

/// Field of a sample's provenance with its position in an episode: an object with `trajectory` (string), `step` (from 0)
/// and `votes` (numbers, at least one).
const EPISODE: &str = "episode";

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

/// The position of a sample in an episode; none if it is absent or incomplete, or has no votes.
fn episode(provenance: &Value) -> Option<EpisodePosition<'_>> {
    let fields = provenance.get(EPISODE)?;
    let votes: Option<Vec<f64>> = fields
        .get("votes")?
        .as_array()?
        .iter()
        .map(|vote| vote.as_f64().filter(|vote| vote.is_finite()))
        .collect();
    let votes = votes.filter(|votes| !votes.is_empty())?;
    #[allow(clippy::cast_precision_loss, reason = "a step has a few votes")]
    let mean = votes.iter().sum::<f64>() / votes.len() as f64;
    Some(EpisodePosition {
        trajectory: fields.get("trajectory")?.as_str()?,
        step: u32::try_from(fields.get("step")?.as_u64()?).ok()?,
        votes: mean,
    })
}

/// What this estimator needs and the sample lacks; none if it lacks nothing.
pub(crate) fn missing_input(estimator: Estimator, sample: &SampleRecord) -> Option<&'static str> {
    let is_missing = estimator == Estimator::Step
        && sample.reward.is_some()
        && episode(&sample.provenance).is_none();
    is_missing.then_some(
        "training.estimator = \"step\" needs its trajectory, step and votes, which come from environments",
    )
}

impl TrainingOptions {
    /// The estimator's input for a sample with this reward, with the penalty of `training.advantage.overlong_length`.
    pub fn shaped_sample<'a>(&self, sample: &'a SampleRecord, reward: f32) -> RewardedSample<'a> {
        shape_reward(sample, reward, self.advantage.overlong().as_ref())
    }

    /// Whether advantages are whitened when the batch is built. `reinforce++` whitens later, because its advantages need
    /// the reference log-probs.
    pub(crate) fn whitens_batch(&self) -> bool {
        self.estimator != Estimator::ReinforcePlusPlus && self.advantage.whitens(self.estimator)
    }
}

/// The masks of tokens that no grammar forced, of the samples at `indices`.
fn masks(chosen: &[BatchSample], indices: &[usize]) -> Vec<Vec<bool>> {
    let mask = |index: &usize| {
        chosen
            .get(*index)
            .map(|one| forced_tokens::train_mask(&one.sample))
    };
    indices
        .iter()
        .map(|index| mask(index).unwrap_or_default())
        .collect()
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

/// Whitens the advantages of a batch over all its trained tokens.
pub(crate) fn whiten_batch(chosen: &mut [BatchSample]) {
    let (indices, mut rows): (Vec<usize>, Vec<Vec<f32>>) = chosen
        .iter()
        .enumerate()
        .filter_map(|(index, chosen)| Some((index, chosen.per_token()?)))
        .unzip();
    let masks = masks(chosen, &indices);
    whiten_trained(&mut rows, &masks);
    for ((index, row), mask) in indices.into_iter().zip(rows).zip(masks) {
        if let Some(chosen) = chosen.get_mut(index) {
            chosen.advantage = Some(mean_token_advantage(&select_trained(&row, &mask)));
            chosen.token_advantages = Some(row);
        }
    }
}

/// The token advantages of each sample with a reward: the estimated ones, or for `reinforce++` the discounted returns of
/// the reward less the KL penalty of each token.
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
    let discount = options.estimator_config().discount;
    let (indices, mut rows): (Vec<usize>, Vec<Vec<f32>>) = chosen
        .iter()
        .zip(reference)
        .enumerate()
        // Keep token advantages from a component.
        .filter(|(_, (chosen, _))| chosen.token_advantages.is_none())
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
            let rewards = kl_penalized_rewards(reward, &kl, advantage.reward_kl());
            Some((index, discounted_returns(&rewards, discount)))
        })
        .unzip();
    if advantage.whitens(options.estimator) {
        whiten_trained(&mut rows, &masks(chosen, &indices));
    }
    for (index, row) in indices.into_iter().zip(rows) {
        if let Some(slot) = advantages.get_mut(index) {
            *slot = Some(row);
        }
    }
    advantages
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::options::AdvantageOptions;
    use crate::tests::sample;

    fn chosen(id: i64, advantage: Option<f64>) -> BatchSample {
        BatchSample {
            sample: sample(id, 1.0),
            advantage,
            token_advantages: None,
            hinted: Vec::new(),
            staleness: 0,
        }
    }

    #[test]
    fn an_incomplete_episode_is_ignored() {
        let whole = json!({"episode": {"trajectory": "t", "step": 2, "votes": [1, -1, 1]}});
        let read = episode(&whole).unwrap();
        assert_eq!((read.trajectory, read.step), ("t", 2));
        assert!((read.votes - 1.0 / 3.0).abs() < 1e-12);
        for part in [
            json!({}),
            json!({"episode": {"trajectory": "t", "step": 2, "votes": []}}),
            json!({"episode": {"trajectory": "t", "step": -1, "votes": [1]}}),
            json!({"episode": {"trajectory": "t", "step": 1, "votes": [1, null]}}),
            json!({"episode": {"step": 1, "votes": [1]}}),
        ] {
            assert_eq!(episode(&part), None, "{part}");
        }
        let mut live = sample(1, 1.0);
        assert!(missing_input(Estimator::Step, &live).is_some());
        assert_eq!(missing_input(Estimator::Group, &live), None);
        live.provenance = whole;
        assert_eq!(missing_input(Estimator::Step, &live), None);
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
        whiten_batch(&mut batch);
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
        whiten_batch(&mut batch);
        let deviation = (2.0f32 / 3.0).sqrt();
        let first = batch[0].token_advantages.clone().unwrap();
        assert!((first[0] + 1.0 / deviation).abs() < 1e-6 && first[1] == 0.0);
        assert!((batch[0].advantage.unwrap() + f64::from(1.0 / deviation)).abs() < 1e-6);

        let options = TrainingOptions {
            estimator: Estimator::ReinforcePlusPlus,
            advantage: AdvantageOptions {
                discount: Some(0.5),
                reward_kl: Some(0.1),
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
                discount: Some(0.5),
                reward_kl: Some(0.1),
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
