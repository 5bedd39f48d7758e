//! Models read from checkpoints on an emulated device.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;

use clawhost_engine::backend::{AdapterSlot, Backend, Candidates, Sequence};
use clawhost_model::testing::{GgufFile, tiny};
use clawhost_model::{Model, ModelConfig, ModelFiles, Quantization, TrainedWeights};

use crate::device::emulated::EmulatedDriver;
use crate::device::{Driver, Precision};
use crate::{CudaBackend, kernel_tests};

fn scores(backend: &CudaBackend) -> Vec<f32> {
    let tokens: Vec<u32> = (0..40).map(|i| i * 37 % 97).collect();
    let sequence = Sequence {
        tokens: &tokens,
        start: 1,
        temperature: 1.0,
        candidates: Candidates::None,
    };
    let scored = backend.score(AdapterSlot::BASE, &[sequence]).unwrap();
    scored.into_iter().flat_map(|s| s.logprobs).collect()
}

/// Values beside a model whose every tensor is different, biases and norms too.
fn model(config: ModelConfig) -> Model {
    let mut model = Model::random(config, 5);
    for (i, (_, values)) in model.parameters_mut().into_iter().enumerate() {
        let noise = kernel_tests::random(i as u64, values.len(), 0.1);
        values.iter_mut().zip(noise).for_each(|(v, n)| *v += n);
    }
    model
}

#[test]
fn a_checkpoint_gives_the_bits_of_the_model_in_host_memory() {
    let config = |text: &str| ModelConfig::parse(text.as_bytes()).unwrap();
    let with_biases = config(
        r#"{"architectures": ["Qwen2ForCausalLM"], "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97,
            "max_position_embeddings": 512, "tie_word_embeddings": false}"#,
    );
    for config in [tiny(), with_biases] {
        let model = model(config);
        let dir = tempfile::tempdir().unwrap();
        model.save(dir.path()).unwrap();
        let gguf = dir.path().join("model.gguf");
        GgufFile::new(&model, "F32").write(&gguf);
        for precision in [Precision::F32, Precision::Bf16] {
            for files in [ModelFiles::from_dir(dir.path()), ModelFiles::open(&gguf)] {
                let driver = || -> Option<Arc<dyn Driver>> { Some(EmulatedDriver::new()?) };
                let Some(driver) = driver() else { return };
                let model = Arc::new(model.clone());
                let right =
                    CudaBackend::on(Arc::clone(&driver), Arc::clone(&model), precision).unwrap();
                // Two replicas, of which each has all of the model.
                let drivers = vec![Arc::clone(&driver), driver];
                let mut loaded =
                    CudaBackend::load_on(drivers, &files.unwrap(), Quantization::None, precision)
                        .unwrap();
                for loaded in &loaded {
                    assert_eq!(scores(loaded), scores(&right), "{precision:?}");
                }
                assert!(Arc::ptr_eq(loaded[0].model(), loaded[1].model()));
                let loaded = loaded.remove(0);
                let stored = loaded.model();
                assert_eq!(stored.digest(), model.digest());
                // Full-parameter training starts from the weights in the files.
                let full = TrainedWeights::Full(stored.in_memory().unwrap());
                assert_eq!(full.digest(), model.digest());
                let slot = loaded.load_adapter(&full).unwrap();
                loaded.drop_adapter(slot);
            }
        }
    }
}

/// Loading ends although several threads fail while buffers are being uploaded.
#[test]
fn a_checkpoint_whose_tensors_are_mostly_not_finite_is_rejected() {
    let mut model = model(tiny());
    for (_, values) in model.parameters_mut().into_iter().skip(3) {
        values[0] = f32::NAN;
    }
    let dir = tempfile::tempdir().unwrap();
    model.save(dir.path()).unwrap();
    let files = ModelFiles::from_dir(dir.path()).unwrap();
    for _ in 0..20 {
        let Some(driver) = EmulatedDriver::new() else {
            return;
        };
        let loaded = CudaBackend::load_on(vec![driver], &files, Quantization::None, Precision::F32);
        let error = loaded.unwrap_err().to_string();
        assert!(error.contains("not finite"), "{error}");
    }
}

#[test]
fn a_tensor_that_is_not_finite_is_named() {
    let Some(driver) = EmulatedDriver::new() else {
        return;
    };
    let mut model = model(tiny());
    for (name, values) in model.parameters_mut() {
        if name.ends_with("1.mlp.up_proj.weight") || name.ends_with("model.norm.weight") {
            values[7] = f32::NAN;
        }
    }
    let dir = tempfile::tempdir().unwrap();
    model.save(dir.path()).unwrap();
    let files = ModelFiles::from_dir(dir.path()).unwrap();
    let error = CudaBackend::load_on(vec![driver], &files, Quantization::None, Precision::Bf16);
    let error = error.unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("layers.1.mlp.up_proj.weight holds a value that is not finite"),
        "{error}"
    );
}
