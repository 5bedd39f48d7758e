//! Golden test of two AdamW steps.

use clawhost_training::Float;
use clawhost_training::optimizer::{AdamW, OptimizerState, clip_factor, global_norm};

use super::{all_close, case, close, numbers, rows};

pub(crate) fn adamw<R: Float>() {
    let case = case("17", "adamw_2_steps");
    let hyper = |key: &str| case["hyper"][key].as_f64().unwrap();
    let optimizer = AdamW {
        beta1: hyper("beta1"),
        beta2: hyper("beta2"),
        epsilon: hyper("eps"),
        weight_decay: hyper("wd"),
    };
    let mut theta: Vec<R> = numbers(&case["inputs"]["theta"]);
    let mut optimizer_state = OptimizerState::zeros([theta.len()]);
    for (step, gradient) in rows::<R>(&case["inputs"]["grads"]).into_iter().enumerate() {
        let gradients = [gradient];
        let norm = global_norm(&gradients);
        close::<R>(
            "norm",
            norm,
            case["expected"]["grad_norms"][step].as_f64().unwrap(),
        );
        optimizer
            .update(
                hyper("lr"),
                clip_factor(norm, hyper("max_norm")),
                &mut optimizer_state,
                &mut [theta.as_mut_slice().into()],
                &gradients,
                1,
            )
            .unwrap();
        all_close("theta", &theta, &case["expected"]["theta_after"][step]);
    }
    case.done::<R>();
}
