//! Quantized models on an emulated device, against the CPU backend.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;

use clawhost_cpu::CpuBackend;
use clawhost_engine::backend::{AdapterSlot, Backend, Candidates, Sequence};
use clawhost_model::testing::tiny;
use clawhost_model::{Model, ModelConfig, ModelFiles, Quantization};

use super::*;
use crate::CudaBackend;
use crate::device::emulated::EmulatedDriver;
use crate::memory::model_bytes;
use crate::tests::agreement;

const BOTH: [Quantization; 2] = [Quantization::Int8, Quantization::Int4];

/// A model whose widths are not whole units, with biases and a head of its own.
fn config() -> ModelConfig {
    ModelConfig {
        hidden_size: 72,
        ..ModelConfig::parse(
            br#"{"architectures": ["Qwen2ForCausalLM"], "hidden_size": 48, "intermediate_size": 200,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
                "vocab_size": 97, "max_position_embeddings": 512, "tie_word_embeddings": false}"#,
        )
        .unwrap()
    }
}

fn files(config: ModelConfig) -> (tempfile::TempDir, ModelFiles) {
    let dir = tempfile::tempdir().unwrap();
    Model::random(config, 3).save(dir.path()).unwrap();
    let files = ModelFiles::from_dir(dir.path()).unwrap();
    (dir, files)
}

fn scores(backend: &dyn Backend, count: u32) -> Vec<f32> {
    let tokens: Vec<u32> = (0..count).map(|i| i * 37 % 97).collect();
    let sequence = Sequence {
        tokens: &tokens,
        start: 1,
        temperature: 0.9,
        candidates: Candidates::None,
    };
    let scored = backend.score(AdapterSlot::BASE, &[sequence]).unwrap();
    scored.into_iter().flat_map(|s| s.logprobs).collect()
}

#[test]
fn scores_agree_with_the_cpu_backend() {
    for config in [tiny(), config()] {
        let (_dir, files) = files(config);
        for quantization in BOTH {
            let model = Arc::new(Model::load_quantized(&files, quantization).unwrap());
            let cpu = CpuBackend::new(Arc::clone(&model));
            for (precision, bound) in [(Precision::F32, 1e-4), (Precision::Bf16, 5e-2)] {
                let Some(driver) = EmulatedDriver::new() else {
                    return;
                };
                let loaded = CudaBackend::load_on(vec![driver], &files, quantization, precision);
                let backend = loaded.unwrap().remove(0);
                assert_eq!(backend.model().digest(), model.digest());
                assert_eq!(backend.model().quantization(), quantization);
                let bytes = model_bytes(model.config(), precision, quantization);
                assert_eq!(backend.weight_bytes(), bytes);
                // As many rows as restore weights in registers, some at a time, and more.
                for tokens in [8, 40, 100] {
                    let (found, expected) = (scores(&backend, tokens), scores(&cpu, tokens));
                    let pairs = found.iter().zip(&expected);
                    let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(
                        worst < bound,
                        "{quantization:?} {precision:?} {tokens}: {worst}"
                    );
                }
            }
        }
    }
}

#[test]
fn gradients_of_an_adapter_agree_with_the_cpu_backend() {
    let (_dir, files) = files(config());
    for quantization in BOTH {
        let model = Arc::new(Model::load_quantized(&files, quantization).unwrap());
        for (precision, bound) in [(Precision::F32, 1e-4), (Precision::Bf16, 5e-2)] {
            let Some(driver) = EmulatedDriver::new() else {
                return;
            };
            let backend = CudaBackend::on(driver, Arc::clone(&model), precision).unwrap();
            let error = agreement::adapter_gradient_error(&model, &backend);
            assert!(error < bound, "{quantization:?} {precision:?}: {error}");
        }
    }
}

#[test]
fn four_bits_take_less_than_a_third_of_bf16() {
    let config = ModelConfig {
        hidden_size: 2560,
        intermediate_size: 9728,
        num_hidden_layers: 36,
        num_attention_heads: 32,
        num_key_value_heads: 8,
        head_dim: 128,
        ..tiny()
    };
    let bytes = |quantization| model_bytes(&config, Precision::Bf16, quantization);
    let dense = bytes(Quantization::None);
    assert!(bytes(Quantization::Int4) * 16 < dense * 5 + (16 << 20));
    assert!(bytes(Quantization::Int8) * 32 < dense * 17 + (32 << 20));
}
