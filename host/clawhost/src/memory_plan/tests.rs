//! The plan beside what the engine, the trainer and configurations say.

use std::path::Path;

use clawhost_config::{Dtype, Gpus};
use clawhost_cpu::{HostMemory, MemoryLimit, load_engine};
use clawhost_model::{Model, ModelFiles, Quantization, Weights};
use clawhost_training::STEP_COPIES;

use super::*;
use crate::serve;

fn on(device: DeviceChoice) -> ChosenDevice {
    ChosenDevice {
        device,
        dtype: Dtype::Auto,
        reason: String::new(),
    }
}

fn plan(text: &str) -> (Config, MemoryPlan) {
    let config = Config::parse(text).unwrap();
    let model = Model::check(&ModelFiles::embedded()).unwrap();
    let plan = MemoryPlan::new(&config, &model, &on(DeviceChoice::Cpu), &[]).unwrap();
    (config, plan)
}

fn bytes(plan: &MemoryPlan, name: &str) -> usize {
    let found = plan.uses.iter().find(|one| one.name == name);
    found
        .unwrap_or_else(|| panic!("no {name} in {plan:?}"))
        .bytes
}

#[test]
fn the_plan_of_the_embedded_model_is_what_the_engine_reports() {
    for text in [
        "",
        "[engine]\nquantization = \"int8\"\nkv_cache_memory = \"64MiB\"",
    ] {
        let (config, plan) = plan(text);
        let engine = load_engine(&ModelFiles::embedded(), engine_options(&config)).unwrap();
        let backend = engine.backend();
        assert_eq!(bytes(&plan, "weights"), backend.weight_bytes());
        let blocks = engine.stats().blocks;
        assert_eq!(bytes(&plan, "KV cache"), blocks * backend.block_bytes());
        assert_eq!(plan.kv_cache_tokens, blocks * BLOCK_TOKENS);
        assert_eq!(plan.max_request_tokens, engine.max_request_tokens());
        assert_eq!(plan.threads, engine.model().threads());
        let total: usize = plan.uses.iter().map(|one| one.bytes).sum();
        assert_eq!(plan.total, total);
    }
}

#[test]
fn training_is_in_the_plan_when_it_is_enabled() {
    let (_, on) = plan("");
    let (_, off) = plan("[training]\nenabled = false");
    assert!(off.uses.iter().all(|one| one.name != "optimizer state"));
    assert!(off.total < on.total);
    let (_, bounded) = plan("[training]\nactivation_memory = \"8MiB\"");
    assert!(bytes(&bounded, "stored activations") <= 8 << 20);
    let (_, none) = plan("[training]\nactivation_memory = \"0B\"");
    assert_eq!(bytes(&none, "stored activations"), 0);
    let (_, full) = plan("[training]\nparameters = \"full\"");
    let model = Model::check(&ModelFiles::embedded()).unwrap();
    let values = Weights::planned_bytes(&model, Quantization::None);
    assert_eq!(bytes(&full, "gradients"), values);
    assert_eq!(bytes(&full, "optimizer state"), 4 * values);
    // The copies are packed as the base model is.
    let weights = bytes(&full, "weights");
    assert_eq!(bytes(&full, "trained weights"), STEP_COPIES * weights);
}

