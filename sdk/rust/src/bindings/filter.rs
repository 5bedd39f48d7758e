//! Generated from `wit/` for world `filter-plugin`.

wit_bindgen::generate!({
    path: "../../wit",
    world: "clawhost:plugin/filter-plugin",
    additional_derives: [PartialEq],
    pub_export_macro: true,
    export_macro_name: "export_filter_world",
    default_bindings_module: "clawhost_sdk::bindings::filter",
    with: {
        "clawhost:plugin/types@0.1.2": crate::bindings::clawhost::plugin::types,
        "clawhost:plugin/log@0.1.2": crate::bindings::clawhost::plugin::log,
        "clawhost:plugin/context@0.1.2": crate::bindings::clawhost::plugin::context,
        "clawhost:plugin/model@0.1.2": crate::bindings::clawhost::plugin::model,
        "clawhost:plugin/state@0.1.2": crate::bindings::clawhost::plugin::state,
    },
    generate_all,
});
