//! The NVIDIA GPUs of this machine, for `clawhost doctor`. Reads names and sizes only; creates no context and runs nothing.

use std::fs;
use std::path::Path;

use clawhost_cuda::{DRIVER, DeviceInfo};
use clawhost_engine::ForwardError;
use serde::Serialize;

/// Where the driver's kernel module describes itself.
const PROC: &str = "/proc/driver/nvidia";

/// What was found of the driver and its GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Gpus {
    /// Version of the kernel module, such as 570.86.15.
    pub(crate) driver: Option<String>,
    /// Newest version of CUDA that the driver's library runs, such as 12.8.
    pub(crate) cuda: Option<String>,
    pub(crate) devices: Vec<Gpu>,
    /// Why there are no devices, or why a program cannot use them; and what that means.
    pub(crate) problem: Option<String>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Gpu {
    /// Its name in the configuration, such as `cuda:0`.
    pub(crate) device: String,
    pub(crate) name: String,
    /// Bytes; unknown without the library.
    pub(crate) memory: Option<u64>,
    /// Such as 9.0; unknown without the library.
    pub(crate) compute_capability: Option<String>,
}

impl Gpus {
    /// Asks the driver. The first call in a process takes some tenths of a second where there is one.
    pub(crate) fn detect() -> Self {
        let found = clawhost_cuda::has_driver().then(|| {
            let (major, minor) = clawhost_cuda::driver_version()?;
            let devices = clawhost_cuda::devices()?;
            Ok((
                format!("{major}.{minor}"),
                devices.iter().map(Gpu::new).collect(),
            ))
        });
        Self::of(found, Path::new(PROC))
    }

    /// What was found: nothing without the driver's library, else its version of CUDA and its GPUs.
    fn of(found: Option<Result<(String, Vec<Gpu>), ForwardError>>, proc: &Path) -> Self {
        let driver = fs::read_to_string(proc.join("version"))
            .ok()
            .and_then(|text| module_version(&text));
        match found {
            None => {
                let devices = devices_of_module(proc);
                let problem = match (&driver, devices.is_empty()) {
                    (None, true) => format!(
                        "there is no NVIDIA driver ({DRIVER} and {} are missing), so no GPU can be used; the CPU needs none",
                        proc.display()
                    ),
                    _ => format!(
                        "the driver's kernel module is loaded, but its library {DRIVER} was not found, so no program can use the \
                         GPUs; install the driver's libraries, or start the container with the NVIDIA container toolkit \
                         (docker run --gpus all)"
                    ),
                };
                Self {
                    driver,
                    cuda: None,
                    devices,
                    problem: Some(problem),
                }
            }
            Some(Ok((cuda, devices))) => Self {
                driver,
                cuda: Some(cuda),
                problem: devices
                    .is_empty()
                    .then(|| "the driver is there, but it has no GPU".to_owned()),
                devices,
            },
            Some(Err(error)) => Self {
                driver,
                cuda: None,
                devices: devices_of_module(proc),
                problem: Some(format!(
                    "{DRIVER} was found but does not work: {error}, so no GPU can be used; reinstall the driver, or restart \
                     the machine if it was updated"
                )),
            },
        }
    }
}

impl Gpu {
    fn new(info: &DeviceInfo) -> Self {
        let (major, minor) = info.compute_capability;
        Self {
            device: format!("cuda:{}", info.ordinal),
            name: info.device.name.clone(),
            memory: info.device.memory.map(|memory| memory.total),
            compute_capability: Some(format!("{major}.{minor}")),
        }
    }
}

/// The version in the first line of the module's `version` file: the first word with dots that starts with a digit.
fn module_version(text: &str) -> Option<String> {
    let mut words = text.lines().next()?.split_whitespace();
    let version =
        words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    version.map(str::to_owned)
}

/// The GPUs that the module lists, by name.
fn devices_of_module(proc: &Path) -> Vec<Gpu> {
    let Ok(entries) = fs::read_dir(proc.join("gpus")) else {
        return Vec::new();
    };
    let mut names: Vec<(String, String)> = entries
        .flatten()
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path().join("information")).ok()?;
            let name = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
            let address = entry.file_name().to_string_lossy().into_owned();
            Some((address, name.trim().to_owned()))
        })
        .collect();
    names.sort();
    let gpu = |(ordinal, (_, name))| Gpu {
        device: format!("cuda:{ordinal}"),
        name,
        memory: None,
        compute_capability: None,
    };
    names.into_iter().enumerate().map(gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_is_described_plainly() {
        let proc = tempfile::tempdir().unwrap();
        let found = Gpus::of(None, &proc.path().join("nvidia"));
        assert_eq!((found.devices.len(), &found.driver), (0, &None));
        let problem = found.problem.unwrap();
        assert!(
            problem.contains("no NVIDIA driver") && problem.contains("the CPU needs none"),
            "{problem}"
        );
    }

    #[test]
    fn a_kernel_module_without_the_library_is_described_by_proc() {
        let proc = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = proc.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12.2.0\n",
        );
        write(
            "gpus/0000:2b:00.0/information",
            "Model: \t\t NVIDIA L4\nIRQ: 7\n",
        );
        write(
            "gpus/0000:1a:00.0/information",
            "Model: \t\t NVIDIA H100 80GB HBM3\n",
        );
        let found = Gpus::of(None, proc.path());
        assert_eq!(found.driver.as_deref(), Some("570.86.15"));
        let names: Vec<_> = found.devices.iter().map(|gpu| gpu.name.as_str()).collect();
        assert_eq!(names, ["NVIDIA H100 80GB HBM3", "NVIDIA L4"]);
        assert_eq!(found.devices[1].device, "cuda:1");
        let problem = found.problem.unwrap();
        assert!(
            problem.contains(DRIVER) && problem.contains("--gpus all"),
            "{problem}"
        );
    }

    #[test]
    fn a_driver_that_does_not_work_is_reported() {
        let proc = tempfile::tempdir().unwrap();
        let error = ForwardError::Device("the CUDA driver: cannot start".to_owned());
        let found = Gpus::of(Some(Err(error)), proc.path());
        let problem = found.problem.unwrap();
        assert!(
            found.devices.is_empty() && problem.contains("cannot start"),
            "{problem}"
        );
    }
}
