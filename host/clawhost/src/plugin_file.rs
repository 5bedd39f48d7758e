//! Component files: their names and bytes.

use std::path::Path;

use anyhow::{Context, Result};
use clawhost_plugins::HostOptions;

/// A plugin's name: the file name without its extension.
pub(crate) fn plugin_name(path: &Path) -> String {
    path.file_stem()
        .map_or_else(|| "plugin".to_owned(), |s| s.to_string_lossy().into_owned())
}

/// Reads a component of at most the default maximum size.
pub(crate) fn read_plugin(path: &Path) -> Result<Vec<u8>> {
    read_plugin_limited(path, HostOptions::default().config.max_component_size)
}

/// Reads a component of at most `limit` bytes. Only regular files are read.
pub(crate) fn read_plugin_limited(path: &Path, limit: usize) -> Result<Vec<u8>> {
    clawhost_plugins::read_regular_file(path, limit as u64).with_context(|| {
        format!(
            "cannot read the plugin {}; pass the path of a .wasm component",
            path.display()
        )
    })
}
