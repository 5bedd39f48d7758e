//! `clawhost doctor`: what the machine has, what this program would choose for the configured model, and whether the model
//! would start. Reads the files of the model but not its weights, and starts nothing.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use clawhost_config::{DeviceChoice, Dtype, TrainableParameters};
use clawhost_cpu::{HostMemory, Processors};
use clawhost_cuda::NCCL;
use clawhost_engine::Engine;
use clawhost_model::{Model, ModelConfig, Quantization, Weights};
use serde_json::{Value, json};

use crate::config::Config;
use crate::device::{self, ChosenDevice};
use crate::memory_plan::{MemoryPlan, Place, human_size};
use crate::nvidia::Gpus;
use crate::output::{join_or, one_line, print_result};
use crate::serve::model_files;

/// Arguments of `clawhost doctor`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost doctor\n  clawhost doctor --model ./Qwen3-0.6B --set engine.quantization=int8\n  \
    clawhost doctor --config clawhost.toml --json\n\n\
    Exit codes: 0 the configured model would start, 1 it would not, 2 wrong usage."
)]
pub(crate) struct DoctorArgs {
    /// Model directory (Hugging Face layout) or GGUF file instead of the configured one
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key of the configuration; can be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Device that runs the model, as engine.device: auto, cpu, cuda:N, or several GPUs as in cuda:0,1
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode> {
    let machine = Machine {
        processors: Processors::detect(),
        memory: HostMemory::detect(),
        gpus: Gpus::detect(),
    };
    let config = Config::load(args.config.as_deref(), &args.set, args.model.as_deref());
    let mut start = Start::default();
    match config {
        Ok(mut config) => {
            if let Some(device) = args.device {
                config.engine.device = device;
            }
            start.examine(&config, machine.memory.as_ref());
        }
        Err(error) => start.problems.push(error.to_string()),
    }
    print_result(args.json, &json(&machine, &start), || {
        machine.text() + &start.text(machine.memory.as_ref())
    })?;
    Ok(match start.problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// All of it as one object.
fn json(machine: &Machine, start: &Start) -> Value {
    let mut value = machine.json();
    value["device"] = json!(start.device);
    value["model"] = json!(start.model);
    value["plan"] = json!(start.plan);
    value["starts"] = json!(start.problems.is_empty());
    value["problems"] = json!(start.problems);
    value
}

/// What the machine has.
struct Machine {
    processors: Processors,
    memory: Option<HostMemory>,
    gpus: Gpus,
}

impl Machine {
    fn json(&self) -> Value {
        let processors = &self.processors;
        let instructions = processors.vector_instructions.iter();
        let instructions: serde_json::Map<String, Value> = instructions
            .map(|(name, has)| ((*name).to_owned(), json!(has)))
            .collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "processors": {
                "name": processors.name,
                "cores": processors.cores,
                "threads": processors.threads,
                "usable_threads": processors.usable_threads,
                "quota": processors.quota,
                "vector_instructions": instructions,
                "kernel_lanes": processors.kernel_lanes,
            },
            "gpus": self.gpus,
            "memory": self.memory.map(|memory| json!({
                "total": memory.total,
                "available": memory.available,
                "limit": memory.limit.map(|limit| json!({"bytes": limit.limit, "used": limit.used})),
            })),
        })
    }

    fn text(&self) -> String {
        let processors = &self.processors;
        let mut text = String::new();
        line(&mut text, "processor", &processors.name);
        let count = |count: Option<usize>, what: &str| count.map(|count| format!("{count} {what}"));
        let counts = [
            count(processors.cores, "cores"),
            count(processors.threads, "threads"),
        ];
        let counts: Vec<String> = counts.into_iter().flatten().collect();
        let mut usable = format!("{} usable", processors.usable_threads);
        if let Some(quota) = processors.quota {
            let _ = write!(usable, " (the control group allows {quota} processors)");
        }
        let counts = join_or(&[counts, vec![usable]].concat(), ", ", "");
        line(&mut text, "", &counts);
        let named = |has: bool| -> Vec<String> {
            let instructions = processors.vector_instructions.iter();
            let instructions = instructions.filter(|(_, found)| *found == has);
            instructions.map(|(name, _)| name.to_uppercase()).collect()
        };
        let vectors = format!(
            "vector instructions: {}; not {}; the kernels use vectors of {} bits",
            join_or(&named(true), ", ", "unknown"),
            join_or(&named(false), ", ", "known"),
            processors.kernel_lanes * 8 * size_of::<f32>(),
        );
        line(&mut text, "", &vectors);
        let memory = match self.memory {
            None => "unknown".to_owned(),
            Some(memory) => format!(
                "{} in total, {} available, {}",
                human_size(memory.total),
                human_size(memory.available),
                match memory.limit {
                    None => "no limit by a control group".to_owned(),
                    Some(limit) => format!(
                        "the control group allows {}, of which {} are used",
                        human_size(limit.limit),
                        human_size(limit.used)
                    ),
                }
            ),
        };
        line(&mut text, "memory", &memory);
        self.gpu_lines(&mut text);
        text
    }

    fn gpu_lines(&self, text: &mut String) {
        let gpus = &self.gpus;
        let mut title = "GPU";
        for gpu in &gpus.devices {
            let mut about = format!("{}: {}", gpu.device, gpu.name);
            if let Some(memory) = gpu.memory {
                let _ = write!(about, ", {}", human_size(memory));
            }
            if let Some(capability) = &gpu.compute_capability {
                let _ = write!(about, ", compute capability {capability}");
            }
            line(text, std::mem::take(&mut title), &about);
        }
        let versions = [
            gpus.driver
                .as_ref()
                .map(|version| format!("driver {version}")),
            gpus.cuda
                .as_ref()
                .map(|version| format!("CUDA up to {version}")),
        ];
        let versions: Vec<String> = versions.into_iter().flatten().collect();
        if !versions.is_empty() {
            line(text, std::mem::take(&mut title), &versions.join(", "));
        }
        if let Some(problem) = &gpus.problem {
            line(text, title, problem);
        }
    }
}

/// The uses of one memory, one a line.
fn plan_lines(text: &mut String, plan: &MemoryPlan, place: Place) {
    for one in plan.uses_of(place) {
        let size = human_size(one.bytes as u64);
        let keys = one.keys.join(", ");
        let _ = writeln!(text, "  {:<28} {size:>10}   {keys}", one.name);
    }
}

fn total_line(text: &mut String, bytes: usize, available: &str) {
    let total = human_size(bytes as u64);
    let _ = writeln!(text, "  {:<28} {total:>10}   of {available}", "total");
}

/// What the program would do with the configured model; what a problem keeps unknown is none.
#[derive(Default)]
struct Start {
    device: Option<ChosenDevice>,
    /// What sums the gradients of several GPUs.
    sums: Option<String>,
    model: Option<Value>,
    plan: Option<MemoryPlan>,
    /// Why the model would not start.
    problems: Vec<String>,
}

impl Start {
    /// Goes through what a start does before it reads the weights, and collects every problem instead of stopping at the
    /// first one.
    fn examine(&mut self, config: &Config, memory: Option<&HostMemory>) {
        let files = model_files(config.model.path.as_deref());
        let chosen = device::choose_for(config, files.as_ref().ok());
        self.device = self.note(chosen);
        let several = |device: &ChosenDevice| device.gpus().len() > 1;
        if config.training.enabled && self.device.as_ref().is_some_and(several) {
            self.sums = Some(match clawhost_cuda::check_nccl() {
                Ok(()) => format!("gradients are summed by NCCL ({NCCL})"),
                Err(error) => format!("gradients are summed in host memory, slowly: {error}"),
            });
        }
        let Some(files) = self.note(files) else {
            return;
        };
        let checked = Model::check(&files).and_then(|model| Engine::check_files(&files, &model));
        self.note(checked.with_context(|| format!("cannot load the model {}", files.name())));
        // Of a model whose weights cannot be loaded, too.
        let Ok(model) = ModelConfig::parse(files.config()) else {
            return;
        };
        self.model = Some(describe(config, &model, files.name()));
        let gpus = self.device.as_ref().map(ChosenDevice::gpu_memory);
        let gpus = self.note(gpus.transpose()).flatten().unwrap_or_default();
        let plan = match &self.device {
            Some(device) => MemoryPlan::new(config, &model, device, &gpus),
            None => MemoryPlan::new(config, &model, &ChosenDevice::cpu(), &[]),
        };
        self.plan = self.note(plan);
        let fits = self.plan.as_ref().map(|plan| plan.check(memory));
        self.note(fits.transpose());
    }

