//! The languages that plugins are written in, and the names of kinds.

use clawhost_plugins::Kind;
use serde::{Deserialize, Serialize};

/// A language with an SDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Rust, for `wasm32-unknown-unknown`. The smallest and fastest components.
    Rust,
    /// Python, through componentize-py.
    Python,
    /// JavaScript, through componentize-qjs.
    Js,
    /// C, through zig or the clang of wasi-sdk.
    C,
}

impl Language {
    /// All languages.
    pub const ALL: [Language; 4] = [Language::Rust, Language::Python, Language::Js, Language::C];

    /// Its name on the command line and in `plugin.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Language::Rust => "rust",
            Language::Python => "python",
            Language::Js => "js",
            Language::C => "c",
        }
    }

    /// Whether there is a template for plugins of this kind.
    pub fn can(self, kind: Kind) -> bool {
        match kind {
            // An environment exports a resource, for which the C bindings have no short way yet.
            Kind::Environment => self != Language::C,
            _ => true,
        }
    }

    /// The file in which the author works, from the plugin's folder.
    pub fn source(self) -> &'static str {
        match self {
            Language::Rust => "src/lib.rs",
            Language::Python => "plugin.py",
            Language::Js => "plugin.js",
            Language::C => "plugin.c",
        }
    }
}

impl std::fmt::Display for Language {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

pub(crate) fn kind_names() -> String {
    Kind::ALL.map(Kind::interface).join(", ")
}
