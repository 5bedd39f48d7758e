//! What an operator lets a component do, pinned to the digest of exactly that component.
//!
//! A grant never follows a file name: a new build has a new digest and starts without grants. The
//! imports of a component say what it *wants*; nothing outside this module decides what it *gets*.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::profile::Profile;

/// A host interface that a component can import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Capability {
    /// Log lines. Always granted.
    Log,
    /// Which call this is, and settings. Always granted.
    Context,
    /// Completions and scores from models, under a budget.
    Model,
    /// Durable key-value state of the plugin.
    State,
    /// HTTP exchanges with allow-listed origins.
    Http,
    /// Processes in a sandbox.
    Sandbox,
    /// A display to look at and act on.
    Display,
}

impl Capability {
    /// Reads the name of an interface of `clawhost:plugin`.
    pub(crate) fn from_interface(name: &str) -> Option<Capability> {
        Some(match name {
            "log" => Capability::Log,
            "context" => Capability::Context,
            "model" => Capability::Model,
            "state" => Capability::State,
            "http" => Capability::Http,
            "sandbox" => Capability::Sandbox,
            "display" => Capability::Display,
            _ => return None,
        })
    }

    /// The name of its interface and in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Capability::Log => "log",
            Capability::Context => "context",
            Capability::Model => "model",
            Capability::State => "state",
            Capability::Http => "http",
            Capability::Sandbox => "sandbox",
            Capability::Display => "display",
        }
    }

    /// Granted to every component: it reaches nothing outside the call.
    pub fn is_harmless(self) -> bool {
        matches!(self, Capability::Log | Capability::Context)
    }
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The entry of one plugin in the configuration: `[plugins]`, `NAME = { … }`.
///
/// The default grants nothing beyond logging and the call's own context.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Grants {
    /// sha256 of the component, in hex. Set, it must match; capabilities are granted only to it.
    pub sha256: Option<String>,
    /// Capabilities granted to that digest.
    pub allow: BTreeSet<Capability>,
    /// Model aliases the plugin may ask; empty means all that the host offers.
    pub models: BTreeSet<String>,
    /// How to run it. Default deterministic.
    pub profile: Profile,
}

impl Grants {
    /// Whether a component of this digest may import the capability.
    pub(crate) fn covers(&self, capability: Capability, digest: &str) -> bool {
        capability.is_harmless()
            || (self.allow.contains(&capability) && self.sha256.as_deref() == Some(digest))
    }

    /// The configuration line that adds capabilities to what is granted already.
    pub(crate) fn line_that_allows(
        &self,
        name: &str,
        digest: &str,
        wanted: impl IntoIterator<Item = Capability>,
    ) -> String {
        let mut allow = self.allow.clone();
        allow.extend(wanted);
        let allow: Vec<String> = allow.iter().map(|c| format!("\"{c}\"")).collect();
        format!(
            "plugins.{} = {{ sha256 = \"{digest}\", allow = [{}] }}",
            toml_key(name),
            allow.join(", ")
        )
    }
}

/// A TOML key: bare when it can be, else a quoted basic string.
fn toml_key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(bare) {
        name.to_owned()
    } else {
        let escaped: String = name
            .chars()
            .flat_map(|c| match c {
                '"' | '\\' => vec!['\\', c],
                c if c.is_control() => format!("\\u{:04X}", u32::from(c)).chars().collect(),
                c => vec![c],
            })
            .collect();
        format!("\"{escaped}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_bound_to_its_digest() {
        let grants = Grants {
            sha256: Some("aa".into()),
            allow: [Capability::Model].into(),
            ..Grants::default()
        };
        assert!(grants.covers(Capability::Model, "aa"));
        assert!(!grants.covers(Capability::Model, "bb"));
        assert!(!grants.covers(Capability::Http, "aa"));
        assert!(Grants::default().covers(Capability::Log, "bb"));
        let unpinned = Grants {
            sha256: None,
            ..grants
        };
        assert!(!unpinned.covers(Capability::Model, "aa"));
    }

    #[test]
    fn the_line_keeps_what_was_granted_and_quotes_odd_names() {
        let grants = Grants {
            allow: [Capability::State].into(),
            ..Grants::default()
        };
        assert_eq!(
            grants.line_that_allows("my-judge", "ab12", [Capability::Model]),
            r#"plugins.my-judge = { sha256 = "ab12", allow = ["model", "state"] }"#
        );
        assert_eq!(toml_key("a \"b\".wasm\n"), "\"a \\\"b\\\".wasm\\u000A\"");
    }
}
