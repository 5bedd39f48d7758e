//! A recorded sample as the estimators see it, and what is done to advantages once a batch is chosen.

use clawhost_journal::SampleRecord;
use serde_json::Value;

use crate::advantage::{
    Episode, Estimator, Overlong, Rewarded, discounted, mean_of, penalised, whiten,
};
use crate::batch::Chosen;
use crate::forced::{self, kept, spread};
use crate::loss::Divergence;
use crate::options::TrainingOptions;

/// Field of a sample's provenance that says where it stands in an episode: an object with `trajectory` (text),
/// `step` (from 0) and `votes` (numbers, at least one).
const EPISODE: &str = "episode";

/// A sample with the reward that counts: the judged one, less what an overlong reply pays.
pub(crate) fn rewarded<'a>(
    sample: &'a SampleRecord,
    reward: f32,
    overlong: Option<&Overlong>,
) -> Rewarded<'a> {
    let tokens = sample.token_ids.len();
    Rewarded {
        reward: f64::from(reward) + overlong.map_or(0.0, |overlong| overlong.shaping(tokens)),
        tokens,
        group: &sample.group,
        baseline_key: &sample.baseline_key,
        episode: episode(&sample.provenance),
    }
}

/// Where a sample stands in an episode; none where nothing or no vote is said about it.
fn episode(provenance: &Value) -> Option<Episode<'_>> {
    let said = provenance.get(EPISODE)?;
    let votes: Option<Vec<f64>> = said
        .get("votes")?
        .as_array()?
        .iter()
        .map(|vote| vote.as_f64().filter(|vote| vote.is_finite()))
        .collect();
    let votes = votes.filter(|votes| !votes.is_empty())?;
    #[allow(clippy::cast_precision_loss, reason = "a step has a few votes")]
    let mean = votes.iter().sum::<f64>() / votes.len() as f64;
    Some(Episode {
        trajectory: said.get("trajectory")?.as_str()?,
        step: u32::try_from(said.get("step")?.as_u64()?).ok()?,
        votes: mean,
    })
}

/// Why a sample cannot be estimated by this estimator, if it cannot.
pub(crate) fn unfit(estimator: Estimator, sample: &SampleRecord) -> Option<&'static str> {
    let lacks = estimator == Estimator::Step
        && sample.reward.is_some()
        && episode(&sample.provenance).is_none();
    lacks.then_some(
        "training.estimator = \"step\" needs its trajectory, step and votes, which come from environments",
    )
}

impl TrainingOptions {
    /// A sample as the estimator sees it when it has this reward: shaped by `training.advantage.overlong_length`.
    pub fn rewarded<'a>(&self, sample: &'a SampleRecord, reward: f32) -> Rewarded<'a> {
        rewarded(sample, reward, self.advantage.overlong().as_ref())
    }

    /// Whether what rewards are worth is whitened as soon as a batch is chosen; for `reinforce++` that waits for the
    /// reference.
    pub(crate) fn whitens_rewards(&self) -> bool {
        self.estimator != Estimator::ReinforcePlusPlus && self.advantage.whitens(self.estimator)
    }
}

/// Which tokens of some samples the policy chose.
fn masks(chosen: &[Chosen], places: &[usize]) -> Vec<Vec<bool>> {
    let of = |at: &usize| chosen.get(*at).map(|one| forced::mask(&one.sample));
    places.iter().map(|at| of(at).unwrap_or_default()).collect()
}

/// Whitens over the tokens that train; the others become 0.
fn whiten_trained(rows: &mut [Vec<f32>], masks: &[Vec<bool>]) {
    let pairs = rows.iter().zip(masks);
    let mut trained: Vec<Vec<f32>> = pairs.map(|(row, mask)| kept(row, mask)).collect();
    whiten(&mut trained);
    for ((row, mask), trained) in rows.iter_mut().zip(masks).zip(trained) {
        *row = spread(trained, mask, 0.0);
    }
}

/// Whitens what the rewards of a chosen batch are worth, over all its tokens.
pub(crate) fn whitened(chosen: &mut [Chosen]) {
    let (places, mut rows): (Vec<usize>, Vec<Vec<f32>>) = chosen
        .iter()
        .enumerate()
        .filter_map(|(at, chosen)| Some((at, chosen.per_token()?)))
        .unzip();
    let masks = masks(chosen, &places);
    whiten_trained(&mut rows, &masks);
    for ((at, row), mask) in places.into_iter().zip(rows).zip(masks) {
        if let Some(chosen) = chosen.get_mut(at) {
            chosen.advantage = Some(mean_of(&kept(&row, &mask)));
            chosen.token_advantages = Some(row);
        }
    }
}

