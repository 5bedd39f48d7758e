//! Which device runs the model: what `engine.device` asks for and what the machine has; and the model loaded there.

use std::sync::Arc;

use anyhow::{Result, anyhow, bail, ensure};
use clawhost_config::{Config, DeviceChoice, Dtype, Gpus, TrainableParameters};
use clawhost_cpu::{CpuBackend, Processors};
use clawhost_cuda::{CudaBackend, DeviceInfo, Precision};
use clawhost_engine::backend::DeviceMemory;
use clawhost_engine::{Backend, Engine, EngineOptions, ForwardError};
use clawhost_model::{LoadError, Model, ModelConfig, ModelFiles, Quantization, QuantizedFormat};

/// The device that runs the model, and why.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct ChosenDevice {
    /// As in the configuration, with the numbers of all GPUs; never `auto` or `cuda:all`.
    pub(crate) device: DeviceChoice,
    /// Never `auto`.
    pub(crate) dtype: Dtype,
    pub(crate) reason: String,
}

impl ChosenDevice {
    /// The processors.
    pub(crate) fn cpu() -> Self {
        Self {
            device: DeviceChoice::Cpu,
            dtype: Dtype::Float32,
            reason: "it is configured".to_owned(),
        }
    }

    /// How the processors store the weights of linear layers; `None` is f32.
    pub(crate) fn host_format(&self, quantization: Quantization) -> Option<QuantizedFormat> {
        let of_dtype = (self.dtype == Dtype::Bfloat16).then_some(QuantizedFormat::Bf16);
        QuantizedFormat::of(quantization).or(of_dtype)
    }

    /// How the GPU stores weights and activations.
    pub(crate) fn precision(&self) -> Precision {
        match self.dtype {
            Dtype::Float32 => Precision::F32,
            Dtype::Auto | Dtype::Bfloat16 => Precision::Bf16,
        }
    }

    /// With the number format that is configured.
    fn with_dtype(self, configured: Dtype) -> Result<Self> {
        let on_gpu = matches!(self.device, DeviceChoice::Cuda(_));
        let dtype = match (configured, on_gpu) {
            (Dtype::Auto, true) => Dtype::Bfloat16,
            (Dtype::Auto, false) => Dtype::Float32,
            (dtype, _) => dtype,
        };
        Ok(Self { dtype, ..self })
    }

    /// With `engine.dtype = "auto"` on the CPU, a large checkpoint in bf16 stays in bf16 where the processors have
    /// instructions for it: it takes half the memory, and replies are those of float32. Files that cannot be read are
    /// reported when they are loaded.
    pub(crate) fn for_checkpoint(
        self,
        files: &ModelFiles,
        configured: (Dtype, Quantization, TrainableParameters),
    ) -> Self {
        self.for_checkpoint_on(files, configured, Processors::detect)
    }

    /// As [`Self::for_checkpoint`], on given processors.
    fn for_checkpoint_on(
        self,
        files: &ModelFiles,
        configured: (Dtype, Quantization, TrainableParameters),
        processors: impl FnOnce() -> Processors,
    ) -> Self {
        let auto = (Dtype::Auto, Quantization::None, TrainableParameters::Lora);
        let keeps = || {
            let config = ModelConfig::parse(files.config());
            config.is_ok_and(|config| CpuBackend::keeps_bf16(&config, &processors()))
                && files.is_in_bf16().unwrap_or(false)
        };
        if self.device == DeviceChoice::Cpu && configured == auto && keeps() {
            return Self {
                dtype: Dtype::Bfloat16,
                ..self
            };
        }
        self
    }

    /// The numbers of the GPUs; none on the CPU.
    pub(crate) fn gpus(&self) -> Vec<usize> {
        match self.device {
            DeviceChoice::Cuda(gpus) => gpus.ordinals().collect(),
            DeviceChoice::Auto | DeviceChoice::Cpu => Vec::new(),
        }
    }

    fn check_training(&self, parameters: TrainableParameters) -> Result<()> {
        let in_bf16 = self.dtype == Dtype::Bfloat16 && self.device == DeviceChoice::Cpu;
        ensure!(
            !(in_bf16 && parameters == TrainableParameters::Full),
            "engine.dtype = \"bfloat16\": the CPU trains all weights in float32 only; set engine.dtype = \"auto\", or training.parameters = \"lora\""
        );
        Ok(())
    }

