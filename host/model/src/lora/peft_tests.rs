//! Reading PEFT directories, and what is rejected.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use serde_json::json;

use super::*;
use crate::LoraSpec;
use crate::testing::tiny;

/// The configuration that PEFT writes for a plain adapter.
fn peft_config_json() -> Value {
    json!({
        "alpha_pattern": {}, "auto_mapping": null, "base_model_name_or_path": "Qwen/Qwen3-0.6B", "bias": "none",
        "corda_config": null, "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false,
        "inference_mode": true, "init_lora_weights": true, "layer_replication": null,
        "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 8,
        "lora_bias": false, "lora_dropout": 0.05, "megatron_config": null, "megatron_core": "megatron.core",
        "modules_to_save": null, "peft_type": "LORA", "qalora_group_size": 16, "r": 4, "rank_pattern": {},
        "revision": null, "target_modules": ["v_proj", "q_proj"], "target_parameters": null,
        "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_dora": false, "use_qalora": false,
        "use_rslora": false, "use_bdlora": null, "alora_invocation_tokens": null, "velora_config": null,
        "ensure_weight_tying": false, "peft_version": "0.21.2"
    })
}

/// A directory with this configuration and the tensors of an adapter of query and value, in one precision.
fn directory(config: &Value, dtype: DType) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
    let spec = LoraSpec {
        rank: 4,
        alpha: 8.0,
        targets: vec![Target::Q, Target::V],
    };
    let adapter = Adapter::init(&tiny(), spec, 9);
    let shapes = adapter.layout();
    let tensors: HashMap<String, Tensor> = shapes
        .iter()
        .zip(adapter.tensors())
        .map(|((name, shape), (_, values))| {
            let tensor = Tensor::from_slice(values, shape.as_slice(), &Device::Cpu).unwrap();
            (name.clone(), tensor.to_dtype(dtype).unwrap())
        })
        .collect();
    let path = dir.path().join("adapter_model.safetensors");
    candle_core::safetensors::save(&tensors, path).unwrap();
    dir
}

/// The scale of its queries.
fn scale(adapter: &Adapter) -> f32 {
    adapter.pair(0, Target::Q).unwrap().scale()
}

#[test]
fn peft_adapters_load_in_every_precision() {
    let first = |dtype| {
        let dir = directory(&peft_config_json(), dtype);
        let adapter = Adapter::load_peft(dir.path(), &tiny()).unwrap();
        assert_eq!((adapter.spec.rank, scale(&adapter)), (4, 2.0));
        adapter.tensors()[0].1[0]
    };
    let exact = Tensor::new(&[first(DType::F32)], &Device::Cpu).unwrap();
    for dtype in [DType::F16, DType::BF16] {
        let rounded = exact
            .to_dtype(dtype)
            .and_then(|half| half.to_dtype(DType::F32));
        let rounded: Vec<f32> = rounded.unwrap().to_vec1().unwrap();
        assert_eq!([first(dtype)], rounded[..]);
    }
}

#[test]
fn a_rank_stabilized_adapter_keeps_its_scale() {
    let mut config = peft_config_json();
    config["use_rslora"] = json!(true);
    let dir = directory(&config, DType::F32);
    let adapter = Adapter::load_peft(dir.path(), &tiny()).unwrap();
    assert_eq!(scale(&adapter), 4.0);
    // Written by us it is plain LoRA with the same scale.
    let own = tempfile::tempdir().unwrap();
    adapter.save_peft(own.path(), "base").unwrap();
    let text = std::fs::read_to_string(own.path().join("adapter_config.json")).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&written["lora_alpha"], &written["use_rslora"]),
        (&json!(16), &json!(false))
    );
    let again = Adapter::load_peft(own.path(), &tiny()).unwrap();
    assert_eq!(again.digest(), adapter.digest());
}

#[test]
fn with_a_module_pattern_the_tensors_define_the_targets() {
    let mut config = peft_config_json();
    for modules in [json!("all-linear"), json!(".*(q|v)_proj"), Value::Null] {
        config["target_modules"] = modules;
        let dir = directory(&config, DType::F32);
        let adapter = Adapter::load_peft(dir.path(), &tiny()).unwrap();
        let targets: Vec<Target> = crate::lora::spec::sorted_targets(&adapter.spec).collect();
        assert_eq!(targets, [Target::Q, Target::V]);
    }
}

