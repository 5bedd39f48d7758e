//! Golden tests of advantage estimators: groups and batches, whitening, overlong penalty, dynamic sampling, returns.

use clawhost_training::Float;
use clawhost_training::advantage::{
    Advantage, Baselines, Estimator, EstimatorConfig, OverlongPenalty, RewardedSample, Scale,
    discounted_returns, gae, group_relative, kl_penalized_rewards, leave_one_out, whiten,
};
use serde_json::Value;

use super::{all_close, case, cases, close, counts, masks, numbers, rows};

fn groups(case: &Value) -> Vec<u64> {
    case["inputs"]["group"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g.as_u64().unwrap())
        .collect()
}

fn values<R: Float>(estimates: &[Advantage<R>]) -> Vec<R> {
    estimates.iter().map(|e| e.value()).collect()
}

/// The advantages of a configured estimator, which computes in f64.
fn estimate(estimator: Estimator, rewards: &[f64], groups: &[String]) -> Vec<f64> {
    let samples: Vec<_> = rewards
        .iter()
        .zip(groups)
        .map(|(&reward, group)| RewardedSample {
            reward,
            group,
            ..RewardedSample::default()
        })
        .collect();
    let estimator_config = EstimatorConfig::from(estimator);
    values(&estimator_config.estimate(&samples, &Baselines::new(0.5, 0.0)))
}

pub(crate) fn groups_and_batches<R: Float>() {
    for case in cases("01") {
        let id = case["id"].as_str().unwrap();
        let expected = &case["expected"]["A"];
        if id == "token_whitening_masked" {
            continue;
        }
        let rewards: Vec<R> = numbers(&case["inputs"]["rewards"]);
        let deviation = || Scale::Deviation {
            ddof: case["hyper"]["ddof"].as_u64().unwrap() as usize,
            epsilon: case["hyper"]["eps"].as_f64().unwrap(),
        };
        let one_group = vec![0; rewards.len()];
        let got = match id {
            "grpo_group_ddof1_eps1e-6"
            | "grpo_group_ddof1_eps1e-4_trl"
            | "grpo_group_ddof0_eps1e-8"
            | "zero_variance_group" => group_relative(&rewards, &groups(&case), deviation()),
            "dr_grpo_mean_only" | "singleton_groups_mean_subtracted" => {
                group_relative(&rewards, &groups(&case), Scale::None)
            }
            "rloo" => leave_one_out(&rewards, &groups(&case)),
            "reinforce_batch_baseline" => group_relative(&rewards, &one_group, Scale::None),
            "reinforce_batch_baseline_std_ddof0_eps1e-8" | "batch_all_equal" => {
                group_relative(&rewards, &one_group, deviation())
            }
            "maxrl_mean_normalised" => group_relative(&rewards, &groups(&case), Scale::Mean),
            "singleton_groups_verl" => {
                // verl uses the reward of a singleton group as its advantage; here it has no signal.
                let got = group_relative(&rewards, &groups(&case), Scale::SAMPLE);
                assert_eq!(got, vec![Advantage::SingletonGroup; 3]);
                case.done::<R>();
                continue;
            }
            "binary_raw_broadcast" => {
                let samples: Vec<f64> = rewards.iter().map(|r| r.to_f64()).collect();
                let got = estimate(
                    Estimator::Raw,
                    &samples,
                    &vec![String::new(); samples.len()],
                );
                for (value, row) in got.iter().zip(rows::<f64>(expected)) {
                    assert!(row.iter().all(|e| e == value), "{got:?}");
                }
                case.done::<R>();
                continue;
            }
            other => panic!("a case without a check: {other}"),
        };
        all_close(id, &values(&got), expected);
        let estimator = match id {
            "grpo_group_ddof1_eps1e-6" => Some(Estimator::Group),
            "dr_grpo_mean_only" => Some(Estimator::GroupMean),
            "rloo" => Some(Estimator::Rloo),
            "maxrl_mean_normalised" => Some(Estimator::MaxRl),
            "reinforce_batch_baseline" => Some(Estimator::Batch),
            "reinforce_batch_baseline_std_ddof0_eps1e-8" => Some(Estimator::BatchStd),
            _ => None,
        };
        if let Some(estimator) = estimator {
            let keys: Vec<String> = if case["inputs"]["group"].is_array() {
                groups(&case).iter().map(u64::to_string).collect()
            } else {
                vec![String::new(); rewards.len()]
            };
            let rewards: Vec<f64> = numbers(&case["inputs"]["rewards"]);
            all_close::<f64>(id, &estimate(estimator, &rewards, &keys), expected);
        }
        case.done::<R>();
    }
}

