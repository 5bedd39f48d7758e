//! Gradients of trained weights of both kinds, and of adapters with per-module ranks.

use std::sync::Arc;

use clawhost_engine::{Candidates, LossGradients, Sequence, SequenceScores, TrainLimits};
use clawhost_model::testing::{random_adapter, tiny};
use clawhost_model::{Adapter, Model, TrainedWeights};

use super::{GradientTarget, Gradients};
use crate::{CpuModel, CpuWeights};

fn sequence(tokens: &[u32], start: usize) -> Sequence<'_> {
    Sequence {
        tokens,
        start,
        temperature: 1.0,
        candidates: Candidates::None,
    }
}

fn ones(count: usize) -> LossGradients {
    LossGradients {
        d_logprob: vec![1.0; count],
        d_entropy: Vec::new(),
        d_candidates: Vec::new(),
    }
}

#[test]
fn gradient_step_raises_the_logprobs() {
    let base = Model::random(tiny(), 2);
    let tokens = [3, 90, 4, 41, 7, 12];
    let kinds = [
        TrainedWeights::Full(Arc::new(base.clone())),
        TrainedWeights::Lora(Arc::new(random_adapter(base.config(), 3))),
    ];
    for mut weights in kinds {
        let before = weights.score(&base, &[sequence(&tokens, 2)]).unwrap();
        let mut gradients = weights.gradients();
        let pass = weights.forward_train(&base, &[sequence(&tokens, 2)], TrainLimits::default());
        pass.unwrap().backward(&[ones(4)], &mut gradients).unwrap();
        let rate = 1e-2 / gradients.norm() as f32;
        for ((_, values), gradient) in weights.tensors_mut().into_iter().zip(&gradients.tensors) {
            for (v, g) in values.iter_mut().zip(gradient) {
                *v += rate * g;
            }
        }
        let after = weights.score(&base, &[sequence(&tokens, 2)]).unwrap();
        let sum = |scored: &[SequenceScores]| scored[0].logprobs.iter().sum::<f32>();
        assert!(sum(&after) > sum(&before) + 1e-3);
    }
}

/// An adapter with per-module ranks has the gradients of one that is padded with zeros to the largest rank.
#[test]
fn gradients_of_per_module_ranks_equal_those_of_padded_ranks() {
    let model = Model::random(tiny(), 7);
    let mut adapter = random_adapter(&tiny(), 1);
    for (index, pair) in adapter.pairs_mut().iter_mut().enumerate() {
        let pair = pair.as_mut().unwrap();
        let (inputs, rank) = (pair.a.len() / pair.rank, 1 + index % 4);
        pair.a.truncate(rank * inputs);
        pair.b = pair
            .b
            .chunks(pair.rank)
            .flat_map(|row| row[..rank].to_vec())
            .collect();
        pair.rank = rank;
    }
    let mut filled = adapter.clone();
    for pair in filled.pairs_mut().iter_mut().flatten() {
        let inputs = pair.a.len() / pair.rank;
        pair.a.resize(4 * inputs, 0.0);
        let rows: Vec<Vec<f32>> = pair.b.chunks(pair.rank).map(<[f32]>::to_vec).collect();
        pair.b = rows
            .into_iter()
            .flat_map(|mut row| {
                row.resize(4, 0.0);
                row
            })
            .collect();
        pair.alpha *= 4.0 / pair.rank as f32;
        pair.rank = 4;
    }
    let tokens: Vec<u32> = (0..30).map(|i| (i * 17 + 3) % 97).collect();
    let gradients = |adapter: &Adapter| {
        let mut gradients = Gradients::for_adapter(adapter);
        let target = GradientTarget::Lora(adapter);
        let pass = model.forward_train(target, &[sequence(&tokens, 1)], TrainLimits::default());
        pass.unwrap().backward(&[ones(29)], &mut gradients).unwrap();
        gradients
    };
    let (own, even) = (gradients(&adapter), gradients(&filled));
    assert!(own.norm() > 0.0);
    for (at, pair) in adapter.pairs().iter().flatten().enumerate() {
        // The padding is not part of it.
        let rows = even.tensors[2 * at + 1].chunks(4);
        let even_b: Vec<f32> = rows.flat_map(|row| row[..pair.rank].to_vec()).collect();
        let even_a = &even.tensors[2 * at][..own.tensors[2 * at].len()];
        for (own, even) in [
            (&own.tensors[2 * at], even_a),
            (&own.tensors[2 * at + 1], &even_b),
        ] {
            let pairs = own.iter().zip(even);
            let off: f32 = pairs.map(|(own, even)| (own - even).powi(2)).sum();
            let norm: f32 = even.iter().map(|even| even.powi(2)).sum();
            assert!(own.len() == even.len() && norm > 0.0, "pair {at}");
            assert!(
                off.sqrt() <= 1e-5 * norm.sqrt(),
                "pair {at}: {off} of {norm}"
            );
        }
    }
}