    /// The value, or none and one more problem.
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result
            .map_err(|error| self.problems.push(one_line(&format!("{error:#}"))))
            .ok()
    }

    fn text(&self, memory: Option<&HostMemory>) -> String {
        let mut text = String::from("\n");
        if let Some(model) = &self.model {
            let of = |key: &str| match &model[key] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let about = format!(
                "{}: {}, {} layers, {:.1} million parameters, context of {} tokens",
                of("name"),
                of("architecture"),
                of("layers"),
                model["parameters"].as_f64().unwrap_or_default() / 1e6,
                of("context"),
            );
            line(&mut text, "model", &about);
            let dtype = self.device.as_ref().map(|chosen| chosen.dtype);
            let dtype = dtype.unwrap_or(Dtype::Float32);
            let weights = match of("quantization").as_str() {
                "none" => dtype.to_string(),
                quantized => format!("{quantized}, activations in {dtype}"),
            };
            let about = format!("weights in {weights}, training: {}", of("training"));
            line(&mut text, "", &about);
        }
        if let Some(ChosenDevice {
            device,
            dtype,
            reason,
        }) = &self.device
        {
            line(
                &mut text,
                "device",
                &format!("{device} in {dtype}: {reason}"),
            );
        }
        if let Some(sums) = &self.sums {
            line(&mut text, "", sums);
        }
        if let Some(plan) = &self.plan {
            let about = format!(
                "{} per product, requests of up to {} tokens, KV cache of {} tokens",
                match plan.threads {
                    1 => "1 thread".to_owned(),
                    threads => format!("{threads} threads"),
                },
                plan.max_request_tokens,
                plan.kv_cache_tokens,
            );
            line(&mut text, "", &about);
            text.push_str("\nmemory at most\n");
            plan_lines(&mut text, plan, Place::Host);
            let available = memory.map_or("an unknown amount".to_owned(), |memory| {
                format!("{} available", human_size(memory.available))
            });
            total_line(&mut text, plan.total, &available);
            if plan.device_total > 0 {
                text.push_str(match plan.gpus.len() {
                    0 | 1 => "\nGPU memory at most\n",
                    _ => "\nmemory of each GPU at most\n",
                });
                plan_lines(&mut text, plan, Place::Device);
                for gpu in &plan.gpus {
                    let available = human_size(gpu.available);
                    let available = format!("{available} available on {}", gpu.device);
                    total_line(&mut text, plan.device_total, &available);
                }
                if plan.gpus.is_empty() {
                    total_line(&mut text, plan.device_total, "an unknown amount");
                }
            }
        }
        match self.problems.as_slice() {
            [] => text.push_str("\nThe model would start.\n"),
            problems => {
                text.push_str("\nThe model would not start:\n");
                for problem in problems {
                    let _ = writeln!(text, "- {problem}");
                }
            }
        }
        text
    }
}

