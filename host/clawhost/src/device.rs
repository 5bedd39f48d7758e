//! Which device runs the model: what `engine.device` asks for and what this program has. What the machine has is found by
//! [`crate::nvidia`] and [`clawhost_cpu::Processors`].

use anyhow::{Result, bail};
use clawhost_config::DeviceChoice;

/// Why there is no other device than the processors.
const ONLY_CPU: &str = "this program has the CPU backend only; the CUDA backend (host/cuda) has not run on a GPU yet and is not part of it";

/// The device that runs the model, and why.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct ChosenDevice {
    /// As in the configuration; never `auto`.
    pub(crate) device: DeviceChoice,
    pub(crate) reason: String,
}

/// Chooses the device of `engine.device`.
///
/// # Errors
/// A device that this program cannot use.
pub(crate) fn choose(configured: DeviceChoice) -> Result<ChosenDevice> {
    let reason = match configured {
        DeviceChoice::Auto => ONLY_CPU.to_owned(),
        DeviceChoice::Cpu => "it is configured".to_owned(),
        DeviceChoice::Cuda(_) => bail!(
            "engine.device = \"{configured}\": {ONLY_CPU}; set engine.device = \"cpu\" (or pass --device cpu)"
        ),
    };
    Ok(ChosenDevice {
        device: DeviceChoice::Cpu,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_refused_with_the_reason_and_the_fix() {
        let error = choose(DeviceChoice::Cuda(0)).unwrap_err().to_string();
        for part in [
            "engine.device = \"cuda:0\"",
            "CPU backend only",
            "engine.device = \"cpu\"",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn auto_chooses_the_processors_and_says_why() {
        let chosen = choose(DeviceChoice::Auto).unwrap();
        assert_eq!(chosen.device, DeviceChoice::Cpu);
        assert!(
            chosen.reason.contains("CPU backend only"),
            "{}",
            chosen.reason
        );
        assert_eq!(choose(DeviceChoice::Cpu).unwrap().device, DeviceChoice::Cpu);
    }
}
