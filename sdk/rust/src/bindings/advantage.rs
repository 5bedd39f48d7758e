//! Generated from `wit/` for world `advantage-plugin`.

wit_bindgen::generate!({
    path: "../../wit",
    world: "clawhost:plugin/advantage-plugin",
    additional_derives: [PartialEq],
    pub_export_macro: true,
    export_macro_name: "export_advantage_world",
    default_bindings_module: "clawhost_sdk::bindings::advantage",
    with: {
        "clawhost:plugin/types@0.1.2": crate::bindings::clawhost::plugin::types,
        "clawhost:plugin/log@0.1.2": crate::bindings::clawhost::plugin::log,
        "clawhost:plugin/context@0.1.2": crate::bindings::clawhost::plugin::context,
    },
    generate_all,
});