#[test]
fn features_beyond_plain_lora_are_rejected_by_name() {
    for (key, value, part) in [
        ("use_dora", json!(true), "use_dora is true"),
        ("bias", json!("lora_only"), "bias is \"lora_only\""),
        ("modules_to_save", json!(["lm_head"]), "modules_to_save"),
        ("rank_pattern", json!({"q_proj": 8}), "rank_pattern"),
        ("layers_to_transform", json!([1]), "layers_to_transform"),
        (
            "init_lora_weights",
            json!("pissa"),
            "init_lora_weights is \"pissa\"",
        ),
        (
            "adapts_in_a_way_of_tomorrow",
            json!({"by": 2}),
            "adapts_in_a_way_of_tomorrow",
        ),
        ("peft_type", json!("IA3"), "peft_type is IA3"),
        (
            "target_modules",
            json!(["q_proj", "lm_head"]),
            "it changes lm_head",
        ),
        (
            "target_modules",
            json!(["q_proj", "v_proj", "o_proj"]),
            "o_proj",
        ),
        ("target_modules", json!(["q_proj"]), "v_proj"),
        ("r", json!(0), "rank 0"),
    ] {
        let mut config = peft_config_json();
        config[key] = value;
        let dir = directory(&config, DType::F32);
        let error = Adapter::load_peft(dir.path(), &tiny())
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "{key}: {error}");
    }
    let dir = directory(&peft_config_json(), DType::F32);
    let file = |name: &str| dir.path().join(name);
    std::fs::rename(file("adapter_model.safetensors"), file("adapter_model.bin")).unwrap();
    let error = Adapter::load_peft(dir.path(), &tiny())
        .unwrap_err()
        .to_string();
    assert!(error.contains("adapter_model.bin"), "{error}");
}

/// A configuration for two layers with different ranks and alphas.
fn uneven() -> Value {
    let mut config = peft_config_json();
    config["rank_pattern"] = json!({"v_proj": 2, r"model\.layers\.1\.self_attn\.q_proj": 3});
    config["alpha_pattern"] = json!({"layers.0.self_attn.v_proj": 5, "k_proj": 7});
    config
}

