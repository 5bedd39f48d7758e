//! Generated from `wit/`. Authors meet these types through the crate's root.
//!
//! One module a world, because a component must carry the type of its own world alone. What worlds
//! share is generated here, once.

#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::unimplemented,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

pub mod advantage;
pub mod environment;
pub mod group_judge;
pub mod hint;
pub mod loss;

wit_bindgen::generate!({
    path: "../../wit",
    world: "clawhost:plugin/judge-plugin",
    additional_derives: [PartialEq],
    pub_export_macro: true,
    export_macro_name: "export_judge_world",
    default_bindings_module: "clawhost_sdk::bindings",
});
