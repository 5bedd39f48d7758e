//! How often a judge failed in a row, and whether it is still called.

use std::sync::atomic::{AtomicU32, Ordering};

use clawhost_plugins::{Fault, FaultKind, PluginErrorKind};

use crate::options::FaultPolicy;

/// One judge's record since the start.
#[derive(Debug, Default)]
pub(crate) struct Health {
    in_a_row: AtomicU32,
}

impl Health {
    /// Counts a call that worked, or in which the judge had nothing to say.
    pub(crate) fn well(&self) {
        self.in_a_row.store(0, Ordering::Relaxed);
    }

    /// Counts a fault and returns how many there are in a row.
    pub(crate) fn ill(&self) -> u32 {
        self.in_a_row
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1)
    }

    /// Faults in a row, when the policy says that the judge is no longer called.
    pub(crate) fn quarantined(&self, policy: FaultPolicy, after: u32) -> Option<u32> {
        let faults = self.in_a_row.load(Ordering::Relaxed);
        (policy == FaultPolicy::Quarantine && faults >= after).then_some(faults)
    }
}

/// Whether a fault speaks against the judge; declining a turn, a passing error and a condition of the host
/// do not.
pub(crate) fn is_ill(fault: &Fault) -> bool {
    !(fault.is_no_answer() || is_passing(fault) || fault.is_host_condition())
}

/// Whether the same call is worth another try.
pub(crate) fn is_passing(fault: &Fault) -> bool {
    matches!(
        fault.kind,
        FaultKind::PluginError {
            kind: PluginErrorKind::Transient,
            ..
        }
    )
}

/// Why there is no verdict where a judge has no opinion: it declines the turn, or gives a reward of 0 without a vote.
pub(crate) const ABSTAINED: &str = "abstained";

/// The short reason under which a fault is counted, such as `cpu` or `plugin-error: internal`.
pub(crate) fn reason(fault: &Fault) -> String {
    match &fault.kind {
        _ if fault.is_no_answer() => ABSTAINED.to_owned(),
        FaultKind::PluginError { kind, .. } => format!("{}: {kind}", fault.kind.name()),
        other => other.name().to_owned(),
    }
}