/// A directory with tensors of these modules and ranks.
fn with_modules(config: &Value, modules: &[(&str, usize)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
    let mut tensors = HashMap::new();
    for (seed, (module, rank)) in modules.iter().enumerate() {
        let target = Target::ALL
            .into_iter()
            .find(|t| module.ends_with(t.module()))
            .unwrap();
        let (inputs, outputs) = target.widths(&tiny());
        for (part, shape) in [("A", [*rank, inputs]), ("B", [outputs, *rank])] {
            let count = shape[0] * shape[1];
            let values: Vec<f32> = (0..count)
                .map(|i| 0.2 * ((i * 3 + seed) as f32).sin())
                .collect();
            let tensor = Tensor::from_vec(values, &shape, &Device::Cpu).unwrap();
            tensors.insert(
                format!("base_model.model.{module}.lora_{part}.weight"),
                tensor,
            );
        }
    }
    candle_core::safetensors::save(&tensors, dir.path().join("adapter_model.safetensors")).unwrap();
    dir
}

const UNEVEN: [(&str, usize); 4] = [
    ("model.layers.0.self_attn.q_proj", 4),
    ("model.layers.0.self_attn.v_proj", 2),
    ("model.layers.1.self_attn.q_proj", 3),
    ("model.layers.1.self_attn.v_proj", 2),
];

#[test]
fn per_module_ranks_and_alphas_are_preserved() {
    let dir = with_modules(&uneven(), &UNEVEN);
    let adapter = Adapter::load_peft(dir.path(), &tiny()).unwrap();
    let shapes: Vec<(usize, f32)> = adapter
        .adapted_modules()
        .map(|(_, _, p)| (p.rank, p.scale()))
        .collect();
    assert_eq!(shapes, [(4, 2.0), (2, 2.5), (3, 8.0 / 3.0), (2, 4.0)]);
    let own = tempfile::tempdir().unwrap();
    adapter.save_peft(own.path(), "base").unwrap();
    let again = Adapter::load_peft(own.path(), &tiny()).unwrap();
    assert_eq!(
        (again.digest(), again.delta_norm(&adapter)),
        (adapter.digest(), 0.0)
    );
    // The scale affects the outputs, and so the digest.
    let mut other = uneven();
    other["alpha_pattern"] = json!({"layers.0.self_attn.v_proj": 6});
    let other = Adapter::load_peft(with_modules(&other, &UNEVEN).path(), &tiny()).unwrap();
    assert_ne!(other.digest(), adapter.digest());
    assert_eq!(other.delta_norm(&adapter), f64::INFINITY);
    let mut stabilised = uneven();
    stabilised["use_rslora"] = json!(true);
    let stabilised =
        Adapter::load_peft(with_modules(&stabilised, &UNEVEN).path(), &tiny()).unwrap();
    let last = stabilised.adapted_modules().last().unwrap().2.scale();
    assert!((last - 8.0 / 2f32.sqrt()).abs() < 1e-5, "{last}");
}

#[test]
fn unsupported_patterns_are_rejected() {
    for (key, value, words) in [
        (
            "rank_pattern",
            json!({"v_proj": 3}),
            "model.layers.0.self_attn.v_proj has rank 2, but r and rank_pattern make it 3",
        ),
        (
            "rank_pattern",
            json!({"v_proj": 0}),
            "rank_pattern has the invalid value 0 for model.layers.0.self_attn.v_proj",
        ),
        (
            "rank_pattern",
            json!({".*v_proj|q_proj": 2}),
            "rank_pattern has the pattern .*v_proj|q_proj; only module names are supported",
        ),
        (
            "alpha_pattern",
            json!({"v_proj": "much"}),
            "alpha_pattern has the invalid value \"much\" for model.layers.0.self_attn.v_proj",
        ),
    ] {
        let mut config = uneven();
        config[key] = value;
        let dir = with_modules(&config, &UNEVEN);
        let error = Adapter::load_peft(dir.path(), &tiny())
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn adapters_can_cover_some_layers_only() {
    let some = [
        ("model.layers.1.self_attn.q_proj", 4),
        ("model.layers.1.self_attn.v_proj", 4),
    ];
    let names = |config: &Value, modules: &[(&str, usize)]| -> Result<Vec<String>, String> {
        let dir = with_modules(config, modules);
        let adapter = Adapter::load_peft(dir.path(), &tiny()).map_err(|e| e.to_string())?;
        let own = tempfile::tempdir().unwrap();
        adapter.save_peft(own.path(), "base").unwrap();
        let again = Adapter::load_peft(own.path(), &tiny()).unwrap();
        assert_eq!(again.digest(), adapter.digest());
        Ok(adapter.adapted_modules().map(|(name, ..)| name).collect())
    };
    let expected: Vec<String> = some.iter().map(|(name, _)| (*name).to_owned()).collect();
    for (key, value) in [
        ("layers_to_transform", json!([1])),
        ("layers_to_transform", json!(1)),
        (
            "target_modules",
            json!([
                "layers.1.self_attn.q_proj",
                "model.layers.1.self_attn.v_proj"
            ]),
        ),
        ("target_modules", json!(r".*\.1\.self_attn\.(q|v)_proj")),
        (
            "exclude_modules",
            json!(["layers.0.self_attn.q_proj", "layers.0.self_attn.v_proj"]),
        ),
        ("exclude_modules", json!(r".*\.0\..*")),
    ] {
        let mut config = peft_config_json();
        config[key] = value;
        assert_eq!(names(&config, &some).unwrap(), expected, "{key}");
    }
    let error = names(&peft_config_json(), &some).unwrap_err();
    assert!(
        error.contains(
            "has no tensor base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
        ),
        "{error}"
    );
    let mut config = peft_config_json();
    config["layers_to_transform"] = json!([0]);
    let error = names(&config, &UNEVEN.map(|(name, _)| (name, 4))).unwrap_err();
    assert!(
        error.contains("it has tensors for model.layers.1.self_attn.q_proj, which target_modules"),
        "{error}"
    );
}