#[test]
fn a_plan_that_does_not_fit_is_refused_with_the_keys_to_lower() {
    let (_, plan) = plan("[engine]\nkv_cache_memory = \"8GiB\"");
    let memory = |available: u64, limit: Option<MemoryLimit>| HostMemory {
        total: 64 << 30,
        available,
        limit,
    };
    assert!(plan.check(None).is_ok());
    assert!(plan.check(Some(&memory(32 << 30, None))).is_ok());
    let limit = MemoryLimit {
        limit: 6 << 30,
        used: 1 << 30,
    };
    let error = plan.check(Some(&memory(5 << 30, Some(limit))));
    let error = error.unwrap_err().to_string();
    for part in [
        "5.00 GiB are available (of 6.00 GiB that the control group allows)",
        "KV cache 8.00 GiB",
        "lower or change engine.kv_cache_memory = \"8GiB\", or use",
    ] {
        assert!(error.contains(part), "{error}");
    }
    // With almost no memory, every key that helps is named.
    let error = plan.check(Some(&memory(1 << 20, None)));
    let error = error.unwrap_err().to_string();
    for key in [
        "engine.kv_cache_memory",
        "training.activation_memory",
        "training.max_sample_tokens",
        "engine.quantization",
    ] {
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn a_gpu_has_a_plan_of_its_own() {
    let config = Config::parse("[engine]\nkv_cache_memory = \"8GiB\"").unwrap();
    let model = Model::check(&ModelFiles::embedded()).unwrap();
    let with = |free: u64| {
        let device = on(DeviceChoice::cuda(0));
        MemoryPlan::new(&config, &model, &device, &[gpu(80 << 30, free)]).unwrap()
    };
    let plan = with(16 << 30);
    let device: usize = plan.uses_of(Place::Device).map(|one| one.bytes).sum();
    assert_eq!(plan.device_total, device);
    assert!(plan.total < 8 << 30 && device > 8 << 30);
    assert!(plan.check(None).is_ok());
    let error = with(5 << 30).check(None).unwrap_err().to_string();
    for part in [
        "of GPU memory, and 5.00 GiB are",
        "engine.kv_cache_memory = \"8GiB\"",
    ] {
        assert!(error.contains(part), "{error}");
    }
    // What no key changes is not among the keys to lower.
    let memory = HostMemory {
        total: 64 << 30,
        available: plan.total as u64 - 1,
        limit: None,
    };
    let error = plan.check(Some(&memory)).unwrap_err().to_string();
    assert!(error.contains("loading "), "{error}");
    assert!(!error.contains("change ,"), "{error}");
    // Values in bf16 take half the memory.
    let cpu = MemoryPlan::new(&config, &model, &on(DeviceChoice::Cpu), &[]).unwrap();
    assert_eq!(plan.kv_cache_tokens, 2 * cpu.kv_cache_tokens);
}

fn gpu(total: u64, free: u64) -> DeviceMemory {
    DeviceMemory {
        total,
        used: total - free,
    }
}

/// The shape of Qwen3-4B.
fn four_billion() -> ModelConfig {
    ModelConfig::parse(
        br#"{"architectures": ["Qwen3ForCausalLM"], "hidden_size": 2560, "intermediate_size": 9728,
            "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": true}"#,
    )
    .unwrap()
}

#[test]
fn the_kv_cache_of_a_gpu_takes_what_the_others_leave_of_its_share() {
    let plan = |text: &str, gpu| {
        let config = Config::parse(text).unwrap();
        let device = on(DeviceChoice::cuda(0));
        MemoryPlan::new(&config, &four_billion(), &device, &[gpu]).unwrap()
    };
    let all = gpu(80 << 30, 79 << 30);
    let default = plan("", all);
    let share = (80u64 << 30) * 9 / 10;
    let block = 36 * 2 * 1024 * BLOCK_TOKENS * 2;
    let rest = share as usize - default.device_total;
    assert!(rest < block, "{rest}");
    assert_eq!(
        bytes(&default, "KV cache") / block * 32,
        default.kv_cache_tokens
    );
    assert_eq!(default.uses[1].name, "KV cache");
    assert_eq!(
        default.uses[1].keys,
        ["engine.gpu_memory_utilization = 0.9"]
    );
    assert!(default.kv_cache_tokens > 250_000 && default.check(None).is_ok());
    assert_eq!(default.max_request_tokens, 40960);
    let half = plan("[engine]\ngpu_memory_utilization = 0.5", all);
    let less = bytes(&default, "KV cache") - bytes(&half, "KV cache");
    assert!(less.abs_diff(32 << 30) <= 2 * block, "{less}");
    // Another program has most of the memory.
    let shared = plan("", gpu(80 << 30, 40 << 30));
    assert!((40 << 30) - shared.device_total < block);
    // No more than the requests can fill.
    let few = plan("[engine]\nmax_num_seqs = 2\nmax_model_len = 1000", all);
    assert_eq!(few.kv_cache_tokens, 2 * 1024);
    let error = plan("", gpu(80 << 30, 9 << 30)).check(None).unwrap_err();
    assert!(
        error.to_string().contains("9.00 GiB are available: "),
        "{error}"
    );
    let error = plan("[engine]\ngpu_memory_utilization = 0.1", all).check(None);
    let error = error.unwrap_err().to_string();
    let part = "8.00 GiB are available (engine.gpu_memory_utilization = 0.1 of 80.0 GiB)";
    assert!(error.contains(part), "{error}");
    // An explicit size is what is taken, whatever the share is.
    let text = "[engine]\ngpu_memory_utilization = 0.1\nkv_cache_memory = \"4GiB\"";
    let explicit = plan(text, all);
    assert_eq!(explicit.kv_cache_memory, 4 << 30);
    assert!(explicit.check(None).is_ok());
}

#[test]
fn each_of_several_gpus_holds_the_plan_and_the_smallest_one_sizes_the_kv_cache() {
    let plan = |ordinals: &[usize], gpus: &[DeviceMemory], text: &str| {
        let config = Config::parse(text).unwrap();
        let device = on(DeviceChoice::Cuda(Gpus::of(ordinals.iter().copied())));
        MemoryPlan::new(&config, &four_billion(), &device, gpus).unwrap()
    };
    let (free, used) = (gpu(80 << 30, 79 << 30), gpu(80 << 30, 40 << 30));
    let one = plan(&[0], &[used], "");
    let two = plan(&[0, 3], &[free, used], "");
    let names: Vec<&str> = two.gpus.iter().map(|gpu| gpu.device.as_str()).collect();
    assert_eq!(names, ["cuda:0", "cuda:3"]);
    // The rest of the share of the smaller GPU, less what NCCL takes.
    let less = bytes(&one, "KV cache") - bytes(&two, "KV cache");
    let block = 36 * 2 * 1024 * BLOCK_TOKENS * 2;
    assert!(less.abs_diff(bytes(&two, "sums of gradients")) <= block);
    assert!(two.check(None).is_ok());
    let fixed = "[engine]\nkv_cache_memory = \"30GiB\"";
    let error = plan(&[0, 3], &[free, used], fixed).check(None);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("40.0 GiB are available on cuda:3"),
        "{error}"
    );
    let serving = plan(&[0, 3], &[free, used], "[training]\nenabled = false");
    assert!(
        serving
            .uses
            .iter()
            .all(|one| one.name != "sums of gradients")
    );
}