pub(crate) fn whitening<R: Float>() {
    let case = case("01", "token_whitening_masked");
    let lengths = counts(&masks(&case["inputs"]["mask"]));
    // The trainer has no padding, so it is removed.
    let mut advantages: Vec<Vec<R>> = rows(&case["inputs"]["A"]);
    for (row, &length) in advantages.iter_mut().zip(&lengths) {
        row.truncate(length);
    }
    whiten(&mut advantages);
    for (i, (row, &length)) in advantages.iter().zip(&lengths).enumerate() {
        let expected: Vec<f64> = numbers(&case["expected"]["A"][i]);
        for (got, expected) in row.iter().zip(&expected[..length]) {
            close::<R>("whitened", got.to_f64(), *expected);
        }
    }
    case.done::<R>();
}

pub(crate) fn overlong<R: Float>() {
    let case = case("07", "overlong");
    let inputs = &case["inputs"];
    let overlong = OverlongPenalty {
        longest: inputs["L_max"].as_u64().unwrap() as usize,
        buffer: inputs["buffer"].as_u64().unwrap() as usize,
        penalty: inputs["penalty"].as_f64().unwrap(),
    };
    let shaping: Vec<R> = numbers::<f64>(&inputs["len"])
        .into_iter()
        .map(|length| overlong.shaping(length as usize))
        .collect();
    all_close("overlong", &shaping, &case["expected"]["penalty"]);
    case.done::<R>();
}

/// Reward less the group mean (Dr. GRPO).
pub(crate) fn group_mean<R: Float>() {
    let case = case("09", "adv");
    let rewards: Vec<R> = numbers(&case["inputs"]["rewards"]);
    let got = group_relative(&rewards, &vec![(); rewards.len()], Scale::None);
    all_close("adv", &values(&got), &case["expected"]["A"]);
    case.done::<R>();
}

/// A group with equal rewards has no signal and is dropped.
pub(crate) fn dynamic_sampling<R: Float>() {
    let case = case("07", "dynamic_sampling");
    let groups: Vec<Vec<R>> = rows(&case["inputs"]["group_metrics"]);
    let kept: Vec<R> = groups
        .iter()
        .enumerate()
        .filter(|(_, rewards)| {
            let out = group_relative(rewards, &vec![(); rewards.len()], Scale::SAMPLE);
            out.iter().any(|one| matches!(one, Advantage::Value(_)))
        })
        .map(|(index, _)| R::from_f64(index as f64))
        .collect();
    all_close("kept", &kept, &case["expected"]["kept_group_index"]);
    case.done::<R>();
}

pub(crate) fn returns<R: Float>() {
    let of_values = case("13", "gae");
    let (inputs, hyper) = (&of_values["inputs"], &of_values["hyper"]);
    let (rewards, values): (Vec<Vec<R>>, Vec<Vec<R>>) =
        (rows(&inputs["rewards"]), rows(&inputs["values"]));
    let (discount, lambda) = (
        hyper["gamma"].as_f64().unwrap(),
        hyper["lambda"].as_f64().unwrap(),
    );
    for i in 0..rewards.len() {
        let advantages = gae(&rewards[i], &values[i], discount, lambda);
        all_close("gae", &advantages, &of_values["expected"]["advantages"][i]);
        let pairs = advantages.iter().zip(&values[i]);
        let returns: Vec<R> = pairs
            .map(|(advantage, value)| *advantage + *value)
            .collect();
        all_close("returns", &returns, &of_values["expected"]["returns"][i]);
    }
    of_values.done::<R>();
    let plus = case("13", "reinforce_pp");
    let input = |key: &str| plus["inputs"][key].as_f64().unwrap();
    let divergence: Vec<R> = numbers(&plus["inputs"]["kl"]);
    let rewards = kl_penalized_rewards(R::from_f64(input("reward")), &divergence, input("kl_coef"));
    let returns = discounted_returns(&rewards, input("gamma"));
    all_close("reinforce++", &returns, &plus["expected"]["returns"]);
    plus.done::<R>();
}

/// Number of rollouts that an asynchronous RL trainer admits. Here samples come from users and are checked for staleness
/// when a batch is built, so the formula exists only in this test.
fn capacity(count: impl Fn(&str) -> i64) -> i64 {
    let fresh = (count("max_staleness") + count("version") + 1) * count("consumer_batch");
    let room = count("max_concurrent") - count("running");
    room.min(fresh - (count("accepted") + count("running")))
}

pub(crate) fn rollout_admission<R: Float>() {
    for case in cases("19").into_iter().filter(|c| c["id"] == "staleness") {
        let found = capacity(|key| case["inputs"][key].as_i64().unwrap());
        close::<R>(
            "capacity",
            found as f64,
            case["expected"]["capacity"].as_f64().unwrap(),
        );
        case.done::<R>();
    }
}