/// The configured model.
fn describe(config: &Config, model: &ModelConfig, name: &str) -> Value {
    let training = &config.training;
    let training = match (training.enabled, training.parameters) {
        (false, _) => "off".to_owned(),
        (true, TrainableParameters::Full) => "all parameters".to_owned(),
        (true, TrainableParameters::Lora) => format!("LoRA of rank {}", training.lora.rank),
    };
    json!({
        "name": name,
        "path": config.model.path,
        "architecture": model.architectures.first(),
        "layers": model.num_hidden_layers,
        "parameters": Weights::planned_bytes(model, Quantization::None) / size_of::<f32>(),
        "context": model.max_position_embeddings,
        "quantization": config.engine.quantization,
        "training": training,
    })
}

fn line(text: &mut String, title: &str, about: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{title:<10} {about}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: HostMemory = HostMemory {
        total: 64 << 30,
        available: 32 << 30,
        limit: None,
    };

    fn machine() -> Machine {
        Machine {
            processors: Processors {
                name: "Some CPU".to_owned(),
                cores: Some(4),
                threads: Some(8),
                usable_threads: 2,
                quota: Some(2.0),
                vector_instructions: vec![("avx2", true), ("avx512", true), ("amx", false)],
                kernel_lanes: 16,
            },
            memory: Some(MEMORY),
            gpus: Gpus {
                driver: None,
                cuda: None,
                devices: Vec::new(),
                problem: Some("there is no NVIDIA driver".to_owned()),
            },
        }
    }

    fn start(text: &str) -> Start {
        let mut start = Start::default();
        start.examine(&Config::parse(text).unwrap(), Some(&MEMORY));
        start
    }

    #[test]
    fn the_object_has_what_was_found_and_chosen() {
        let value = json(&machine(), &start(""));
        for (pointer, expected) in [
            ("/processors/usable_threads", json!(2)),
            ("/processors/vector_instructions/avx512", json!(true)),
            ("/processors/vector_instructions/amx", json!(false)),
            ("/gpus/devices", json!([])),
            ("/gpus/problem", json!("there is no NVIDIA driver")),
            ("/memory/available", json!(MEMORY.available)),
            ("/memory/limit", json!(null)),
            ("/device/device", json!("cpu")),
            ("/model/name", json!("clawhost-mini")),
            ("/model/layers", json!(4)),
            ("/plan/uses/0/name", json!("weights")),
            (
                "/plan/uses/1/keys/0",
                json!("engine.kv_cache_memory = \"1GiB\""),
            ),
            ("/starts", json!(true)),
            ("/problems", json!([])),
        ] {
            assert_eq!(value.pointer(pointer), Some(&expected), "{pointer}");
        }
    }

    #[test]
    fn the_table_has_every_use_of_memory_with_its_keys() {
        let text = machine().text() + &start("").text(Some(&MEMORY));
        for part in [
            "Some CPU",
            "4 cores, 8 threads, 2 usable (the control group allows 2 processors)",
            "vector instructions: AVX2, AVX512; not AMX; the kernels use vectors of 512 bits",
            "there is no NVIDIA driver",
            "clawhost-mini: Qwen3ForCausalLM, 4 layers",
            "KV cache",
            "training.activation_memory = \"2GiB\"",
            "of 32.0 GiB available",
            "The model would start.",
        ] {
            assert!(text.contains(part), "no {part} in:\n{text}");
        }
    }

    #[test]
    fn the_number_format_of_the_weights_is_the_one_that_the_device_would_use() {
        let text = |dtype, set: &str| {
            let mut start = start(set);
            let device = start.device.as_mut().unwrap();
            device.dtype = dtype;
            start.text(Some(&MEMORY))
        };
        for (dtype, set, expected) in [
            (Dtype::Float32, "", "weights in float32, training"),
            (Dtype::Bfloat16, "", "weights in bfloat16, training"),
            (
                Dtype::Bfloat16,
                "[engine]\nquantization = \"int4\"",
                "weights in int4, activations in bfloat16, training",
            ),
        ] {
            let text = text(dtype, set);
            assert!(text.contains(expected), "no {expected} in:\n{text}");
        }
    }

    #[test]
    fn every_problem_is_listed() {
        let all = start("[engine]\ndevice = \"cuda:99\"\nkv_cache_memory = \"900GiB\"");
        let [device, memory] = all.problems.as_slice() else {
            panic!("{:?}", all.problems);
        };
        assert!(device.contains("engine.device = \"cpu\""), "{device}");
        assert!(memory.contains("engine.kv_cache_memory"), "{memory}");
        let text = all.text(Some(&MEMORY));
        assert!(text.contains("would not start:\n- engine.device"), "{text}");
        let missing = start("[model]\npath = \"no such directory\"");
        assert!(missing.model.is_none() && missing.plan.is_none());
        let problem = &missing.problems[0];
        assert!(problem.contains("config.json"), "{problem}");
        let value = json(&machine(), &missing);
        assert_eq!(value["starts"], json!(false));
        assert_eq!(value["plan"], json!(null));
    }
}
