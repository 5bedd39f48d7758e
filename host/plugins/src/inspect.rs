//! Reads the kind, imports, exports and initial sizes of a component from its type.

use std::collections::BTreeSet;

use serde::Serialize;
use sha2::{Digest, Sha256};
use wasmtime::component::Component;
use wasmtime::component::types::ComponentItem;

use crate::error::PluginError;
use crate::grants::Capability;
use crate::kind::Kind;
use crate::printable::one_line;

/// Names are truncated to this many bytes. Names in the WIT package are far shorter.
const NAME_BYTES: usize = 256;

/// The properties of one component file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// sha256 of the file, in hex.
    pub digest: String,
    /// Bytes of the file.
    pub bytes: usize,
    /// The kind of plugin.
    pub kind: Kind,
    /// The version of `clawhost:plugin` that it was built for, such as `0.1.0`.
    pub contract: String,
    /// Imported interfaces, as named in the component.
    pub imports: Vec<String>,
    /// Exported interfaces, as named in the component.
    pub exports: Vec<String>,
    /// Host capabilities among the imports.
    pub capabilities: BTreeSet<Capability>,
    /// Whether it links WASI, which gives it no access to the system.
    pub wasi: bool,
    /// Initial size of its largest linear memory, in bytes; none if unknown.
    pub initial_memory_bytes: Option<u64>,
    /// Initial elements of its largest table; none if unknown.
    pub initial_table_elements: Option<u64>,
}

/// sha256 of a component file, in hex. Grants are bound to it.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The WASI 0.2 packages that are linked, without access to the system.
const WASI: [&str; 6] = [
    "wasi:cli",
    "wasi:clocks",
    "wasi:filesystem",
    "wasi:io",
    "wasi:random",
    "wasi:sockets",
];

/// Inspects the type of a component of this length and digest.
pub(crate) fn inspect(
    component: &Component,
    bytes: usize,
    digest: &str,
) -> Result<Inspection, PluginError> {
    let engine = component.engine();
    let ty = component.component_type();
    let mut inspection = Inspection {
        digest: digest.to_owned(),
        bytes,
        kind: Kind::Judge,
        contract: String::new(),
        imports: ty
            .imports(engine)
            .map(|(name, _)| printable_name(name))
            .collect(),
        exports: ty
            .exports(engine)
            .map(|(name, _)| printable_name(name))
            .collect(),
        capabilities: BTreeSet::new(),
        wasi: false,
        initial_memory_bytes: None,
        initial_table_elements: None,
    };
    for (name, item) in ty.imports(engine) {
        let import = Interface::parse(name);
        match import.package {
            "clawhost:plugin" => {
                if !import.is_supported_version() {
                    return Err(PluginError::UnsupportedVersion {
                        name: printable_name(name),
                    });
                }
                match (
                    Capability::from_interface(import.interface),
                    import.interface,
                ) {
                    (Some(capability), _) => {
                        inspection.capabilities.insert(capability);
                    }
                    (None, "types") => {}
                    (None, _) => {
                        return Err(PluginError::UnknownImport {
                            name: printable_name(name),
                        });
                    }
                }
            }
            package if WASI.contains(&package) && import.version.starts_with("0.2.") => {
                inspection.wasi = true;
            }
            _ if matches!(item.ty, ComponentItem::Type(_)) => {}
            _ => {
                return Err(PluginError::UnknownImport {
                    name: printable_name(name),
                });
            }
        }
    }
    let mut plugin_export: Option<(Kind, String)> = None;
    for name in &inspection.exports {
        let export = Interface::parse(name);
        if export.package != "clawhost:plugin" {
            continue;
        }
        let Some(kind) = Kind::ALL
            .into_iter()
            .find(|kind| kind.interface() == export.interface)
        else {
            continue;
        };
        if !export.is_supported_version() {
            return Err(PluginError::UnsupportedVersion { name: name.clone() });
        }
        if let Some((first, _)) = &plugin_export {
            return Err(PluginError::MultipleKinds {
                first: *first,
                second: kind,
            });
        }
        plugin_export = Some((kind, export.version.to_owned()));
    }
    let Some((kind, contract)) = plugin_export else {
        let exports = if inspection.exports.is_empty() {
            "nothing".to_owned()
        } else {
            inspection.exports.join(", ")
        };
        return Err(PluginError::NoKind { exports });
    };
    inspection.kind = kind;
    inspection.contract = contract;
    if let Some(needs) = component.resources_required() {
        let pages = needs.max_initial_memory_size.unwrap_or(0);
        inspection.initial_memory_bytes = Some(pages.saturating_mul(PAGE));
        inspection.initial_table_elements = Some(needs.max_initial_table_size.unwrap_or(0));
    }
    Ok(inspection)
}

/// Bytes of a page of linear memory. Custom page sizes are not enabled.
const PAGE: u64 = 64 << 10;

/// Escapes a name from a component for terminals: some forms (`url=<…>`) may contain any character.
fn printable_name(name: &str) -> String {
    one_line(name, NAME_BYTES)
}

/// The parts of `package:name/interface@version`.
pub(crate) struct Interface<'a> {
    package: &'a str,
    interface: &'a str,
    version: &'a str,
}

impl<'a> Interface<'a> {
    pub(crate) fn parse(name: &'a str) -> Interface<'a> {
        let (path, version) = name.split_once('@').unwrap_or((name, ""));
        let (package, interface) = path.split_once('/').unwrap_or(("", path));
        Interface {
            package,
            interface,
            version,
        }
    }

    /// Whether this is the interface that a plugin of this kind exports.
    pub(crate) fn matches(&self, kind: Kind) -> bool {
        self.package == "clawhost:plugin"
            && self.interface == kind.interface()
            && self.is_supported_version()
    }

    /// Any 0.1 version is supported, because later 0.1 versions only add to it.
    fn is_supported_version(&self) -> bool {
        self.version.starts_with("0.1.")
    }
}
