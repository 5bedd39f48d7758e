//! Token advantages from later rewards: GAE and discounted returns.
//!
//! With V_t the value before token t, r_t its reward, discount g and lambda l (V and A are 0 after the last token):
//! delta_t = r_t + g V_{t+1} − V_t, A_t = delta_t + g l A_{t+1}. Discounted returns are GAE with V = 0 and l = 1, so
//! there is one implementation.

use crate::float::Float;

/// Generalized advantage estimation; `rewards` and `values` have one entry per token. A token's return is its advantage plus
/// its value.
pub fn gae<R: Float>(rewards: &[R], values: &[R], discount: f64, lambda: f64) -> Vec<R> {
    let (discount, decay) = (R::from_f64(discount), R::from_f64(discount * lambda));
    let mut advantages = Vec::with_capacity(rewards.len());
    let (mut next_value, mut next) = (R::ZERO, R::ZERO);
    for (&reward, &value) in rewards.iter().zip(values).rev() {
        next = reward + discount * next_value - value + decay * next;
        next_value = value;
        advantages.push(next);
    }
    advantages.reverse();
    advantages
}

/// Discounted return of each token.
pub fn discounted_returns<R: Float>(rewards: &[R], discount: f64) -> Vec<R> {
    gae(rewards, &vec![R::ZERO; rewards.len()], discount, 1.0)
}

/// Token rewards of REINFORCE++: minus `coefficient` times the KL estimate of each token, plus the reply's reward at the last
/// token.
pub fn kl_penalized_rewards<R: Float>(reward: R, divergence: &[R], coefficient: f64) -> Vec<R> {
    let coefficient = R::from_f64(coefficient);
    let mut rewards: Vec<R> = divergence.iter().map(|&kl| -(coefficient * kl)).collect();
    if let Some(last) = rewards.last_mut() {
        *last += reward;
    }
    rewards
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn gae_with_a_constant_value_decays_by_lambda(
            reward in -1.0..1.0f64, value in -1.0..1.0f64, length in 1..9usize, lambda in 0.0..1.0f64,
        ) {
            let mut rewards = vec![0.0; length];
            rewards[length - 1] = reward;
            let out = gae(&rewards, &vec![value; length], 1.0, lambda);
            for (t, advantage) in out.iter().enumerate() {
                let expected = lambda.powi((length - 1 - t) as i32) * (reward - value);
                prop_assert!((advantage - expected).abs() < 1e-9, "{out:?}");
            }
        }

        #[test]
        fn gae_with_lambda_one_is_the_return_less_the_value(
            tokens in prop::collection::vec((-1.0..1.0f64, -1.0..1.0f64), 1..9), discount in 0.0..1.0f64,
        ) {
            let (rewards, values): (Vec<f64>, Vec<f64>) = tokens.into_iter().unzip();
            let advantages = gae(&rewards, &values, discount, 1.0);
            for ((advantage, ret), value) in advantages.iter().zip(discounted_returns(&rewards, discount)).zip(&values) {
                prop_assert!((advantage - (ret - value)).abs() < 1e-9);
            }
        }
    }
}
