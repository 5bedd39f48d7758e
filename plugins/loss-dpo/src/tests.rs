//! Tests against numbers computed by hand and against finite differences. The tests of `host/training` compare the component
//! with the native loss.

use super::*;
use clawhost_sdk::pair_loss::Reply;

fn reply(logprob: &[f32], ref_logprob: &[f32], mask: &[u8]) -> Reply {
    Reply {
        tokens: vec![1; mask.len()],
        mask: mask.to_vec(),
        logprob: logprob.to_vec(),
        ref_logprob: ref_logprob.to_vec(),
    }
}

/// log-probs -12 and -22, -15 and -20 under the base model: a margin of 5 nats. The masked token does not count.
fn pair() -> Pair {
    Pair {
        chosen: reply(
            &[-3.0, -2.0, -9.0, -4.0, -3.0],
            &[-4.0, -3.0, -1.0, -4.0, -4.0],
            &[1, 1, 0, 1, 1],
        ),
        rejected: reply(&[-10.0, -12.0], &[-8.0, -12.0], &[1, 1]),
    }
}

#[test]
fn losses_match_numbers_computed_by_hand() {
    let (gradient, margin) = Dpo::default().pair(&pair()).unwrap();
    assert_eq!(margin, 5.0);
    // log(1 + exp(-0.5)) and the mean NLL of 3; -0.1 sigmoid(-0.5) = -0.0377540668798145, and 0.2 / 4.
    assert!((gradient.loss - (0.474_076_984_180_106_7 + 0.6)).abs() < 1e-12);
    let slope = 0.037_754_066_879_814_5;
    assert_eq!(gradient.d_chosen[0], (-slope - 0.05) as f32);
    assert_eq!(gradient.d_chosen[2], 0.0);
    assert_eq!(gradient.d_rejected, [slope as f32; 2]);

    let smooth = Dpo {
        sft_coef: 0.0,
        label_smoothing: 0.25,
        ..Dpo::default()
    };
    // 0.75 log(1 + exp(-0.5)) + 0.25 log(1 + exp(0.5)).
    let (gradient, _) = smooth.pair(&pair()).unwrap();
    assert!(
        (gradient.loss - (0.75 * 0.474_076_984_180_106_7 + 0.25 * 0.974_076_984_180_106_7)).abs()
            < 1e-12
    );
}

#[test]
fn partials_match_finite_differences() {
    let h = 1.0 / 1024.0;
    for dpo in [
        Dpo::default(),
        Dpo {
            beta: 1.0,
            sft_coef: 0.5,
            label_smoothing: 0.1,
        },
    ] {
        let (gradient, _) = dpo.pair(&pair()).unwrap();
        let loss = |change: &dyn Fn(&mut Pair)| {
            let mut pair = pair();
            change(&mut pair);
            dpo.pair(&pair).unwrap().0.loss
        };
        for at in 0..5 {
            let up = loss(&|pair| pair.chosen.logprob[at] += h);
            let down = loss(&|pair| pair.chosen.logprob[at] -= h);
            let slope = (up - down) / (2.0 * f64::from(h));
            assert!(
                (slope - f64::from(gradient.d_chosen[at])).abs() < 1e-5,
                "{at}: {slope}"
            );
        }
        let up = loss(&|pair| pair.rejected.logprob[1] += h);
        let down = loss(&|pair| pair.rejected.logprob[1] -= h);
        let slope = (up - down) / (2.0 * f64::from(h));
        assert!(
            (slope - f64::from(gradient.d_rejected[1])).abs() < 1e-5,
            "{slope}"
        );
    }
}

#[test]
fn a_pair_far_from_the_reference_has_a_finite_loss() {
    let dpo = Dpo {
        sft_coef: 0.0,
        ..Dpo::default()
    };
    let far = |by: f32| {
        let mut pair = pair();
        pair.rejected.logprob[0] = by;
        let (gradient, _) = dpo.pair(&pair).unwrap();
        (gradient.loss, gradient.d_chosen[0])
    };
    assert_eq!(far(-1e6), (0.0, 0.0));
    let (loss, slope) = far(1e6);
    assert!(loss.is_finite());
    assert_eq!(slope, -0.1);
}

#[test]
fn a_batch_has_one_gradient_per_pair_and_metrics() {
    let batch = Batch {
        pairs: vec![
            pair(),
            Pair {
                chosen: pair().rejected,
                rejected: pair().chosen,
            },
        ],
        step: 1,
    };
    let all = evaluate(&batch, &Dpo::default()).unwrap();
    assert_eq!(all.gradients.len(), 2);
    let values: Vec<f64> = all.metrics.iter().map(|metric| metric.value).collect();
    assert_eq!(values, [0.0, 0.5]);
    let mut broken = batch;
    broken.pairs[1].chosen.logprob.pop();
    let error = evaluate(&broken, &Dpo::default()).unwrap_err();
    assert_eq!(
        error,
        PluginError::InvalidInput("logprob has 1 numbers, expected 2".to_owned())
    );
}

#[test]
fn settings_are_parsed() {
    let settings = Settings::given(&[("beta", "0.5"), ("label_smoothing", "0.1")]);
    let dpo = Dpo::of(&settings).unwrap();
    assert_eq!(
        (dpo.beta, dpo.sft_coef, dpo.label_smoothing),
        (0.5, 0.2, 0.1)
    );
    assert_eq!(Dpo::of(&Settings::of_plugin()).unwrap(), Dpo::default());
    assert!(Dpo::of(&Settings::given(&[("beta", "0")])).is_err());
}
