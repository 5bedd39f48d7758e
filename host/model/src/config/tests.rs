//! What `config.json` may contain, and what is rejected.

use super::*;

fn json(change: &str) -> Vec<u8> {
    let mut value = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "vocab_size": 100, "max_position_embeddings": 512, "eos_token_id": 7
    });
    if let Some((key, new)) = change.split_once('=') {
        value[key] = serde_json::from_str(new).unwrap();
    }
    value.to_string().into_bytes()
}

#[test]
fn a_plain_config_parses_with_defaults() {
    let config = ModelConfig::parse(&json("")).unwrap();
    assert_eq!(config.eos_token_ids, vec![7]);
    assert_eq!(config.rms_norm_eps, 1e-6);
    assert_eq!(config.query_width(), 64);
}

#[test]
fn eos_may_be_a_list() {
    assert_eq!(
        ModelConfig::parse(&json("eos_token_id=[1,2]"))
            .unwrap()
            .eos_token_ids,
        [1, 2]
    );
}

#[test]
fn invalid_values_are_reported_with_their_key() {
    for (change, name) in [
        ("hidden_size=0", "hidden_size"),
        ("vocab_size=999999999", "vocab_size"),
        ("num_key_value_heads=3", "num_key_value_heads"),
        ("head_dim=15", "head_dim"),
        ("rms_norm_eps=-1", "rms_norm_eps"),
        ("attention_bias=true", "attention_bias"),
        ("rope_scaling={\"type\":\"yarn\"}", "rope_scaling"),
        ("hidden_act=\"gelu\"", "hidden_act"),
        ("eos_token_id=100", "eos_token_id"),
        ("architectures=[\"MambaForCausalLM\"]", "MambaForCausalLM"),
    ] {
        let message = ModelConfig::parse(&json(change)).unwrap_err().to_string();
        assert!(message.contains(name), "{change}: {message}");
    }
}

