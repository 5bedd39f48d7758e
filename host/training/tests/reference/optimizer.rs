//! Golden test of two AdamW steps, in f32 by the CPU backend and in f64 by the plain reference that the backend suite
//! compares every backend with.

use clawhost_cpu::Gradients;
use clawhost_cpu::optimizer::update_adamw;
use clawhost_engine::testing::training::PlainAdamW;
use clawhost_engine::{AdamW, AdamWState, OptimizerStep};
use clawhost_training::Float;
use clawhost_training::optimizer::clip_factor;

use super::{all_close, case, close, numbers, rows};

pub(crate) fn adamw<R: Float>() {
    let case = case("17", "adamw_2_steps");
    let hyper = |key: &str| case["hyper"][key].as_f64().unwrap();
    let adamw = AdamW {
        beta1: hyper("beta1"),
        beta2: hyper("beta2"),
        epsilon: hyper("eps"),
        weight_decay: hyper("wd"),
    };
    let step = |norm: f64| OptimizerStep {
        adamw,
        learning_rate: hyper("lr"),
        gradient_scale: clip_factor(norm, hyper("max_norm")),
    };
    let mut theta: Vec<f32> = numbers(&case["inputs"]["theta"]);
    let mut state = AdamWState::zeros([theta.len()]);
    let mut plain_theta = [(true, numbers::<f64>(&case["inputs"]["theta"]))];
    let mut plain = PlainAdamW::default();
    let gradients = rows::<f32>(&case["inputs"]["grads"]);
    let plain_gradients = rows::<f64>(&case["inputs"]["grads"]);
    for (number, (gradient, plain_gradient)) in
        gradients.into_iter().zip(plain_gradients).enumerate()
    {
        let expected = case["expected"]["grad_norms"][number].as_f64().unwrap();
        let gradients = Gradients {
            tensors: vec![gradient],
        };
        close::<f32>("norm", gradients.norm(), expected);
        update_adamw(
            step(gradients.norm()),
            &mut state,
            &mut [theta.as_mut_slice().into()],
            &gradients.tensors,
            1,
        )
        .unwrap();
        plain.step(step(expected), &mut plain_theta, &[plain_gradient]);
        let expected = &case["expected"]["theta_after"][number];
        all_close("theta", &theta, expected);
        all_close("plain theta", &plain_theta[0].1, expected);
    }
    case.done::<R>();
}
