//! What a component is, read from its type: kind, imports, exports, needs.

use std::collections::BTreeSet;

use serde::Serialize;
use sha2::{Digest, Sha256};
use wasmtime::component::Component;
use wasmtime::component::types::ComponentItem;

use crate::error::PluginError;
use crate::grants::Capability;
use crate::kind::Kind;
use crate::printable::one_line;

/// Bytes of a name that are kept. Names of the contract are far shorter.
const NAME_BYTES: usize = 256;

/// The facts of one component file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// sha256 of the file, in hex.
    pub digest: String,
    /// Bytes of the file.
    pub bytes: usize,
    /// What it is for.
    pub kind: Kind,
    /// The version of `clawhost:plugin` that it was built for, such as `0.1.0`.
    pub contract: String,
    /// Imported interfaces, as written in the component.
    pub imports: Vec<String>,
    /// Exported interfaces, as written in the component.
    pub exports: Vec<String>,
    /// Host capabilities among the imports.
    pub capabilities: BTreeSet<Capability>,
    /// It links WASI, which it gets with nothing behind it.
    pub wasi: bool,
    /// Bytes of linear memory that it needs to start; none when that cannot be told.
    pub initial_memory_bytes: Option<u64>,
    /// Table elements that its largest table needs to start.
    pub initial_table_elements: Option<u64>,
}

/// sha256 of a component file, in hex: what grants are bound to.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Plain WASI 0.2 packages that are linked to a closed context.
const WASI: [&str; 6] = [
    "wasi:cli",
    "wasi:clocks",
    "wasi:filesystem",
    "wasi:io",
    "wasi:random",
    "wasi:sockets",
];

/// Reads the type of a component of this length and digest.
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
        imports: ty.imports(engine).map(|(name, _)| shown(name)).collect(),
        exports: ty.exports(engine).map(|(name, _)| shown(name)).collect(),
        capabilities: BTreeSet::new(),
        wasi: false,
        initial_memory_bytes: None,
        initial_table_elements: None,
    };
    for (name, item) in ty.imports(engine) {
        let import = Interface::parse(name);
        match import.package {
            "clawhost:plugin" => {
                if !import.is_contract() {
                    return Err(PluginError::OtherVersion { name: shown(name) });
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
                        return Err(PluginError::UnknownImport { name: shown(name) });
                    }
                }
            }
            package if WASI.contains(&package) && import.version.starts_with("0.2.") => {
                inspection.wasi = true;
            }
            _ if matches!(item.ty, ComponentItem::Type(_)) => {}
            _ => {
                return Err(PluginError::UnknownImport { name: shown(name) });
            }
        }
    }
    let mut found: Option<(Kind, String)> = None;
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
        if !export.is_contract() {
            return Err(PluginError::OtherVersion { name: name.clone() });
        }
        if let Some((first, _)) = &found {
            return Err(PluginError::TwoKinds {
                first: *first,
                second: kind,
            });
        }
        found = Some((kind, export.version.to_owned()));
    }
    let Some((kind, contract)) = found else {
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

/// Bytes of a page of linear memory; other sizes are not switched on.
const PAGE: u64 = 64 << 10;

/// A name from a component. Some forms (`url=<…>`) may hold any character, and these names are shown
/// on terminals.
fn shown(name: &str) -> String {
    one_line(name, NAME_BYTES)
}

/// `package:name/interface@version`, split.
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

    /// The interface of the contract that a plugin of this kind exports.
    pub(crate) fn is_of(&self, kind: Kind) -> bool {
        self.package == "clawhost:plugin"
            && self.interface == kind.interface()
            && self.is_contract()
    }

    /// Any 0.1 version: later ones only add.
    fn is_contract(&self) -> bool {
        self.version.starts_with("0.1.")
    }
}
