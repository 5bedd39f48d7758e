//! Admission checks of a valid component: are its capabilities granted and available, and does it fit the limits?

use crate::error::PluginError;
use crate::grants::{Capability, Grants, Manifest};
use crate::inspect::Inspection;
use crate::options::{HostOptions, MAX_TABLE_ELEMENTS};

/// Checks that every imported capability is part of the plugin's world, granted to this digest, and provided by this
/// host.
pub(crate) fn check_capabilities(
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
            arguments: manifest.missing_grants(&missing, grants),
            missing,
        });
    }
    for capability in &inspection.capabilities {
        if let Some(reason) = unavailable_reason(options, *capability) {
            return Err(PluginError::NotAvailable {
                name: name.to_owned(),
                capability: *capability,
                reason,
            });
        }
    }
    Ok(())
}

fn unavailable_reason(options: &HostOptions, capability: Capability) -> Option<&'static str> {
    match capability {
        Capability::Log | Capability::Context => None,
        Capability::Model => options
            .model
            .is_none()
            .then_some("this server offers no model to plugins"),
        Capability::State => options
            .state
            .is_none()
            .then_some("this server has no state store for plugins"),
        Capability::Http => options
            .network
            .is_none()
            .then_some("this server has no network access for plugins"),
        Capability::Sandbox | Capability::Display => options
            .sandbox
            .is_none()
            .then_some("this command starts no machines for plugins"),
    }
}

/// Rejects a component whose initial memory or table exceeds the host's limits at load instead of at its first call.
pub(crate) fn check_initial_size(
    options: &HostOptions,
    inspection: &Inspection,
) -> Result<(), PluginError> {
    for (what, needed, limit) in [
        (
            "bytes of memory",
            inspection.initial_memory_bytes,
            options.config.max_memory,
        ),
        (
            "table elements",
            inspection.initial_table_elements,
            MAX_TABLE_ELEMENTS,
        ),
    ] {
        if let Some(needed) = needed.filter(|needed| *needed > limit as u64) {
            return Err(PluginError::InitialSizeTooLarge {
                what,
                needed,
                limit: limit as u64,
            });
        }
    }
    Ok(())
}
