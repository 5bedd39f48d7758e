//! The NVIDIA GPUs of this machine, asked from the driver's library, which is loaded when it is used: a program without a
//! driver starts, and building it needs no toolkit. Reads names and sizes only; creates no context and runs nothing.

#![allow(unsafe_code, reason = "the driver is a library in C")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fs;
use std::path::Path;

use libloading::Library;
use serde::Serialize;

/// The library of NVIDIA's driver.
const LIBRARY: &str = "libcuda.so.1";
/// Where the driver's kernel module describes itself.
const PROC: &str = "/proc/driver/nvidia";

/// Attributes of a device by their numbers in `cuda.h`.
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;

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
        Self::detect_with(LIBRARY, Path::new(PROC))
    }

    fn detect_with(library: &str, proc: &Path) -> Self {
        let driver = fs::read_to_string(proc.join("version"))
            .ok()
            .and_then(|text| module_version(&text));
        // SAFETY: the driver's library has no requirements on who loads it.
        let loaded = unsafe { Library::new(library) };
        let Ok(loaded) = loaded else {
            let devices = devices_of_module(proc);
            let problem = match (&driver, devices.is_empty()) {
                (None, true) => format!(
                    "there is no NVIDIA driver ({library} and {} are missing), so no GPU can be used; the CPU needs none",
                    proc.display()
                ),
                _ => format!(
                    "the driver's kernel module is loaded, but its library {library} was not found, so no program can use the \
                     GPUs; install the driver's libraries, or start the container with the NVIDIA container toolkit \
                     (docker run --gpus all)"
                ),
            };
            return Self {
                driver,
                cuda: None,
                devices,
                problem: Some(problem),
            };
        };
        // The driver may have started threads, so it stays loaded.
        let loaded = Box::leak(Box::new(loaded));
        match Driver::new(loaded).and_then(|driver| driver.describe()) {
            Ok((cuda, devices)) => Self {
                driver,
                cuda: Some(cuda),
                problem: devices
                    .is_empty()
                    .then(|| "the driver is there, but it has no GPU".to_owned()),
                devices,
            },
            Err(error) => Self {
                driver,
                cuda: None,
                devices: devices_of_module(proc),
                problem: Some(format!(
                    "{library} was found but does not work: {error}, so no GPU can be used; reinstall the driver, or restart \
                     the machine if it was updated"
                )),
            },
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

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type GetNumber = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetDevice = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type GetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type TotalMemory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type GetErrorString = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// The functions of the library that are used here, with the signatures of `cuda.h`.
struct Driver {
    init: Init,
    version: GetNumber,
    count: GetNumber,
    device: GetDevice,
    name: GetName,
    memory: TotalMemory,
    attribute: GetAttribute,
    error_string: GetErrorString,
}

impl Driver {
    /// Finds the functions of a library that stays loaded.
    fn new(library: &'static Library) -> Result<Self, String> {
        /// # Safety
        /// `T` is the type of the function of this name.
        unsafe fn find<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
            // SAFETY: the caller's.
            let symbol = unsafe { library.get::<T>(name) };
            symbol
                .map(|symbol| *symbol)
                .map_err(|_| format!("it has no function {name}"))
        }
        // SAFETY: the types are the signatures of `cuda.h`, which have been stable since CUDA 3.2.
        unsafe {
            Ok(Self {
                init: find(library, "cuInit")?,
                version: find(library, "cuDriverGetVersion")?,
                count: find(library, "cuDeviceGetCount")?,
                device: find(library, "cuDeviceGet")?,
                name: find(library, "cuDeviceGetName")?,
                memory: find(library, "cuDeviceTotalMem_v2")?,
                attribute: find(library, "cuDeviceGetAttribute")?,
                error_string: find(library, "cuGetErrorString")?,
            })
        }
    }

    /// The version of CUDA and the GPUs.
    fn describe(&self) -> Result<(String, Vec<Gpu>), String> {
        // SAFETY: the flags must be 0.
        self.check("start", unsafe { (self.init)(0) })?;
        let version = self.number("read its version", self.version)?;
        let count = self.number("count GPUs", self.count)?;
        let gpus: Result<Vec<Gpu>, String> = (0..count).map(|ordinal| self.gpu(ordinal)).collect();
        Ok((format!("{}.{}", version / 1000, version % 1000 / 10), gpus?))
    }

    fn gpu(&self, ordinal: c_int) -> Result<Gpu, String> {
        let what = format!("read cuda:{ordinal}");
        let device = {
            let mut device = 0;
            // SAFETY: writes one handle.
            self.check(&what, unsafe { (self.device)(&raw mut device, ordinal) })?;
            device
        };
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: writes at most 256 bytes with a zero at the end.
        self.check(&what, unsafe {
            (self.name)(name.as_mut_ptr(), 256, device)
        })?;
        // SAFETY: the buffer ends with a zero.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        let mut memory = 0;
        // SAFETY: writes one size.
        self.check(&what, unsafe { (self.memory)(&raw mut memory, device) })?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: writes one number.
            let code = unsafe { (self.attribute)(&raw mut value, attribute, device) };
            self.check(&what, code).map(|()| value)
        };
        let major = attribute(COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(COMPUTE_CAPABILITY_MINOR)?;
        Ok(Gpu {
            device: format!("cuda:{ordinal}"),
            name: name.to_string_lossy().into_owned(),
            memory: Some(memory as u64),
            compute_capability: Some(format!("{major}.{minor}")),
        })
    }

    fn number(&self, what: &str, function: GetNumber) -> Result<c_int, String> {
        let mut number = 0;
        // SAFETY: writes one number.
        self.check(what, unsafe { function(&raw mut number) })?;
        Ok(number)
    }

    /// The driver's text for a code other than 0, which is success.
    fn check(&self, what: &str, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: writes a pointer to a constant text, or null for an unknown code.
        unsafe { (self.error_string)(code, &raw mut text) };
        let text = match text.is_null() {
            true => "unknown error".into(),
            // SAFETY: a constant text of the library, which ends with a zero.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
        };
        Err(format!("it cannot {what}: {text} (error {code})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIBRARY: &str = "libclawhost-no-such-driver.so.1";

    #[test]
    fn a_machine_without_a_driver_is_described_plainly() {
        let proc = tempfile::tempdir().unwrap();
        let found = Gpus::detect_with(NO_LIBRARY, &proc.path().join("nvidia"));
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
        let found = Gpus::detect_with(NO_LIBRARY, proc.path());
        assert_eq!(found.driver.as_deref(), Some("570.86.15"));
        let names: Vec<_> = found.devices.iter().map(|gpu| gpu.name.as_str()).collect();
        assert_eq!(names, ["NVIDIA H100 80GB HBM3", "NVIDIA L4"]);
        assert_eq!(found.devices[1].device, "cuda:1");
        let problem = found.problem.unwrap();
        assert!(
            problem.contains(NO_LIBRARY) && problem.contains("--gpus all"),
            "{problem}"
        );
    }

    #[test]
    fn a_library_that_is_not_a_driver_is_reported() {
        // A library that every test process has loaded.
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        {
            let proc = tempfile::tempdir().unwrap();
            let found = Gpus::detect_with("libc.so.6", proc.path());
            let problem = found.problem.unwrap();
            assert!(
                found.devices.is_empty() && problem.contains("cuInit"),
                "{problem}"
            );
        }
    }
}
