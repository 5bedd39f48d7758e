//! Generated bindings of the host interfaces that this build provides.
//!
//! One module for all worlds, so that there is one generated `Message`; the worlds map their
//! imports here. Generated names never leave the crate.

#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    unsafe_code,
    clippy::all,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "generated code"
)]

wasmtime::component::bindgen!({
    path: "../../wit",
    inline: "
        package clawhost:host@0.1.0;
        world wired {
            import clawhost:plugin/types@0.1.0;
            import clawhost:plugin/log@0.1.0;
            import clawhost:plugin/context@0.1.0;
            import clawhost:plugin/model@0.1.0;
            import clawhost:plugin/state@0.1.0;
        }
    ",
    world: "clawhost:host/wired",
    imports: { default: async | trappable },
});

pub use clawhost::plugin::{context, log, model, state, types};