#[test]
fn four_billion_parameters_serve_and_train_in_24_gib() {
    let text = "[engine]\nmax_model_len = 8192\nmax_num_seqs = 32\nkv_cache_memory = \"6GiB\"";
    let config = Config::parse(text).unwrap();
    let device = on(DeviceChoice::cuda(0));
    let all = [gpu(80 << 30, 79 << 30)];
    let plan = MemoryPlan::new(&config, &four_billion(), &device, &all).unwrap();
    assert_eq!(plan.max_request_tokens, 8192);
    assert!(
        plan.device_total <= 24 << 30,
        "{}",
        plan.summary(Place::Device)
    );
    // The host has no copy of the weights.
    assert!(plan.total < 8 << 30, "{}", plan.summary(Place::Host));
}

#[test]
fn four_billion_parameters_in_four_bits_train_an_adapter_in_8_gb() {
    let text = "[engine]\nquantization = \"int4\"\nmax_model_len = 2048\nmax_num_seqs = 8\n\
        kv_cache_memory = \"512MiB\"\n[training]\nmicro_batch_tokens = 2048";
    let config = Config::parse(text).unwrap();
    let device = on(DeviceChoice::cuda(0));
    let all = [gpu(80 << 30, 79 << 30)];
    let plan = MemoryPlan::new(&config, &four_billion(), &device, &all).unwrap();
    let summary = plan.summary(Place::Device);
    assert!(plan.device_total <= 8_000_000_000, "{summary}");
}

#[test]
fn a_server_that_cannot_fit_is_refused_before_its_weights_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let copy = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    let files = ModelFiles::embedded();
    copy("config.json", files.config());
    copy("tokenizer.json", files.tokenizer().unwrap());
    copy("chat_template.jinja", files.template().unwrap());
    // Reading it would be an error.
    copy("model.safetensors", b"no weights");
    let load = |path: &Path, memory: &str| {
        let mut config = Config::parse("").unwrap();
        let size = clawhost_config::parse_size(memory).unwrap();
        config.engine.kv_cache_memory = Some(size as usize);
        config.model.path = Some(path.to_owned());
        format!("{:#}", serve::load_engine(&config).err().unwrap())
    };
    let error = load(dir.path(), "900TiB");
    assert!(
        error.contains("change engine.kv_cache_memory = \"900TiB\""),
        "{error}"
    );
    let error = load(dir.path(), "1MiB");
    assert!(error.contains("model.safetensors"), "{error}");
}

#[test]
fn sizes_have_three_digits() {
    for (bytes, text) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 20, "1.00 MiB"),
        (513 << 20, "513 MiB"),
        ((1 << 30) + (70 << 20), "1.07 GiB"),
        (22 << 30, "22.0 GiB"),
    ] {
        assert_eq!(human_size(bytes), text);
    }
}
