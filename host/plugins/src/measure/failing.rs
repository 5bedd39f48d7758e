//! Failing calls, to measure whether they leak memory.

use tokio::task::JoinSet;

use crate::call::CallContext;
use crate::error::PluginError;
use crate::host::Plugin;
use clawhost_config::Limits;

use super::latencies::CallCounter;
use super::sample;

/// Makes calls of a judge in the deterministic profile that fail, a third each by a fuel limit, a memory limit and a turn
/// index out of range. To detect a leak, compare [`super::resident_bytes`] before and after in an otherwise idle process.
///
/// # Errors
/// [`PluginError::Host`] when a call did not fail.
pub async fn failing_calls(
    plugin: &Plugin,
    concurrency: usize,
    calls: usize,
) -> Result<(), PluginError> {
    let left = CallCounter::new(calls);
    let mut drivers = JoinSet::new();
    for _ in 0..concurrency.max(1) {
        drivers.spawn(drive(plugin.clone(), left.clone()));
    }
    match drivers.join_all().await.iter().sum() {
        0 => Ok(()),
        passed => Err(PluginError::Host(format!(
            "{passed} of {calls} calls that must fail succeeded"
        ))),
    }
}

/// Makes calls and returns how many succeeded.
async fn drive(plugin: Plugin, left: CallCounter) -> usize {
    let trajectory = sample::conversation();
    let mut passed = 0;
    while let Some(number) = left.next_call() {
        let mut limits = Limits::default();
        let mut turn = 0;
        match number % 3 {
            0 => limits.fuel = 100,
            1 => limits.memory = 1,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grants::Grants;
    use crate::host::PluginHost;
    use crate::measure::resident_bytes;
    use crate::options::HostOptions;
    use clawhost_config::{PluginHostConfig, Profile};

    #[tokio::test]
    async fn all_calls_fail_and_resident_memory_is_reported() {
        let options = HostOptions {
            config: PluginHostConfig {
                num_threads: 2,
                max_instances: 8,
                ..PluginHostConfig::default()
            },
            ..HostOptions::default()
        };
        let component = crate::embedded_component("judge-minimal").unwrap();
        let host = PluginHost::new(options).unwrap();
        let load = |profile| {
            host.load("measured", component, &Grants::default(), profile)
                .unwrap()
        };
        let judge = load(Profile::Deterministic);
        failing_calls(&judge, 4, 60).await.unwrap();
        // The fast profile has no fuel limit, so a third of the calls succeed, which is an error.
        let judge = load(Profile::Fast);
        let error = failing_calls(&judge, 4, 60).await.unwrap_err();
        assert!(error.to_string().contains("20 of 60"), "{error}");
        if cfg!(target_os = "linux") {
            assert!(resident_bytes().unwrap() > 0);
        }
    }
}
