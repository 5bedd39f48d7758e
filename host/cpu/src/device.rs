//! The processors and the memory of this machine, as far as this process may use them. Read from `/proc` and the control
//! group of Linux; on other systems most of it is unknown.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clawhost_engine::backend::{Device, DeviceMemory};

use crate::cgroup::{self, MemoryLimit};

/// Vector instructions by their name here, each with the flags of `/proc/cpuinfo` that mean it.
const X86_FEATURES: [(&str, &[&str]); 5] = [
    ("avx2", &["avx2"]),
    ("avx512", &["avx512f"]),
    ("avx512-bf16", &["avx512_bf16"]),
    ("amx", &["amx_tile"]),
    ("vnni", &["avx512_vnni", "avx_vnni"]),
];
const ARM_FEATURES: [(&str, &[&str]); 5] = [
    ("neon", &["asimd"]),
    ("dotprod", &["asimddp"]),
    ("bf16", &["bf16"]),
    ("i8mm", &["i8mm"]),
    ("sve", &["sve"]),
];

/// The processors.
#[derive(Debug, Clone, PartialEq)]
pub struct Processors {
    /// Their name; the architecture where it is not known.
    pub name: String,
    /// Number of cores; `None` where it is not known.
    pub cores: Option<usize>,
    /// Number of hardware threads; `None` where it is not known.
    pub threads: Option<usize>,
    /// Number of threads that can run at once, by affinity and quota.
    pub usable_threads: usize,
    /// Number of processors by the quota of the control group, if there is one.
    pub quota: Option<f64>,
    /// Vector instructions, and whether the processors have them; empty where it is not known.
    pub vector_instructions: Vec<(&'static str, bool)>,
    /// f32 values in one vector of the kernels: 16 with AVX-512, 8 with AVX2, 4 with NEON.
    pub kernel_lanes: usize,
}

/// Memory of the machine in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    /// All of it.
    pub total: u64,
    /// What this process can still allocate, by the kernel's estimate and the control group.
    pub available: u64,
    /// The limit of the control group, if there is one.
    pub limit: Option<MemoryLimit>,
}

impl Processors {
    /// Reads what the operating system knows.
    pub fn detect() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            quota: cgroup::processor_quota(Path::new("/")),
            ..Self::from_info(&info)
        }
    }

    /// Whether they have instructions for bf16, AVX512-BF16 or AMX. The kernels restore such weights with shifts, in which
    /// processors of that age are as fast as with weights in f32.
    pub fn have_bf16(&self) -> bool {
        let mut known = self.vector_instructions.iter();
        known.any(|(name, has)| *has && ["avx512-bf16", "amx"].contains(name))
    }

    fn from_info(info: &str) -> Self {
        let name = values(info, "model name").find(|name| !name.is_empty());
        let threads = values(info, "processor").count();
        let packages = values(info, "physical id");
        let cores: BTreeSet<_> = packages.zip(values(info, "core id")).collect();
        let some = |count: usize| (count > 0).then_some(count);
        Self {
            name: name.unwrap_or(std::env::consts::ARCH).to_owned(),
            cores: some(cores.len()),
            threads: some(threads),
            usable_threads: std::thread::available_parallelism().map_or(1, usize::from),
            quota: None,
            vector_instructions: vector_instructions(info),
            kernel_lanes: crate::ops::simd::lanes(),
        }
    }
}

/// The values of a key of `/proc/cpuinfo`.
fn values<'a>(info: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    info.lines().filter_map(move |line| {
        let (name, value) = line.split_once(':')?;
        (name.trim_end() == key).then_some(value.trim())
    })
}

fn vector_instructions(info: &str) -> Vec<(&'static str, bool)> {
    let found = |key, features: &[(&'static str, &[&str])]| {
        let flags: BTreeSet<&str> = values(info, key).next()?.split(' ').collect();
        let has = |flag: &&str| flags.contains(flag);
        let features = features.iter();
        let features = features.map(|(name, flags)| (*name, flags.iter().any(has)));
        Some(features.collect())
    };
    found("flags", &X86_FEATURES)
        .or_else(|| found("Features", &ARM_FEATURES))
        .unwrap_or_default()
}

impl HostMemory {
    /// Reads what the operating system knows; `None` where that is nothing.
    pub fn detect() -> Option<Self> {
        let info = fs::read_to_string("/proc/meminfo").ok()?;
        Self::from_info(&info, cgroup::memory_limit(Path::new("/")))
    }

    /// By `/proc/meminfo`. What the kernel can free for a process is available.
    fn from_info(info: &str, limit: Option<MemoryLimit>) -> Option<Self> {
        let bytes = |key: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(key))?;
            let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        let (total, available) = (bytes("MemTotal:")?, bytes("MemAvailable:")?);
        Some(Self {
            total,
            available: limit.map_or(available, |limit| available.min(limit.available())),
            limit,
        })
    }
}

/// This machine, as the engine reports it.
pub(crate) fn device() -> Device {
    let memory = HostMemory::detect().map(|memory| DeviceMemory {
        total: memory.total,
        used: memory.total.saturating_sub(memory.available),
    });
    Device {
        name: Processors::detect().name,
        memory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_CORES: &str = "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nphysical id\t: 0\ncore id\t\t: 0\n\
        flags\t\t: fpu avx2 avx512f avx512_vnni amx_bf16\n\nprocessor\t: 1\nmodel name\t: other\nphysical id\t: 0\n\
        core id\t\t: 0\n\nprocessor\t: 2\nphysical id\t: 0\ncore id\t\t: 3\n";

    #[test]
    fn processors_are_read_from_proc() {
        let found = Processors::from_info(TWO_CORES);
        assert_eq!(found.name, "Some CPU @ 2.0GHz");
        assert_eq!((found.cores, found.threads), (Some(2), Some(3)));
        let has: Vec<_> = found
            .vector_instructions
            .iter()
            .filter(|(_, has)| *has)
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(has, ["avx2", "avx512", "vnni"]);
        assert!(!found.have_bf16());
        for flag in ["avx512_bf16", "amx_tile"] {
            let info = TWO_CORES.replace("fpu", flag);
            assert!(Processors::from_info(&info).have_bf16(), "{flag}");
        }
        let arm =
            Processors::from_info("processor\t: 0\nBogoMIPS: 50\nFeatures\t: fp asimd i8mm\n");
        assert_eq!(
            (arm.cores, arm.name.as_str()),
            (None, std::env::consts::ARCH)
        );
        assert!(arm.vector_instructions.contains(&("i8mm", true)));
        assert!(arm.vector_instructions.contains(&("sve", false)));
        let unknown = Processors::from_info("");
        assert!(unknown.vector_instructions.is_empty() && unknown.threads.is_none());
        assert!(unknown.usable_threads > 0 && unknown.kernel_lanes > 0);
    }

    #[test]
    fn the_control_group_limits_what_is_available() {
        let info = "MemTotal:       16 kB\nMemFree:  1 kB\nMemAvailable:    6 kB\n";
        let with = |limit: Option<(u64, u64)>| {
            let limit = limit.map(|(limit, used)| MemoryLimit { limit, used });
            HostMemory::from_info(info, limit).unwrap().available
        };
        assert_eq!(with(None), 6 << 10);
        assert_eq!(with(Some((5 << 10, 1 << 10))), 4 << 10);
        assert_eq!(with(Some((64 << 10, 1 << 10))), 6 << 10);
        assert_eq!(HostMemory::from_info("MemTotal: 16 kB\n", None), None);
        assert!(!device().name.is_empty());
    }
}
