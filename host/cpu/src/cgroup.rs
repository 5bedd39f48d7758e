//! The limits of the control group that this process is in: memory and processor time, by cgroup v2, or v1 where only
//! that is mounted. Containers and services have them; other processes mostly have none.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory limits from this on are none: v1 writes the largest number of pages.
const NO_LIMIT: u64 = 1 << 60;

/// A memory limit, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit.
    pub limit: u64,
    /// What counts towards it, without the page cache, which the kernel drops before it refuses memory.
    pub used: u64,
}

impl MemoryLimit {
    /// What can still be allocated.
    pub fn available(self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Where the files of a controller are, by version of cgroup.
struct Files {
    memory_limit: &'static str,
    memory_used: &'static str,
    /// The lines of `memory.stat` with the page cache.
    page_cache: [&'static str; 2],
}

const V2: Files = Files {
    memory_limit: "memory.max",
    memory_used: "memory.current",
    page_cache: ["inactive_file ", "active_file "],
};

const V1: Files = Files {
    memory_limit: "memory.limit_in_bytes",
    memory_used: "memory.usage_in_bytes",
    page_cache: ["total_inactive_file ", "total_active_file "],
};

/// The memory limit with the least left, of the control group and those above it; none without a limit. `root` is `/`,
/// except in tests.
pub(crate) fn memory_limit(root: &Path) -> Option<MemoryLimit> {
    let v2 = folders(root, "").into_iter().map(|dir| (dir, V2));
    let v1 = folders(root, "memory").into_iter().map(|dir| (dir, V1));
    let limits = v2.chain(v1).filter_map(|(dir, files)| {
        let limit = number(&dir.join(files.memory_limit)).filter(|limit| *limit < NO_LIMIT)?;
        let used = number(&dir.join(files.memory_used)).unwrap_or(0);
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let cached = |name| {
            let of = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
            stat.lines().find_map(of).unwrap_or(0u64)
        };
        let cache = files.page_cache.into_iter().map(cached).sum();
        Some(MemoryLimit {
            limit,
            used: used.saturating_sub(cache),
        })
    });
    limits.min_by_key(|limit| limit.available())
}

/// The smallest share of processors that the control group and those above it may use, such as 1.5; none without a limit.
#[allow(
    clippy::cast_precision_loss,
    reason = "microseconds of a period are far below 2^53"
)]
pub(crate) fn processor_quota(root: &Path) -> Option<f64> {
    let share = |quota: u64, period: u64| (period > 0).then(|| quota as f64 / period as f64);
    let v2 = folders(root, "").into_iter().filter_map(|dir| {
        let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        share(quota.parse().ok()?, period.parse().ok()?)
    });
    let v1 = folders(root, "cpu").into_iter().filter_map(|dir| {
        let quota = number(&dir.join("cpu.cfs_quota_us"))?;
        share(quota, number(&dir.join("cpu.cfs_period_us"))?)
    });
    v2.chain(v1).min_by(f64::total_cmp)
}

/// The folders of this process's control group and of those above it, innermost first. An empty `controller` is cgroup
/// v2.
fn folders(root: &Path, controller: &str) -> Vec<PathBuf> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let group = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let named = controllers.split(',').any(|name| name == controller);
        named.then(|| path.trim_start_matches('/').to_owned())
    });
    let Some(group) = group else {
        return Vec::new();
    };
    let mount = root.join("sys/fs/cgroup").join(controller);
    // In a namespace the path may start above the mount; its folders are not there then, and the mount's limit counts.
    let inside = Path::new(&group).ancestors();
    inside.map(|path| mount.join(path)).collect()
}

/// A file with one number; none for `max` and negative numbers, which are no limits.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_limit_of_all_groups_above_counts() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/pod/server\n"),
            ("sys/fs/cgroup/pod/server/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/server/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/pod/memory.max", "1000000\n"),
            ("sys/fs/cgroup/pod/memory.current", "700000\n"),
            (
                "sys/fs/cgroup/pod/memory.stat",
                "anon 1\ninactive_file 150000\nactive_file 50000\n",
            ),
            ("sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/memory.max", "9000000\n"),
            ("sys/fs/cgroup/memory.current", "800000\n"),
        ]);
        let limit = memory_limit(root.path()).unwrap();
        assert_eq!((limit.limit, limit.used), (1_000_000, 500_000));
        assert_eq!(limit.available(), 500_000);
        assert_eq!(processor_quota(root.path()), Some(1.5));
    }

    #[test]
    fn version_1_has_its_own_files_and_a_number_for_no_limit() {
        let groups = "5:cpu,cpuacct:/box\n4:memory:/box\n0::/\n";
        let unlimited = "9223372036854771712\n";
        let files = |limit: &'static str| {
            machine(&[
                ("proc/self/cgroup", groups),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited),
                ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "400\n"),
                (
                    "sys/fs/cgroup/memory/box/memory.stat",
                    "total_inactive_file 60\ntotal_active_file 40\n",
                ),
                ("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n"),
            ])
        };
        let limit = memory_limit(files("1000\n").path()).unwrap();
        assert_eq!((limit.limit, limit.used), (1000, 300));
        let root = files(unlimited);
        assert_eq!(memory_limit(root.path()), None);
        assert_eq!(processor_quota(root.path()), None);
    }

    #[test]
    fn without_groups_or_beside_the_mount_there_is_no_limit_but_the_mount_s() {
        let root = machine(&[]);
        assert_eq!(memory_limit(root.path()), None);
        let root = machine(&[
            ("proc/self/cgroup", "0::/../../system.slice\n"),
            ("sys/fs/cgroup/memory.max", "4096\n"),
        ]);
        assert_eq!(memory_limit(root.path()).unwrap().limit, 4096);
    }
}