/// What the reward of each sample, if it has one, is worth for each of its tokens: as it was estimated, or for
/// `reinforce++` with what the token pays for leaving the reference.
pub(crate) fn worths(
    chosen: &[Chosen],
    reference: &[Vec<f32>],
    options: &TrainingOptions,
) -> Vec<Option<Vec<f32>>> {
    let mut worths: Vec<Option<Vec<f32>>> = chosen.iter().map(Chosen::per_token).collect();
    if options.estimator != Estimator::ReinforcePlusPlus {
        return worths;
    }
    let advantage = &options.advantage;
    let discount = options.estimation().discount;
    let (places, mut rows): (Vec<usize>, Vec<Vec<f32>>) = chosen
        .iter()
        .zip(reference)
        .enumerate()
        // What a component said of single tokens stays as it is.
        .filter(|(_, (chosen, _))| chosen.token_advantages.is_none())
        .filter_map(|(at, (chosen, reference))| {
            // How far the policy that sampled the reply had left the reference.
            let mut divergence: Vec<f32> = chosen
                .sample
                .full_logprobs
                .iter()
                .zip(reference)
                .map(|(&logprob, &reference)| Divergence::K1.token(logprob, reference).value)
                .collect();
            // Nobody pays for what a constraint decided.
            forced::set(&mut divergence, &chosen.sample.forced, 1, 0.0);
            #[allow(
                clippy::cast_possible_truncation,
                reason = "losses are computed in f32, as the parameters are"
            )]
            let reward = chosen.advantage? as f32;
            let rewards = penalised(reward, &divergence, advantage.reward_kl());
            Some((at, discounted(&rewards, discount)))
        })
        .unzip();
    if advantage.whitens(options.estimator) {
        whiten_trained(&mut rows, &masks(chosen, &places));
    }
    for (at, row) in places.into_iter().zip(rows) {
        if let Some(worth) = worths.get_mut(at) {
            *worth = Some(row);
        }
    }
    worths
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::options::AdvantageOptions;
    use crate::tests::sample;

    fn chosen(id: i64, advantage: Option<f64>) -> Chosen {
        Chosen {
            sample: sample(id, 1.0),
            advantage,
            token_advantages: None,
            hinted: Vec::new(),
            staleness: 0,
        }
    }

    #[test]
    fn an_episode_is_read_whole_or_not_at_all() {
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
        assert!(unfit(Estimator::Step, &live).is_some());
        assert_eq!(unfit(Estimator::Group, &live), None);
        live.provenance = whole;
        assert_eq!(unfit(Estimator::Step, &live), None);
    }

    #[test]
    fn an_overlong_reply_pays() {
        let overlong = Overlong {
            longest: 2,
            buffer: 1,
            penalty: 0.5,
        };
        let sample = sample(1, 1.0);
        assert_eq!(rewarded(&sample, 1.0, Some(&overlong)).reward, 0.5);
        assert_eq!(rewarded(&sample, 1.0, None).reward, 1.0);
    }

    #[test]
    fn whitening_leaves_what_has_no_reward_alone() {
        let mut batch = [chosen(1, Some(1.0)), chosen(2, None), chosen(3, Some(3.0))];
        whitened(&mut batch);
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
    fn what_was_forced_is_neither_whitened_nor_paid_for() {
        let of = |forced: &[u32], values: &[f32]| {
            let mut one = chosen(1, Some(1.0));
            one.sample.forced = forced.to_vec();
            one.token_advantages = Some(values.to_vec());
            one
        };
        let mut batch = [of(&[1], &[1.0, 50.0]), of(&[], &[3.0, 2.0])];
        whitened(&mut batch);
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
        let found = worths(&[one], &[vec![-2.0, -0.5]], &options);
        let tokens = found[0].clone().unwrap();
        assert!((tokens[1] - 1.0).abs() < 1e-6 && (tokens[0] - 0.4).abs() < 1e-6);
    }

    #[test]
    fn tokens_pay_for_what_the_policy_left_the_reference_by() {
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
        let found = worths(&batch, &reference, &options);
        // Tokens earn -0.1 * 1 and 1 - 0.1 * -0.5.
        let tokens = found[0].clone().unwrap();
        assert!(
            (tokens[1] - 1.05).abs() < 1e-6 && (tokens[0] - 0.425).abs() < 1e-6,
            "{tokens:?}"
        );
        assert_eq!(found[1], None);
        let other = TrainingOptions::default();
        assert_eq!(
            worths(&batch, &reference, &other),
            [Some(vec![1.0; 2]), None]
        );
    }
}
