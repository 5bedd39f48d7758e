//! Advantages of single tokens from the rewards that come after them.
//!
//! With V the value before a token, r what the token itself earned and nothing after the last token:
//! delta_t = r_t + g V_{t+1} − V_t, A_t = delta_t + g l A_{t+1}. Discounted returns are the same without values
//! and with l = 1, so there is one implementation.

use crate::real::Real;

/// Generalised advantage estimation: `rewards` and `values` have one entry per token. The return of a token is its
/// advantage plus its value.
pub fn gae<R: Real>(rewards: &[R], values: &[R], discount: f64, lambda: f64) -> Vec<R> {
    let (discount, kept) = (R::of(discount), R::of(discount * lambda));
    let mut advantages = Vec::with_capacity(rewards.len());
    let (mut next_value, mut next) = (R::ZERO, R::ZERO);
    for (&reward, &value) in rewards.iter().zip(values).rev() {
        next = reward + discount * next_value - value + kept * next;
        next_value = value;
        advantages.push(next);
    }
    advantages.reverse();
    advantages
}

/// What each token and those after it earn, later ones discounted.
pub fn discounted<R: Real>(rewards: &[R], discount: f64) -> Vec<R> {
    gae(rewards, &vec![R::ZERO; rewards.len()], discount, 1.0)
}

/// What the tokens of a reply earn when it has a reward at its end and each token pays for its divergence from the
/// reference (REINFORCE++).
pub fn penalised<R: Real>(reward: R, divergence: &[R], coefficient: f64) -> Vec<R> {
    let coefficient = R::of(coefficient);
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
        fn a_constant_value_and_no_discount_fade_towards_the_start(
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
        fn with_lambda_one_an_advantage_is_the_return_less_the_value(
            tokens in prop::collection::vec((-1.0..1.0f64, -1.0..1.0f64), 1..9), discount in 0.0..1.0f64,
        ) {
            let (rewards, values): (Vec<f64>, Vec<f64>) = tokens.into_iter().unzip();
            let advantages = gae(&rewards, &values, discount, 1.0);
            for ((advantage, ret), value) in advantages.iter().zip(discounted(&rewards, discount)).zip(&values) {
                prop_assert!((advantage - (ret - value)).abs() < 1e-9);
            }
        }
    }
}
