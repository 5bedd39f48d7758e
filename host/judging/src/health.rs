//! Counts consecutive failures of a judge and decides whether it is quarantined.

use std::sync::atomic::{AtomicU32, Ordering};

use clawhost_plugins::{Fault, FaultKind, PluginErrorKind};

use clawhost_config::FaultPolicy;

/// The failure count of one judge since the start.
#[derive(Debug, Default)]
pub(crate) struct Health {
    consecutive_failures: AtomicU32,
}

impl Health {
    /// Resets the count after a call that succeeded or in which the judge abstained.
    pub(crate) fn record_success(&self) {
        self.consecutive_failures.store(0, Ordering::Relaxed);
    }

    /// Counts a failure and returns the number of consecutive failures.
    pub(crate) fn record_failure(&self) -> u32 {
        self.consecutive_failures
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1)
    }

    /// The number of consecutive failures if the policy quarantines the judge, else `None`.
    pub(crate) fn quarantine_failures(&self, policy: FaultPolicy, after: u32) -> Option<u32> {
        let faults = self.consecutive_failures.load(Ordering::Relaxed);
        (policy == FaultPolicy::Quarantine && faults >= after).then_some(faults)
    }
}

/// Whether a fault counts as a failure of the judge. Abstentions, transient errors and host conditions do not.
pub(crate) fn counts_as_failure(fault: &Fault) -> bool {
    !(fault.is_unsupported() || is_transient(fault) || fault.is_host_condition())
}

/// Whether the call should be retried.
pub(crate) fn is_transient(fault: &Fault) -> bool {
    matches!(
        fault.kind,
        FaultKind::PluginError {
            kind: PluginErrorKind::Transient,
            ..
        }
    )
}

/// The reason recorded when a judge abstains: it declines the turn, or returns a reward of 0 without votes.
pub(crate) const ABSTAINED: &str = "abstained";

/// The short reason under which a fault is counted, such as `cpu` or `plugin-error: internal`.
pub(crate) fn fault_reason(fault: &Fault) -> String {
    match &fault.kind {
        _ if fault.is_unsupported() => ABSTAINED.to_owned(),
        FaultKind::PluginError { kind, .. } => format!("{}: {kind}", fault.kind.name()),
        other => other.name().to_owned(),
    }
}
