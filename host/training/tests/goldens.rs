//! Golden tests for advantages, losses, distillation, the optimizer and the language model head. The expected values were
//! generated in float64 by an independent implementation, with gradients checked against finite differences. f64 must match
//! to 1e-6 and f32 to 1e-5, both through the code that trains.
//!
//! | file | checked by |
//! |---|---|
//! | 01 and 09 advantages, 07 overlong and dynamic sampling, 13 returns, 19 staleness | `reference/advantages.rs` |
//! | 02 clip, 03 KL estimators, 04 importance weights, 08 aggregation | `reference/objective.rs` |
//! | 05 decoupled, 06 GSPO, 07 loss, 09 loss, 10 CISPO, 14 DPPO, 18 logits, 19 SAPO | `reference/surrogates.rs` |
//! | 11 gaps, 12 divergences over top-k tokens | `reference/distillation.rs` |
//! | 15 votes | `host/judging/src/votes.rs` (its parsing cases test another response format than ours) |
//! | 15 hints | `src/hints.rs` |
//! | 16 log-probs and entropies | `reference/engine.rs` |
//! | 17 AdamW | `reference/optimizer.rs`: f32 by the CPU backend, f64 by the reference of the backend suite |
//! | 17 merging | `host/cpu/src/merge.rs`, `host/model/src/lora/spec.rs` |
//!
//! `every_case_is_checked` fails if a case has no check.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a missing or malformed expected value must fail the test"
)]

mod reference;

macro_rules! checks {
    ($($module:ident::$check:ident,)*) => {
        $(
            #[test]
            fn $check() {
                reference::$module::$check::<f64>();
                reference::$module::$check::<f32>();
            }
        )*

        #[test]
        fn every_case_is_checked() {
            $(
                reference::$module::$check::<f64>();
                reference::$module::$check::<f32>();
            )*
            let missing = reference::missing();
            assert!(missing.is_empty(), "{missing:#?}");
        }
    };
}

checks! {
    advantages::groups_and_batches,
    advantages::whitening,
    advantages::group_mean,
    advantages::overlong,
    advantages::dynamic_sampling,
    advantages::returns,
    advantages::rollout_admission,
    distillation::gaps,
    distillation::rewards_and_gaps,
    distillation::missing_teacher_values_are_masked,
    distillation::topk_divergences,
    distillation::tail_clamp,
    distillation::zero_padding_is_not_a_distribution,
    distillation::one_sided_dppo_to_the_reference,
    distillation::self_distillation,
    distillation::soft_cross_entropy,
    distillation::ema_teacher,
    engine::logprobs_and_entropies,
    objective::ppo_clip,
    objective::kl_estimators,
    objective::importance_weights,
    objective::aggregations,
    optimizer::adamw,
    surrogates::decoupled_ppo,
    surrogates::gspo,
    surrogates::dapo,
    surrogates::dr_grpo,
    surrogates::cispo,
    surrogates::dppo,
    surrogates::sapo,
    surrogates::gradients_to_logits,
}
