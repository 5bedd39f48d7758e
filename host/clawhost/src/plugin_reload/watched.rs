//! One active plugin, its file, and the builds that were rejected since.

use clawhost_plugins::{Grants, Plugin};
use serde_json::{Value, json};

use super::file_stamp::FileStamp;
use crate::plugin_loader::Source;

/// One active plugin.
pub(super) struct WatchedPlugin {
    /// The component, with the grants it was loaded with.
    pub(super) plugin: Plugin,
    pub(super) granted: Grants,
    /// Why it was revoked.
    pub(super) revoked: Option<String>,
    /// The grants file at the last check of this component's grants.
    pub(super) grants: SeenStamp,
    /// The plugin's file, and the grants file, when the plugin's file was last read.
    pub(super) file: SeenStamp,
    pub(super) file_grants: SeenStamp,
    /// The last rejected build.
    pub(super) rejected: Option<RejectedBuild>,
    /// Why the grants file could not be read. Separate from `rejected`: reading the plugin's file does not clear it.
    grants_error: Option<String>,
}

/// A file at the last check; the inner value is None if the file did not exist.
pub(super) type SeenStamp = Option<Option<FileStamp>>;

/// A build that was rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RejectedBuild {
    /// None if the file could not be read.
    pub(super) digest: Option<String>,
    reason: String,
}

impl WatchedPlugin {
    /// A plugin that has just been loaded. The first check reads its files.
    pub(super) fn new(source: Source) -> Self {
        Self {
            plugin: source.plugin,
            granted: source.granted,
            revoked: None,
            grants: None,
            file: None,
            file_grants: None,
            rejected: None,
            grants_error: None,
        }
    }

    /// Whether any of its imports requires a grant.
    pub(super) fn requires_grants(&self) -> bool {
        let mut imports = self.plugin.imports().iter();
        imports.any(|import| requires_grant(import))
    }

    /// Records a rejected build; the active one stays. Returns whether this is new.
    pub(super) fn reject_build(&mut self, digest: Option<String>, error: &anyhow::Error) -> bool {
        let rejected = RejectedBuild {
            digest,
            reason: format!("{error:#}"),
        };
        if self.rejected.as_ref() == Some(&rejected) {
            return false;
        }
        self.warn(&rejected.reason);
        self.rejected = Some(rejected);
        true
    }

    /// Records or clears an error of the grants file; the current grants stay. Returns whether this is new.
    pub(super) fn set_grants_error(&mut self, error: Option<&anyhow::Error>) -> bool {
        let reason = error.map(|error| format!("{error:#}"));
        if self.grants_error == reason {
            return false;
        }
        if let Some(reason) = &reason {
            self.warn(reason);
        }
        self.grants_error = reason;
        true
    }

    fn warn(&self, reason: &str) {
        tracing::warn!(
            plugin = %self.plugin.name(),
            %reason,
            in_use = %self.plugin.digest(),
            "rejected a plugin change; the active build stays in use"
        );
    }

    pub(super) fn status(&self) -> Value {
        let mut status = json!({
            "name": self.plugin.name(),
            "kind": self.plugin.kind().to_string(),
            "digest": self.plugin.digest(),
            "imports": self.plugin.imports(),
            "granted": self.granted.difference(&Grants::default()),
        });
        if let Some(reason) = &self.revoked {
            status["revoked"] = json!({"reason": reason});
        }
        let build = self.rejected.as_ref();
        let rejected = build.map(|build| json!({"digest": build.digest, "reason": build.reason}));
        let grants = self.grants_error.as_ref();
        let grants = grants.map(|reason| json!({"digest": null, "reason": reason}));
        if let Some(rejected) = rejected.or(grants) {
            status["refused"] = rejected;
        }
        status
    }
}

/// Whether an import is one of the contract's interfaces that require a grant.
fn requires_grant(import: &str) -> bool {
    let Some(name) = import.strip_prefix("clawhost:plugin/") else {
        return false;
    };
    let interface = name
        .split_once('@')
        .map_or(name, |(interface, _)| interface);
    !matches!(interface, "log" | "context" | "types")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_with_side_effects_require_grants() {
        for (import, expected) in [
            ("clawhost:plugin/model@0.1.2", true),
            ("clawhost:plugin/http@0.1.2", true),
            ("clawhost:plugin/log@0.1.2", false),
            ("clawhost:plugin/types@0.1.2", false),
            ("wasi:io/streams@0.2.6", false),
        ] {
            assert_eq!(requires_grant(import), expected, "{import}");
        }
    }
}
