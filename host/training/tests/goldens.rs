//! Reference numbers for advantages, losses, distillation, the optimizer and the head: generated once in float64 by an
//! independent implementation, with gradients checked there against finite differences. f64 must agree to 1e-6, f32 to
//! 1e-5, each through the code that trains.
//!
//! | file | checked by |
//! |---|---|
//! | 01 and 09 advantages, 07 overlong and dynamic sampling, 13 returns, 19 staleness | `reference/advantages.rs` |
//! | 02 clip, 03 divergences, 04 importance weights, 08 aggregation | `reference/objective.rs` |
//! | 05 decoupled, 06 GSPO, 07 loss, 09 loss, 10 CISPO, 14 DPPO, 18 logits, 19 SAPO | `reference/surrogates.rs` |
//! | 11 gaps, 12 distances on the most likely tokens | `reference/distillation.rs` |
//! | 15 votes | `host/judging/src/votes.rs` (its cases on parsing are about a form of answer that is not ours) |
//! | 15 hints | `src/hints.rs` |
//! | 16 log-probs and entropies | `reference/engine.rs` |
//! | 17 AdamW | `reference/optimizer.rs` |
//! | 17 merging | `host/policy/src/lora/merge.rs` |
//!
//! `every_case_is_checked` fails for a case that no check has looked at.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a reference number that is missing or misshapen must fail the test"
)]

mod reference;

macro_rules! checks {
    ($($room:ident::$check:ident,)*) => {
        $(
            #[test]
            fn $check() {
                reference::$room::$check::<f64>();
                reference::$room::$check::<f32>();
            }
        )*

        #[test]
        fn every_case_is_checked() {
            $(
                reference::$room::$check::<f64>();
                reference::$room::$check::<f32>();
            )*
            let missing = reference::missing();
            assert!(missing.is_empty(), "{missing:#?}");
        }
    };
}

checks! {
    advantages::groups_and_batches,
    advantages::whitening,
    advantages::mean_of_the_group,
    advantages::overlong,
    advantages::dynamic_sampling,
    advantages::returns,
    advantages::admission,
    distillation::gaps,
    distillation::taught,
    distillation::missing_is_masked,
    distillation::distances,
    distillation::full_rest,
    distillation::zeros_are_no_distribution,
    distillation::reference_in_a_region,
    distillation::self_distillation,
    distillation::soft_cross_entropy,
    distillation::moving_teacher,
    engine::logprobs_and_entropies,
    objective::ppo_clip,
    objective::kl_estimators,
    objective::importance_weights,
    objective::aggregations,
    optimizer::adamw,
    surrogates::decoupled,
    surrogates::gspo,
    surrogates::dapo,
    surrogates::dr_grpo,
    surrogates::cispo,
    surrogates::dppo,
    surrogates::sapo,
    surrogates::down_to_the_logits,
}
