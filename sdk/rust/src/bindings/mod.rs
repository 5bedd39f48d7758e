//! Bindings generated from `wit/`. Plugin authors use these types through the crate root.
//!
//! There is one module per world, because a component must contain only the type of its own world. Types that the worlds
//! share are generated here once.

#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    unused_imports,
    clippy::all,
    clippy::unwrap_used,
    clippy::panic,
    clippy::unimplemented,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

pub mod advantage;
pub mod environment;
pub mod filter;
pub mod gate;
pub mod group_judge;
pub mod hint;
pub mod loss;
pub mod pair_loss;

wit_bindgen::generate!({
    path: "../../wit",
    world: "clawhost:plugin/judge-plugin",
    additional_derives: [PartialEq],
    pub_export_macro: true,
    export_macro_name: "export_judge_world",
    default_bindings_module: "clawhost_sdk::bindings",
});
