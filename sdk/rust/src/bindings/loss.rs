//! Generated from `wit/` for world `loss-plugin`.

wit_bindgen::generate!({
    path: "../../wit",
    world: "clawhost:plugin/loss-plugin",
    additional_derives: [PartialEq],
    pub_export_macro: true,
    export_macro_name: "export_loss_world",
    default_bindings_module: "clawhost_sdk::bindings::loss",
    with: {
        "clawhost:plugin/types@0.1.2": crate::bindings::clawhost::plugin::types,
        "clawhost:plugin/log@0.1.2": crate::bindings::clawhost::plugin::log,
        "clawhost:plugin/context@0.1.2": crate::bindings::clawhost::plugin::context,
    },
    generate_all,
});
