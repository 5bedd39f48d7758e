//! Merges an adapter into its base model: `W + (alpha / rank) B A` in each adapted layer.
//!
//! Serving never merges, so that versions share one base model; this is for exporting to programs without adapter
//! support.

use std::collections::HashMap;

use clawhost_model::{Adapter, LoadError, LoraPair, Model, Target, TargetLayer};

use crate::ops::simd::{axpy, vectorized};

/// Adds `scale * B A` to a weight `[outputs, inputs]`.
fn add_product(weight: &mut [f32], pair: &LoraPair, inputs: usize) {
    let scale = pair.scale();
    vectorized(
        #[inline(always)]
        || {
            let rows = weight.chunks_exact_mut(inputs);
            for (row, factors) in rows.zip(pair.b.chunks_exact(pair.rank)) {
                for (factor, a) in factors.iter().zip(pair.a.chunks_exact(inputs)) {
                    axpy(row, scale * factor, a);
                }
            }
        },
    );
}

/// See [`crate::CpuModel::merge_adapter`].
pub(crate) fn merge_adapter(model: &Model, adapter: &Adapter) -> Result<Model, LoadError> {
    let config = model.config();
    if !adapter.fits(config) {
        return Err(LoadError::AdapterMismatch {
            reason: "it was made for a model of another shape".to_owned(),
        });
    }
    // A quantized base is restored: its values and the adapter are what was served.
    let mut weights = model.weights().dequantized(config);
    let mut tensors: HashMap<String, &mut [f32]> =
        weights.tensors_mut(config).into_iter().collect();
    for layer in 0..config.num_hidden_layers {
        for target in Target::ALL {
            let Some(pair) = adapter.pair(layer, target) else {
                continue;
            };
            let name = format!("model.layers.{layer}.{}.weight", target.module());
            let weight = tensors.get_mut(&name);
            let weight = weight.expect("every layer has all targets");
            add_product(weight, pair, target.widths(config).0);
        }
    }
    drop(tensors);
    Ok(Model::with_weights(config.clone(), weights))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuModel;
    use clawhost_engine::{Candidates, Sequence};
    use clawhost_model::LoraSpec;
    use clawhost_model::testing::{random_adapter, tiny};

    fn goldens() -> serde_json::Value {
        let text = include_str!("../../training/tests/goldens/17_adamw_lora.json");
        serde_json::from_str(text).unwrap()
    }

    fn case(id: &str) -> serde_json::Value {
        let page = goldens();
        let cases = page["cases"].as_array().unwrap();
        cases.iter().find(|case| case["id"] == id).unwrap().clone()
    }

    fn flat(rows: &serde_json::Value) -> Vec<f32> {
        let rows = rows.as_array().unwrap().iter();
        rows.flat_map(|row| row.as_array().unwrap())
            .map(|value| value.as_f64().unwrap() as f32)
            .collect()
    }

    #[test]
    fn a_product_is_added_with_its_scale() {
        let case = case("lora_merge_r1_alpha2");
        let mut weight = flat(&case["inputs"]["W"]);
        let pair = LoraPair {
            rank: 1,
            alpha: case["hyper"]["alpha"].as_f64().unwrap() as f32,
            a: flat(&case["inputs"]["A"]),
            b: flat(&case["inputs"]["B"]),
        };
        add_product(&mut weight, &pair, 2);
        for (found, expected) in weight.iter().zip(flat(&case["expected"]["W"])) {
            assert!((found - expected).abs() < 1e-5, "{weight:?}");
        }
    }

    #[test]
    fn a_merged_model_scores_like_base_and_adapter() {
        let base = Model::random(tiny(), 3);
        let few = LoraSpec {
            rank: 3,
            alpha: 6.0,
            targets: vec![Target::V, Target::Down],
        };
        let mut few = Adapter::init(base.config(), few, 5);
        for (_, values) in few.tensors_mut() {
            values.iter_mut().for_each(|value| *value += 0.03);
        }
        for adapter in [random_adapter(base.config(), 5), few] {
            let merged = base.merge_adapter(&adapter).unwrap();
            let tokens: Vec<u32> = (0..24).map(|i| (i * 7 + 1) % 40).collect();
            let sequences = [Sequence {
                tokens: &tokens,
                start: 1,
                temperature: 1.0,
                candidates: Candidates::Top(5),
            }];
            let separate = base.score(Some(&adapter), &sequences).unwrap();
            let bare = base.score(None, &sequences).unwrap();
            let whole = merged.score(None, &sequences).unwrap();
            let far = |a: &[f32], b: &[f32]| {
                let pairs = a.iter().zip(b);
                pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
            };
            assert!(far(&whole[0].logprobs, &separate[0].logprobs) < 1e-4);
            assert_eq!(whole[0].candidates, separate[0].candidates);
            assert!(
                far(
                    &whole[0].candidate_logprobs,
                    &separate[0].candidate_logprobs
                ) < 1e-4
            );
            assert!(far(&whole[0].logprobs, &bare[0].logprobs) > 1e-3);
            assert_ne!(merged.digest(), base.digest());
        }
    }

    #[test]
    fn an_adapter_of_another_shape_is_rejected() {
        let base = Model::random(tiny(), 3);
        let mut other = tiny();
        other.num_hidden_layers += 1;
        let adapter = Adapter::init(&other, LoraSpec::default(), 1);
        assert!(
            base.merge_adapter(&adapter)
                .unwrap_err()
                .to_string()
                .contains("shape")
        );
    }
}
