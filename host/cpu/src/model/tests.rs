//! The forward pass with different chunks and batches.

use std::sync::OnceLock;

use clawhost_engine::ForwardError;
use clawhost_model::testing::{random_adapter, tiny};
use clawhost_model::{Adapter, LoraSpec, Model, ModelConfig};

use super::Decoder;
use crate::{BatchRow, CpuModel, KvCache};

fn run(model: &Model, tokens: &[u32], adapter: Option<&Adapter>) -> Vec<f32> {
    let mut cache = model.new_cache();
    model
        .forward(&mut [BatchRow {
            tokens,
            cache: &mut cache,
            adapter,
        }])
        .unwrap()
}

fn close(a: &[f32], b: &[f32], bound: f32) {
    let worst = a
        .iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(a.len() == b.len() && worst <= bound, "{worst}");
}

#[test]
fn token_by_token_equals_one_pass_and_a_truncated_cache_replays() {
    let model = Model::random(tiny(), 3);
    let tokens: Vec<u32> = (0..90).map(|i| (i * 37 + 5) % 97).collect();
    let adapter = random_adapter(model.config(), 1);
    let whole = run(&model, &tokens, Some(&adapter));
    let mut cache = model.new_cache();
    let mut logits = Vec::new();
    for chunk in [&tokens[..70], &tokens[70..71], &tokens[71..90]] {
        let row = BatchRow {
            tokens: chunk,
            cache: &mut cache,
            adapter: Some(&adapter),
        };
        logits = model.forward(&mut [row]).unwrap();
    }
    close(&whole, &logits, 1e-5);
    cache.truncate(60);
    let row = BatchRow {
        tokens: &tokens[60..],
        cache: &mut cache,
        adapter: Some(&adapter),
    };
    close(&whole, &model.forward(&mut [row]).unwrap(), 1e-5);
    assert_eq!(cache.len(), 90);
}

#[test]
fn rows_of_a_mixed_batch_get_the_same_logits_as_alone() {
    let model = Model::random(tiny(), 4);
    let (one, two) = (
        random_adapter(model.config(), 1),
        random_adapter(model.config(), 2),
    );
    let prompts: Vec<Vec<u32>> = (0..5)
        .map(|r| (0..3 + 11 * r).map(|i| (i * 13 + r) % 97).collect())
        .collect();
    let adapters = [None, Some(&one), Some(&one), Some(&two), None];
    let mut caches: Vec<KvCache> = prompts.iter().map(|_| model.new_cache()).collect();
    let mut rows: Vec<BatchRow<'_>> = prompts
        .iter()
        .zip(&mut caches)
        .zip(adapters)
        .map(|((p, cache), adapter)| BatchRow {
            tokens: p,
            cache,
            adapter,
        })
        .collect();
    let together = model.forward(&mut rows).unwrap();
    for (i, (prompt, adapter)) in prompts.iter().zip(adapters).enumerate() {
        close(
            &together[i * 97..(i + 1) * 97],
            &run(&model, prompt, adapter),
            1e-5,
        );
    }
    assert!(run(&model, &prompts[4], Some(&one)) != run(&model, &prompts[4], Some(&two)));
}

#[test]
fn parallel_decoding_is_bit_identical() {
    let adapters = [1, 2].map(|seed| random_adapter(&tiny(), seed));
    let decoded = |threads: usize| {
        let model = Model::random(tiny(), 3).with_threads(threads);
        let tokens: Vec<u32> = (0..200).map(|i| (i * 37 + 5) % 97).collect();
        let mut caches: Vec<_> = (0..37).map(|_| model.new_cache()).collect();
        let mut logits = Vec::new();
        // Prompts of different lengths, then one token each.
        for last in [false, true, true] {
            let rows = caches.iter_mut().enumerate().map(|(row, cache)| BatchRow {
                tokens: if last {
                    &tokens[row..=row]
                } else {
                    &tokens[..1 + 5 * row]
                },
                cache,
                adapter: (row % 4 > 0).then(|| &adapters[row / 19]),
            });
            logits.push(model.forward(&mut rows.collect::<Vec<_>>()).unwrap());
        }
        logits
    };
    let one = decoded(1);
    for threads in [2, 3, 4, 8] {
        assert!(decoded(threads) == one, "{threads} threads");
    }
}

#[test]
fn a_model_without_packed_weights_gives_the_same_logits() {
    let model = Model::random(tiny(), 3);
    let unpacked = OnceLock::from(None);
    let large = Decoder {
        packed: &unpacked,
        ..Decoder::new(&model)
    };
    let tokens: Vec<u32> = (0..90).map(|i| (i * 37 + 5) % 97).collect();
    for tokens in [&tokens[..], &tokens[..70], &tokens[..1]] {
        let row = BatchRow {
            tokens,
            cache: &mut model.new_cache(),
            adapter: None,
        };
        let found = large.forward_batch(&mut [row]).unwrap();
        close(&run(&model, tokens, None), &found, 1e-5);
    }
}

#[test]
fn changed_weights_are_repacked() {
    let mut model = Model::random(tiny(), 3);
    let before = run(&model, &[5, 9, 4], None);
    for (_, values) in model.parameters_mut() {
        values.iter_mut().for_each(|value| *value *= 1.5);
    }
    let mut fresh = Model::random(tiny(), 3);
    for (_, values) in fresh.parameters_mut() {
        values.iter_mut().for_each(|value| *value *= 1.5);
    }
    let after = run(&model, &[5, 9, 4], None);
    assert!(after == run(&fresh, &[5, 9, 4], None) && after != before);
}

#[test]
fn invalid_rows_are_rejected_and_leave_the_caches_unchanged() {
    let model = Model::random(tiny(), 5);
    let mut cache = model.new_cache();
    let row = BatchRow {
        tokens: &[1, 97],
        cache: &mut cache,
        adapter: None,
    };
    assert_eq!(
        model.forward(&mut [row]),
        Err(ForwardError::Token { id: 97, vocab: 97 })
    );
    let row = BatchRow {
        tokens: &[],
        cache: &mut cache,
        adapter: None,
    };
    assert_eq!(model.forward(&mut [row]), Err(ForwardError::Empty));
    let other = Adapter::init(
        &ModelConfig {
            hidden_size: 32,
            ..tiny()
        },
        LoraSpec::default(),
        0,
    );
    let row = BatchRow {
        tokens: &[1],
        cache: &mut cache,
        adapter: Some(&other),
    };
    assert_eq!(model.forward(&mut [row]), Err(ForwardError::Adapter));
    assert!(cache.is_empty());
}
