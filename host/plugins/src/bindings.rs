//! Generated bindings of the WIT package: the host interfaces that this build provides and the interfaces that plugins
//! export.
//!
//! There is one module for all worlds, so that there is one generated `Message` type. A component exports one of the
//! interfaces, and only that one is looked up. Generated names are private to this crate.

#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    unsafe_code,
    clippy::all,
    clippy::unwrap_used,
    clippy::panic,
    reason = "generated code"
)]

wasmtime::component::bindgen!({
    path: "../../wit",
    inline: "
        package clawhost:host@0.1.0;
        world wired {
            import clawhost:plugin/types@0.1.2;
            import clawhost:plugin/log@0.1.2;
            import clawhost:plugin/context@0.1.2;
            import clawhost:plugin/model@0.1.2;
            import clawhost:plugin/state@0.1.2;
            import clawhost:plugin/http@0.1.2;
            import clawhost:plugin/sandbox@0.1.2;
            import clawhost:plugin/display@0.1.2;
            export clawhost:plugin/judge@0.1.2;
            export clawhost:plugin/group-judge@0.1.2;
            export clawhost:plugin/hint-extractor@0.1.2;
            export clawhost:plugin/filter@0.1.2;
            export clawhost:plugin/loss@0.1.2;
            export clawhost:plugin/pair-loss@0.1.2;
            export clawhost:plugin/advantage@0.1.2;
            export clawhost:plugin/gate@0.1.2;
            export clawhost:plugin/environment@0.1.2;
        }
    ",
    world: "clawhost:host/wired",
    imports: { default: async | trappable },
    exports: { default: async },
    with: {
        "clawhost:plugin/sandbox.machine": clawhost_sandbox::Machine,
        "clawhost:plugin/sandbox.terminal": clawhost_sandbox::Terminal,
        "clawhost:plugin/display.surface": clawhost_sandbox::Display,
    },
});

pub use clawhost::plugin::{context, display, http, log, model, sandbox, state, types};
pub use exports::clawhost::plugin::{
    advantage, environment, filter, gate, group_judge, hint_extractor, judge, loss, pair_loss,
};
