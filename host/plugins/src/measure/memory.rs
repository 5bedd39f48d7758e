//! Resident memory of live instances.

use super::sample::Sample;
use crate::call::CallContext;
use crate::convert;
use crate::exports::Export;
use crate::host::Plugin;
use crate::invoke::{self, Stop};

/// Resident memory of this process, in bytes; none where `/proc` does not report it.
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// Resident bytes per live instance of a judge after one call: the growth of this process by `count` instances, divided
/// by `count`. Measure before other calls have grown the process. None where the system does not report memory, when a
/// call fails, or for a plugin that is not a judge.
pub async fn bytes_per_instance(plugin: &Plugin, sample: &Sample, count: usize) -> Option<f64> {
    let Export::Judge(export) = plugin.export() else {
        return None;
    };
    let loaded = plugin.loaded();
    let mut instances = Vec::with_capacity(count);
    let before = resident_bytes()?;
    for _ in 0..count {
        let call = CallContext::default();
        let mut receipt = invoke::blank_receipt(&loaded, &call);
        let admitted = invoke::admit(&loaded).await.ok()?;
        let (place, mut store) = invoke::open(&loaded, admitted, call, &mut receipt)
            .await
            .ok()?;
        let export = export.clone();
        let trajectory = convert::trajectory_to_guest(&sample.trajectory);
        let judged = invoke::supervise(&mut store, &mut receipt, move |store| {
            Box::pin(async move {
                let guest = export.instantiate(store).await?;
                guest
                    .call_score_turn(&mut *store, &trajectory, 0)
                    .await
                    .map_err(Stop::while_running)
            })
        })
        .await;
        judged.ok()?.ok()?;
        instances.push((store, place));
    }
    let after = resident_bytes()?;
    drop(instances);
    Some(after.saturating_sub(before) as f64 / count.max(1) as f64)
}
