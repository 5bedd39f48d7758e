//! Whether a component that is valid is also wanted: what it may have, and whether there is enough of it.

use crate::error::PluginError;
use crate::grants::{Capability, Grants, Manifest};
use crate::inspect::Inspection;
use crate::options::HostOptions;

/// Every capability must be in the world, granted to this digest, and available here.
pub(crate) fn permit(
    options: &HostOptions,
    name: &str,
    inspection: &Inspection,
    grants: &Grants,
    manifest: &Manifest,
) -> Result<(), PluginError> {
    for capability in &inspection.capabilities {
        if !inspection.kind.may_import(*capability) {
            return Err(PluginError::OutsideWorld {
                capability: *capability,
                world: inspection.kind.world(),
            });
        }
    }
    let missing: Vec<Capability> = inspection
        .capabilities
        .iter()
        .copied()
        .filter(|capability| !grants.covers(*capability))
        .collect();
    if !missing.is_empty() {
        return Err(PluginError::NotGranted {
            name: name.to_owned(),
            digest: inspection.digest.clone(),
            arguments: manifest.lacking(&missing, grants),
            missing,
        });
    }
    for capability in &inspection.capabilities {
        if let Some(reason) = why_unavailable(options, *capability) {
            return Err(PluginError::NotAvailable {
                name: name.to_owned(),
                capability: *capability,
                reason,
            });
        }
    }
    Ok(())
}

fn why_unavailable(options: &HostOptions, capability: Capability) -> Option<&'static str> {
    match capability {
        Capability::Log | Capability::Context => None,
        Capability::Model => options
            .model
            .is_none()
            .then_some("this server offers no model to plugins"),
        Capability::State => options
            .state
            .is_none()
            .then_some("this server keeps no state for plugins"),
        Capability::Http => options
            .network
            .is_none()
            .then_some("this server has no way out for plugins"),
        Capability::Sandbox | Capability::Display => Some("this build does not provide it"),
    }
}

/// A component that can never start is refused now, not at its first call.
pub(crate) fn feed(options: &HostOptions, inspection: &Inspection) -> Result<(), PluginError> {
    for (what, needed, limit) in [
        (
            "bytes of memory",
            inspection.initial_memory_bytes,
            options.max_memory_bytes,
        ),
        (
            "table elements",
            inspection.initial_table_elements,
            options.max_table_elements,
        ),
    ] {
        if let Some(needed) = needed.filter(|needed| *needed > limit as u64) {
            return Err(PluginError::TooHungry {
                what,
                needed,
                limit: limit as u64,
            });
        }
    }
    Ok(())
}