/// A configuration of a family with these changes.
fn of(family: &str, change: serde_json::Value) -> Result<ModelConfig, String> {
    let mut value = serde_json::json!({
        "architectures": [family], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 512
    });
    let change = change.as_object().unwrap().clone();
    value.as_object_mut().unwrap().extend(change);
    ModelConfig::parse(value.to_string().as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn families_differ_in_norms_biases_and_defaults() {
    use serde_json::json;
    let biases = |config: &ModelConfig| -> Vec<Target> {
        let all = Target::ALL.into_iter();
        all.filter(|target| config.has_bias(*target)).collect()
    };
    let qwen3 = of("Qwen3ForCausalLM", json!({})).unwrap();
    assert!(qwen3.has_head_norms() && biases(&qwen3).is_empty());
    assert_eq!((qwen3.head_dim, qwen3.num_key_value_heads), (128, 4));
    let qwen2 = of("Qwen2ForCausalLM", json!({})).unwrap();
    assert!(!qwen2.has_head_norms());
    assert_eq!(biases(&qwen2), [Target::Q, Target::K, Target::V]);
    assert_eq!((qwen2.head_dim, qwen2.num_key_value_heads), (16, 4));
    let llama = of(
        "LlamaForCausalLM",
        json!({"head_dim": null, "num_key_value_heads": 2}),
    )
    .unwrap();
    assert!(!llama.has_head_norms() && biases(&llama).is_empty());
    assert_eq!((llama.head_dim, llama.num_key_value_heads), (16, 2));
    let biased = of("LlamaForCausalLM", json!({"attention_bias": true})).unwrap();
    assert_eq!(
        biases(&biased),
        [Target::Q, Target::K, Target::V, Target::O]
    );
    let biased = of(
        "LlamaForCausalLM",
        json!({"mlp_bias": true, "head_dim": 32}),
    )
    .unwrap();
    assert_eq!(biases(&biased), [Target::Gate, Target::Up, Target::Down]);
    assert_eq!(biased.head_dim, 32);
    // The `model_type` alone is enough.
    let named = of("x", json!({"architectures": null, "model_type": "llama"})).unwrap();
    assert_eq!(named.architectures, ["LlamaForCausalLM"]);
    let unknown = of("x", json!({"architectures": [], "model_type": "gemma3"})).unwrap_err();
    assert!(
        unknown.contains(
            "gemma3 is not supported; this build supports Qwen3ForCausalLM, Qwen2ForCausalLM"
        ),
        "{unknown}"
    );
}

#[test]
fn all_forms_of_rope_parameters_are_parsed() {
    use serde_json::json;
    let scaling = json!({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128});
    let with = |key: &str, value: serde_json::Value| {
        let mut scaling = scaling.clone();
        scaling[key] = value;
        scaling
    };
    let old = of(
        "LlamaForCausalLM",
        json!({"rope_theta": 5e5, "rope_scaling": with("rope_type", "llama3".into())}),
    )
    .unwrap();
    let older = of(
        "LlamaForCausalLM",
        json!({"rope_theta": 5e5, "rope_scaling": with("type", "llama3".into())}),
    )
    .unwrap();
    let mut inside = with("rope_type", "llama3".into());
    inside["rope_theta"] = json!(5e5);
    let new = of("LlamaForCausalLM", json!({"rope_parameters": inside})).unwrap();
    assert_eq!(old, new);
    assert_eq!(old, older);
    assert_eq!(old.rope_theta, 5e5);
    assert!(matches!(
        old.rope_scaling,
        Some(RopeScaling::Llama3 {
            factor: 8.0,
            original_max_position_embeddings: 128,
            ..
        })
    ));
    // A saved configuration parses to the same.
    let written = serde_json::to_vec(&old).unwrap();
    assert_eq!(ModelConfig::parse(&written).unwrap(), old);
    for plain in [
        json!({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}),
        json!({"rope_theta": 1e6, "rope_scaling": null}),
        json!({"rope_theta": 1e6, "rope_scaling": {"type": "default"}}),
        json!({"rope_theta": 1e6}),
    ] {
        let config = of("Qwen3ForCausalLM", plain).unwrap();
        assert_eq!((config.rope_theta, config.rope_scaling), (1e6, None));
    }
    let yarn = of(
        "Qwen2ForCausalLM",
        json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}),
    )
    .unwrap();
    assert!(matches!(
        yarn.rope_scaling,
        Some(RopeScaling::Yarn {
            original_max_position_embeddings: 512,
            ..
        })
    ));
    for (change, words) in [
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            "has type dynamic, which is not supported; expected default, linear, llama3 or yarn",
        ),
        (
            json!({"rope_scaling": {"type": "longrope", "factor": 2.0}}),
            "longrope",
        ),
        (
            json!({"rope_scaling": {"type": "linear"}}),
            "rope_scaling = {\"type\":\"linear\"} lacks factor",
        ),
        (
            json!({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}),
            "rope_parameters",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": "two"}}),
            "a factor that is not a number",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 0.0}}),
            "factors must be positive",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}}),
            "rotates only part of each head",
        ),
        (json!({"rope_scaling": "linear"}), "must be an object"),
        (
            json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
            "per layer type",
        ),
        (
            json!({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2.0}}),
            "differs from rope_parameters",
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            "partial_rotary_factor = 0.5",
        ),
    ] {
        let error = of("LlamaForCausalLM", change).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn an_inactive_sliding_window_is_ignored() {
    use serde_json::json;
    for (family, change) in [
        (
            "Qwen2ForCausalLM",
            json!({"use_sliding_window": false, "sliding_window": 64, "max_window_layers": 2}),
        ),
        (
            "Qwen2ForCausalLM",
            json!({"use_sliding_window": true, "sliding_window": 64, "max_window_layers": 4}),
        ),
        (
            "Qwen2ForCausalLM",
            json!({"use_sliding_window": true, "sliding_window": 512, "max_window_layers": 0}),
        ),
        (
            "Qwen3ForCausalLM",
            json!({"use_sliding_window": true, "sliding_window": null, "max_window_layers": 0}),
        ),
        (
            "Qwen3ForCausalLM",
            json!({"layer_types": ["full_attention", "full_attention"], "sliding_window": null}),
        ),
        ("MistralForCausalLM", json!({"sliding_window": null})),
        ("MistralForCausalLM", json!({"sliding_window": 4096})),
        ("LlamaForCausalLM", json!({"sliding_window": 64})),
    ] {
        let config =
            of(family, change.clone()).unwrap_or_else(|error| panic!("{family} {change}: {error}"));
        assert_eq!(
            (config.use_sliding_window, config.sliding_window),
            (false, None)
        );
        let written = serde_json::to_vec(&config).unwrap();
        assert_eq!(ModelConfig::parse(&written).unwrap(), config);
    }
    for (family, change) in [
        (
            "Qwen2ForCausalLM",
            json!({"use_sliding_window": true, "sliding_window": 64, "max_window_layers": 3}),
        ),
        (
            "Qwen3ForCausalLM",
            json!({"use_sliding_window": true, "sliding_window": 64, "layer_types": ["sliding_attention"]}),
        ),
        ("MistralForCausalLM", json!({"sliding_window": 64})),
        (
            "MistralForCausalLM",
            json!({"max_position_embeddings": 32768}),
        ),
    ] {
        let error = of(family, change).unwrap_err();
        assert!(
            error.contains("sliding_window") && error.contains("is active"),
            "{error}"
        );
    }
    let error = of(
        "Qwen3ForCausalLM",
        json!({"layer_types": ["linear_attention"]}),
    )
    .unwrap_err();
    assert!(error.contains("layer_types = linear_attention"), "{error}");
}

#[test]
fn unsupported_features_are_rejected() {
    use serde_json::json;
    for (change, words) in [
        (
            json!({"quantization_config": {"quant_method": "awq"}}),
            "quantization_config",
        ),
        (json!({"num_experts": 8}), "mixture of experts"),
        (json!({"num_local_experts": 8}), "mixture of experts"),
        (
            json!({"final_logit_softcapping": 30.0}),
            "final_logit_softcapping",
        ),
        (
            json!({"hidden_act": "relu"}),
            "hidden_act = relu is not supported; expected silu",
        ),
    ] {
        let error = of("LlamaForCausalLM", change).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let harmless = json!({"quantization_config": null, "num_experts": 0, "torch_dtype": "bfloat16", "dtype": "float16",
        "pretraining_tp": 1, "_name_or_path": "x", "pad_token_id": null});
    assert!(of("LlamaForCausalLM", harmless).is_ok());
}