    /// The memory of each GPU as of now; none on the CPU.
    ///
    /// # Errors
    /// The driver cannot use a GPU.
    pub(crate) fn gpu_memory(&self) -> Result<Vec<DeviceMemory>> {
        let gpus = self.gpus().into_iter();
        Ok(gpus.map(clawhost_cuda::memory).collect::<Result<_, _>>()?)
    }

    /// Loads a checkpoint onto the device.
    ///
    /// # Errors
    /// A malformed file, or what the device lacks.
    pub(crate) fn load(
        &self,
        files: &ModelFiles,
        options: &EngineOptions,
    ) -> Result<Arc<dyn Backend>, LoadError> {
        let quantization = options.quantization;
        Ok(match self.device {
            DeviceChoice::Cuda(_) => {
                let (gpus, precision) = (self.gpus(), self.precision());
                let loaded = CudaBackend::load_each(&gpus, files, quantization, precision)?;
                clawhost_cuda::replicate(gpus.into_iter().zip(loaded).collect())
            }
            DeviceChoice::Auto | DeviceChoice::Cpu => {
                let format = self.host_format(quantization);
                Arc::new(CpuBackend::load(files, format, options.num_threads)?)
            }
        })
    }

    /// Runs a model in memory on the device.
    ///
    /// # Errors
    /// What the device lacks.
    pub(crate) fn run(&self, model: Model) -> Result<Arc<dyn Backend>> {
        let model = Arc::new(model);
        Ok(match self.device {
            DeviceChoice::Cuda(_) => {
                let run = |gpu: usize| {
                    let backend = CudaBackend::new(gpu, Arc::clone(&model), self.precision())?;
                    Ok((gpu, backend))
                };
                let gpus: Result<_, ForwardError> = self.gpus().into_iter().map(run).collect();
                clawhost_cuda::replicate(gpus?)
            }
            DeviceChoice::Auto | DeviceChoice::Cpu => Arc::new(CpuBackend::new(model)),
        })
    }

    /// Loads a checkpoint onto the device and starts an engine on it.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(crate) fn start(
        &self,
        files: &ModelFiles,
        options: EngineOptions,
    ) -> Result<Engine, LoadError> {
        Engine::load(self.load(files, &options)?, files, options)
    }
}

/// Chooses the device of `engine.device` and the number format of `engine.dtype`.
///
/// # Errors
/// A device that this program cannot use, or a format that the device does not have.
pub(crate) fn choose(configured: DeviceChoice, dtype: Dtype) -> Result<ChosenDevice> {
    let chosen = choose_of(configured, || {
        let gpus = clawhost_cuda::devices()?;
        if !gpus.is_empty() {
            clawhost_cuda::check_libraries()?;
        }
        Ok::<_, ForwardError>(gpus)
    })?;
    chosen.with_dtype(dtype)
}

/// As [`choose`], for a configuration and the checkpoint, if it is known.
///
/// # Errors
/// As [`choose`], or a format in which the device does not train what is configured.
pub(crate) fn choose_for(config: &Config, files: Option<&ModelFiles>) -> Result<ChosenDevice> {
    let chosen = choose(config.engine.device, config.engine.dtype)?;
    chosen.check_training(config.training.parameters)?;
    let Some(files) = files else {
        return Ok(chosen);
    };
    let engine = &config.engine;
    let configured = (
        engine.dtype,
        engine.quantization,
        config.training.parameters,
    );
    Ok(chosen.for_checkpoint(files, configured))
}

