//! Links a component to exactly the capabilities that it imports.

use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker};

use crate::bindings;
use crate::grants::Capability;
use crate::inspect::Inspection;
use crate::store::CallState;

/// Creates a linker with the imports of the component. The caller has checked that they are granted.
pub(crate) fn linker(
    engine: &Engine,
    inspection: &Inspection,
) -> wasmtime::Result<Linker<CallState>> {
    let mut linker = Linker::<CallState>::new(engine);
    for capability in &inspection.capabilities {
        match capability {
            Capability::Log => {
                bindings::log::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
            }
            Capability::Context => {
                bindings::context::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
            }
            Capability::Model => {
                bindings::model::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
            }
            Capability::State => {
                bindings::state::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
            }
            Capability::Http => {
                bindings::http::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
            }
            Capability::Sandbox => {
                bindings::sandbox::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
            }
            Capability::Display => {
                bindings::display::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
            }
        }
    }
    if inspection.wasi {
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    }
    Ok(linker)
}
