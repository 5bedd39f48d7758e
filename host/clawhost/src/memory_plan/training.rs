//! What trained versions and a training step add to the plan.

use anyhow::Result;
use clawhost_config::{AdapterScope, Config, TrainableParameters, size_text};
use clawhost_cpu::CpuMemory;
use clawhost_engine::TrainLimits;
use clawhost_gateway::GatewayOptions;
use clawhost_model::{ModelConfig, Quantization, Weights};
use clawhost_training::{STEP_COPIES, StepMemory};

use super::backend::BackendMemory;
use super::{MemoryPlan, Place};

impl MemoryPlan {
    /// Adds the trained versions that are served and what a training step takes.
    pub(super) fn add_trained(
        &mut self,
        config: &Config,
        model: &ModelConfig,
        (host, memory): (CpuMemory<'_>, BackendMemory<'_>),
    ) -> Result<()> {
        let options = &config.training;
        let full = options.parameters == TrainableParameters::Full;
        let served = GatewayOptions::new("").versions_in_memory(full)
            + match options.adapters {
                AdapterScope::Shared => 0,
                AdapterScope::Key | AdapterScope::User => options.max_loaded_adapters,
            };
        let shape = match full {
            true => "training.parameters = \"full\"".to_owned(),
            false => format!("training.lora.rank = {}", options.lora.rank),
        };
        // The values of one version in f32, which the host has, and the version as the backend reads it.
        let (values, rank) = match full {
            true => (Weights::planned_bytes(model, Quantization::None), 0),
            false => (host.adapter_values(&options.lora), options.lora.rank),
        };
        let (version, on_device) = match (memory, full) {
            (BackendMemory::Cpu(_), true) => (CpuMemory::new(model, None, 0).weights(), 0),
            (BackendMemory::Cpu(memory), false) => (memory.adapter(&options.lora), 0),
            (BackendMemory::Cuda(memory), true) => (values, memory.weights()),
            (BackendMemory::Cuda(memory), false) => (values, memory.adapter(&options.lora)),
        };
        let versions = match full {
            true => "served copies of the weights",
            false => "served adapters",
        };
        // Full copies exist only where they are trained.
        if !full || options.enabled {
            self.add(versions, Place::Host, served * version, [shape.clone()]);
            if on_device > 0 {
                self.add(versions, Place::Device, served * on_device, [shape.clone()]);
            }
        }
        if !options.enabled {
            return Ok(());
        }
        let step = StepMemory::new(options, values, self.max_request_tokens)?;
        self.add(
            "trained weights",
            Place::Host,
            STEP_COPIES * version,
            [shape.clone(), "training.enabled = true".to_owned()],
        );
        let pass_keys = [
            format!("training.max_sample_tokens = {}", options.max_sample_tokens),
            format!(
                "training.micro_batch_tokens = {}",
                options.micro_batch_tokens
            ),
        ];
        self.add(
            "optimizer state",
            Place::Host,
            step.optimizer_state,
            [shape.clone()],
        );
        match memory {
            BackendMemory::Cpu(memory) => {
                let limits = TrainLimits::from(options);
                let pass = memory.training_pass((step.pass_tokens, step.longest), rank, limits);
                self.add(
                    "gradients",
                    Place::Host,
                    memory.gradients(values, full),
                    [shape],
                );
                let activations = size_text(options.activation_memory as u64);
                self.add(
                    "stored activations",
                    Place::Host,
                    pass.stored,
                    [format!("training.activation_memory = \"{activations}\"")],
                );
                self.add("training pass", Place::Host, pass.working, pass_keys);
            }
            BackendMemory::Cuda(memory) => {
                let spec = (!full).then_some(&options.lora);
                let pass = memory.training_pass(step.pass_tokens, rank);
                self.add(
                    "weights, gradients, moments",
                    Place::Device,
                    memory.session(spec),
                    [shape],
                );
                self.add(
                    "training pass",
                    Place::Device,
                    pass.stored + pass.working,
                    pass_keys.clone(),
                );
                // A teacher scores, or a version is proved, while a step keeps its buffers.
                let scoring = memory.scoring_pass(step.pass_tokens, rank);
                self.add("scoring pass", Place::Device, scoring, pass_keys);
            }
        }
        if step.generated_replies > 0 {
            let top_k = options.rehearsal.top_k;
            self.add(
                "generated replies",
                Place::Host,
                step.generated_replies,
                [format!("training.rehearsal.top_k = {top_k}")],
            );
        }
        Ok(())
    }
}
