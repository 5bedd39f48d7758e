//! What a million failing calls leave behind: nothing, if resident memory is as large after them as
//! before.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use tokio::task::JoinSet;

use crate::call::{CallContext, Limits};
use crate::error::PluginError;
use crate::grants::Grants;
use crate::host::{HostOptions, Plugin, PluginHost};
use crate::profile::Profile;

use super::{Left, sample_trajectory, take};

/// Calls before memory is looked at the first time, as a share of all.
const WARM_UP: usize = 10;

/// What [`failing_calls`] found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FailingCalls {
    /// Calls between the two looks at memory; all of them failed.
    pub calls: usize,
    /// Calls at a time.
    pub at_once: usize,
    /// Resident bytes of this process before them; none where the system does not tell.
    pub resident_before: Option<u64>,
    /// Resident bytes after them.
    pub resident_after: Option<u64>,
}

/// Makes calls that fail, a third each by a CPU limit, by a memory limit and by asking for a turn that
/// is not there, and looks at resident memory before and after. Meaningful in a process that does
/// nothing else.
///
/// # Errors
/// [`PluginError`] when the component cannot be loaded with no grants, or when a call did not fail.
pub async fn failing_calls(
    component: &[u8],
    options: &HostOptions,
    calls: usize,
    at_once: usize,
) -> Result<FailingCalls, PluginError> {
    let host = PluginHost::new(options.clone())?;
    let none = Grants::default();
    let plugin = host.load("measured", component, &none, Profile::Deterministic)?;
    fail(&plugin, calls / WARM_UP, at_once).await?;
    let resident_before = resident_bytes();
    fail(&plugin, calls, at_once).await?;
    Ok(FailingCalls {
        calls,
        at_once,
        resident_before,
        resident_after: resident_bytes(),
    })
}

async fn fail(plugin: &Plugin, calls: usize, at_once: usize) -> Result<(), PluginError> {
    let left: Left = Arc::new(AtomicUsize::new(calls));
    let mut drivers = JoinSet::new();
    for _ in 0..at_once.max(1) {
        drivers.spawn(drive(plugin.clone(), Arc::clone(&left)));
    }
    match drivers.join_all().await.iter().sum() {
        0 => Ok(()),
        passed => Err(PluginError::Host(format!(
            "{passed} of {calls} calls that must fail did not"
        ))),
    }
}

/// Returns how many calls did not fail.
async fn drive(plugin: Plugin, left: Left) -> usize {
    let trajectory = sample_trajectory();
    let mut passed = 0;
    while take(&left) {
        let mut limits = Limits::default();
        let mut turn = 0;
        match left.load(Ordering::Relaxed) % 3 {
            0 => limits.fuel = 100,
            1 => limits.memory_bytes = 1,
            _ => turn = u32::MAX,
        }
        let call = CallContext {
            run_id: "measure".to_owned(),
            limits,
            ..CallContext::default()
        };
        let judged = plugin.score_turn(call, &trajectory, turn).await;
        passed += usize::from(judged.outcome.is_ok());
    }
    passed
}

/// Resident memory of this process, in bytes; none where `/proc` does not tell.
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_call_fails_and_memory_is_looked_at() {
        let options = HostOptions {
            threads: 2,
            instances: 8,
            ..HostOptions::default()
        };
        let component = crate::embedded("judge-next-state").unwrap();
        let found = failing_calls(component, &options, 60, 4).await.unwrap();
        assert_eq!((found.calls, found.at_once), (60, 4));
        if cfg!(target_os = "linux") {
            assert!(found.resident_before.unwrap() > 0);
        }
    }
}
