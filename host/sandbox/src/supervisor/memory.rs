//! Memory of all processes of the machine together.

use std::fs;

/// Bytes of anonymous memory that are resident in the processes of this namespace. Memory that processes share after a
/// fork counts once for each. A process that ends meanwhile does not count.
pub(super) fn resident() -> u64 {
    let Ok(processes) = fs::read_dir("/proc") else {
        return 0;
    };
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    ids.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|id| anonymous(&fs::read_to_string(format!("/proc/{id}/status")).ok()?))
        .sum()
}

fn anonymous(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_anonymous_memory_of_a_process_is_read() {
        let status = "Name:\tsh\nVmRSS:\t  900 kB\nRssAnon:\t   96 kB\nThreads:\t1\n";
        assert_eq!(super::anonymous(status), Some(96 << 10));
        assert_eq!(super::anonymous("Name:\tkthread\n"), None);
    }
}