fn choose_of<E: std::fmt::Display>(
    configured: DeviceChoice,
    gpus: impl FnOnce() -> Result<Vec<DeviceInfo>, E>,
) -> Result<ChosenDevice> {
    let chosen = |device, reason: String| {
        Ok(ChosenDevice {
            device,
            dtype: Dtype::Auto,
            reason,
        })
    };
    match configured {
        DeviceChoice::Cpu => Ok(ChosenDevice::cpu()),
        DeviceChoice::Auto => match gpus() {
            Err(error) => chosen(DeviceChoice::Cpu, format!("no GPU can be used: {error}")),
            Ok(gpus) => match gpus.iter().find(|gpu| gpu.is_supported()) {
                Some(gpu) => chosen(
                    DeviceChoice::cuda(gpu.ordinal),
                    format!("{} is the first GPU", gpu.device.name),
                ),
                None => chosen(
                    DeviceChoice::Cpu,
                    "there is no NVIDIA GPU of compute capability 8.0 or newer".to_owned(),
                ),
            },
        },
        DeviceChoice::Cuda(wanted) => {
            let fix = "set engine.device = \"cpu\" (or pass --device cpu), or see clawhost doctor";
            let gpus = gpus()
                .map_err(|error| anyhow!("engine.device = \"{configured}\": {error}; {fix}"))?;
            if gpus.is_empty() {
                bail!(
                    "engine.device = \"{configured}\": this machine has no NVIDIA GPU, or no driver; {fix}"
                );
            }
            let ordinals: Vec<usize> = match wanted {
                Gpus::ALL => gpus.iter().map(|gpu| gpu.ordinal).collect(),
                wanted => wanted.ordinals().collect(),
            };
            for ordinal in &ordinals {
                match gpus.iter().find(|gpu| gpu.ordinal == *ordinal) {
                    Some(gpu) if gpu.is_supported() => {}
                    Some(gpu) => bail!(
                        "engine.device = \"{configured}\": {} has compute capability {}.{}, and the kernels need 8.0; {fix}",
                        gpu.device.name,
                        gpu.compute_capability.0,
                        gpu.compute_capability.1
                    ),
                    None => bail!(
                        "engine.device = \"{configured}\": this machine has {} GPUs, counted from 0; {fix}",
                        gpus.len()
                    ),
                }
            }
            let device = DeviceChoice::Cuda(Gpus::of(ordinals));
            chosen(device, "it is configured".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(ordinal: usize, compute_capability: (i32, i32)) -> DeviceInfo {
        DeviceInfo {
            ordinal,
            device: clawhost_engine::backend::Device {
                name: format!("GPU {ordinal}"),
                memory: None,
            },
            compute_capability,
        }
    }

    fn chosen(configured: DeviceChoice, gpus: &[DeviceInfo]) -> Result<ChosenDevice> {
        choose_of(configured, || Ok::<_, String>(gpus.to_vec()))
    }

    #[test]
    fn a_gpu_that_is_not_there_is_refused_with_the_reason_and_the_fix() {
        let old = [gpu(0, (7, 5))];
        for (gpus, reason) in [
            (&[][..], "no NVIDIA GPU"),
            (&old, "compute capability 7.5"),
            (&[gpu(1, (9, 0))], "1 GPUs"),
        ] {
            let error = chosen(DeviceChoice::cuda(0), gpus).unwrap_err().to_string();
            for part in [
                "engine.device = \"cuda:0\"",
                reason,
                "engine.device = \"cpu\"",
            ] {
                assert!(error.contains(part), "{error}");
            }
        }
        let broken = choose_of(DeviceChoice::cuda(0), || Err("the driver is too old"));
        let error = broken.unwrap_err().to_string();
        assert!(error.contains("the driver is too old"), "{error}");
    }

    #[test]
    fn auto_chooses_the_first_gpu_that_runs_the_kernels_and_else_the_processors() {
        let gpus = [gpu(0, (7, 5)), gpu(1, (9, 0))];
        let auto = |gpus: &[DeviceInfo]| chosen(DeviceChoice::Auto, gpus).unwrap();
        assert_eq!(auto(&gpus).device, DeviceChoice::cuda(1));
        assert!(auto(&gpus).reason.contains("GPU 1"));
        assert_eq!(auto(&gpus[..1]).device, DeviceChoice::Cpu);
        assert!(auto(&[]).reason.contains("no NVIDIA GPU"));
        let broken = choose_of(DeviceChoice::Auto, || Err("the driver is too old")).unwrap();
        assert_eq!(broken.device, DeviceChoice::Cpu);
        assert!(broken.reason.contains("the driver is too old"));
    }

    #[test]
    fn several_gpus_are_all_there_and_run_the_kernels() {
        let two = [gpu(0, (9, 0)), gpu(1, (9, 0))];
        let both = DeviceChoice::Cuda(Gpus::of([0, 1]));
        for configured in [both, DeviceChoice::Cuda(Gpus::ALL)] {
            let chosen = chosen(configured, &two).unwrap();
            assert_eq!((chosen.device, chosen.gpus()), (both, vec![0, 1]));
        }
        let old = [gpu(0, (9, 0)), gpu(1, (7, 5))];
        for (gpus, reason) in [(&two[..1], "1 GPUs"), (&old, "GPU 1 has compute")] {
            let error = chosen(both, gpus).unwrap_err().to_string();
            assert!(
                error.contains("\"cuda:0,1\"") && error.contains(reason),
                "{error}"
            );
        }
    }

    #[test]
    fn a_device_has_its_number_formats() {
        let with = |device, dtype| {
            let all = [gpu(0, (9, 0))];
            chosen(device, &all).unwrap().with_dtype(dtype)
        };
        let (cpu, cuda) = (DeviceChoice::Cpu, DeviceChoice::cuda(0));
        assert_eq!(with(cpu, Dtype::Auto).unwrap().dtype, Dtype::Float32);
        assert_eq!(
            with(cuda, Dtype::Auto).unwrap().precision(),
            Precision::Bf16
        );
        assert_eq!(
            with(cuda, Dtype::Float32).unwrap().precision(),
            Precision::F32
        );
        let format = |dtype, quantization| with(cpu, dtype).unwrap().host_format(quantization);
        assert_eq!(format(Dtype::Auto, Quantization::None), None);
        assert_eq!(
            format(Dtype::Bfloat16, Quantization::None),
            Some(QuantizedFormat::Bf16)
        );
        assert_eq!(
            format(Dtype::Bfloat16, Quantization::Int4),
            Some(QuantizedFormat::Int4)
        );
    }

    #[test]
    fn a_large_checkpoint_in_bf16_stays_so_where_the_processors_know_it() {
        let dir = tempfile::tempdir().unwrap();
        let files = |layers: u32, dtype: &str| {
            let config = serde_json::json!({
                "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 4096,
                "num_hidden_layers": layers, "num_attention_heads": 16, "vocab_size": 32000, "max_position_embeddings": 2048,
                "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
            });
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            // Headers only: nothing is read.
            let tensor = serde_json::json!({
                "m": {"dtype": dtype, "shape": [1, 2], "data_offsets": [0, 4]},
                "norm": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
            });
            let header = tensor.to_string();
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.bytes());
            bytes.extend([0; 8]);
            std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
            ModelFiles::from_dir(dir.path()).unwrap()
        };
        let processors = |has| Processors {
            vector_instructions: vec![("avx512-bf16", has)],
            ..Processors::detect()
        };
        let auto = (Dtype::Auto, Quantization::None, TrainableParameters::Lora);
        let dtype =
            |layers, stored, configured: (Dtype, Quantization, TrainableParameters), has| {
                let chosen = ChosenDevice::cpu().with_dtype(configured.0).unwrap();
                let files = files(layers, stored);
                chosen
                    .for_checkpoint_on(&files, configured, || processors(has))
                    .dtype
            };
        assert_eq!(dtype(24, "BF16", auto, true), Dtype::Bfloat16);
        assert_eq!(dtype(24, "BF16", auto, false), Dtype::Float32);
        assert_eq!(dtype(24, "F16", auto, true), Dtype::Float32);
        // Small enough to be packed.
        assert_eq!(dtype(1, "BF16", auto, true), Dtype::Float32);
        for configured in [
            (Dtype::Float32, auto.1, auto.2),
            (auto.0, Quantization::Int8, auto.2),
            (auto.0, auto.1, TrainableParameters::Full),
        ] {
            assert_eq!(dtype(24, "BF16", configured, true), Dtype::Float32);
        }
    }

    #[test]
    fn weights_in_bf16_are_not_trained_on_the_cpu() {
        let with = |device, dtype, parameters| {
            let chosen = chosen(device, &[gpu(0, (9, 0))]).unwrap();
            chosen.with_dtype(dtype).unwrap().check_training(parameters)
        };
        let (cpu, full) = (DeviceChoice::Cpu, TrainableParameters::Full);
        let error = with(cpu, Dtype::Bfloat16, full).unwrap_err().to_string();
        assert!(error.contains("training.parameters = \"lora\""), "{error}");
        assert!(with(cpu, Dtype::Bfloat16, TrainableParameters::Lora).is_ok());
        assert!(with(cpu, Dtype::Auto, full).is_ok());
        assert!(with(DeviceChoice::Cuda(Gpus::of([0])), Dtype::Bfloat16, full).is_ok());
    }

    #[test]
    fn the_processors_need_no_driver() {
        let never = || -> Result<Vec<DeviceInfo>, String> { Err("asked".to_owned()) };
        let chosen = choose_of(DeviceChoice::Cpu, never).unwrap();
        assert_eq!(
            (chosen.device, chosen.reason.as_str()),
            (DeviceChoice::Cpu, "it is configured")
        );
    }
}
