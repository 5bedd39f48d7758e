//! One plugin that is in use, its file, and what has become of the builds after it.

use clawhost_plugins::{Grants, Plugin};
use serde_json::{Value, json};

use super::Stamp;
use crate::loading::Source;

/// One plugin in use.
pub(super) struct Watched {
    /// The component, with what it was granted last.
    pub(super) plugin: Plugin,
    pub(super) granted: Grants,
    /// Why it is not asked any more.
    pub(super) revoked: Option<String>,
    /// The file of the grants when what this component is granted was looked at last.
    pub(super) grants: Seen,
    /// The plugin's file, and that of the grants, when the file was read last.
    pub(super) file: Seen,
    pub(super) file_grants: Seen,
    /// The build that was not taken.
    pub(super) refused: Option<Refused>,
    /// Why the file of the grants could not be read. Apart from `refused`: a look at the plugin's file does not mend it.
    grants_refused: Option<String>,
}

/// A file as it was looked at last; the inner one is none where there was no file.
pub(super) type Seen = Option<Option<Stamp>>;

/// A build that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    /// None where the file could not be read.
    pub(super) digest: Option<String>,
    reason: String,
}

impl Watched {
    /// One that has just been loaded. Its files are not known yet: the first look reads them.
    pub(super) fn new(source: Source) -> Self {
        Self {
            plugin: source.plugin,
            granted: source.granted,
            revoked: None,
            grants: None,
            file: None,
            file_grants: None,
            refused: None,
            grants_refused: None,
        }
    }

    /// Whether anything that it imports has to be granted.
    pub(super) fn has_to_be_granted(&self) -> bool {
        let mut imports = self.plugin.imports().iter();
        imports.any(|import| has_to_be_granted(import))
    }

    /// Keeps the one in use, and says why. Tells whether that is new.
    pub(super) fn refuse(&mut self, digest: Option<String>, error: &anyhow::Error) -> bool {
        let refused = Refused {
            digest,
            reason: format!("{error:#}"),
        };
        if self.refused.as_ref() == Some(&refused) {
            return false;
        }
        self.warn(&refused.reason);
        self.refused = Some(refused);
        true
    }

    /// Keeps what is granted because the file of the grants cannot be read, or forgets that it could not. Returns whether
    /// that is new.
    pub(super) fn refuse_grants(&mut self, error: Option<&anyhow::Error>) -> bool {
        let reason = error.map(|error| format!("{error:#}"));
        if self.grants_refused == reason {
            return false;
        }
        if let Some(reason) = &reason {
            self.warn(reason);
        }
        self.grants_refused = reason;
        true
    }

    fn warn(&self, reason: &str) {
        tracing::warn!(
            plugin = %self.plugin.name(),
            %reason,
            in_use = %self.plugin.digest(),
            "what has changed is refused; the build before stays in use"
        );
    }

    pub(super) fn told(&self) -> Value {
        let mut told = json!({
            "name": self.plugin.name(),
            "kind": self.plugin.kind().to_string(),
            "digest": self.plugin.digest(),
            "imports": self.plugin.imports(),
            "granted": self.granted.beyond(&Grants::default()),
        });
        let Some(fields) = told.as_object_mut() else {
            return told;
        };
        if let Some(reason) = &self.revoked {
            fields.insert("revoked".to_owned(), json!({"reason": reason}));
        }
        let build = self.refused.as_ref();
        let refused =
            build.map(|refused| json!({"digest": refused.digest, "reason": refused.reason}));
        let grants = self.grants_refused.as_ref();
        let grants = grants.map(|reason| json!({"digest": null, "reason": reason}));
        if let Some(refused) = refused.or(grants) {
            fields.insert("refused".to_owned(), refused);
        }
        told
    }
}

/// An interface of the contract that is not everybody's.
fn has_to_be_granted(import: &str) -> bool {
    let Some(name) = import.strip_prefix("clawhost:plugin/") else {
        return false;
    };
    let interface = name.split('@').next().unwrap_or(name);
    !matches!(interface, "log" | "context" | "types")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reaches_out_of_the_call_has_to_be_granted() {
        for (import, expected) in [
            ("clawhost:plugin/model@0.1.0", true),
            ("clawhost:plugin/http@0.1.0", true),
            ("clawhost:plugin/log@0.1.0", false),
            ("clawhost:plugin/types@0.1.0", false),
            ("wasi:io/streams@0.2.6", false),
        ] {
            assert_eq!(has_to_be_granted(import), expected, "{import}");
        }
    }
}
