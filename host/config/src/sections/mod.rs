//! One file per table of the configuration.

pub(crate) mod api_keys;
pub(crate) mod engine;
pub(crate) mod environments;
pub(crate) mod experience;
pub(crate) mod judging;
pub(crate) mod model;
pub(crate) mod models;
pub(crate) mod oci;
pub(crate) mod plugin_limits;
pub(crate) mod plugins;
pub(crate) mod remote;
pub(crate) mod sandbox;
pub(crate) mod server;
pub(crate) mod sessions;
pub(crate) mod training;
