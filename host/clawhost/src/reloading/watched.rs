//! One plugin that is in use, its file, and what has become of the builds after it.

use std::path::PathBuf;
use std::sync::Arc;

use clawhost_plugins::{Grants, Kind};
use serde_json::{Value, json};

use super::Stamp;
use crate::loading::Source;

/// One plugin and its file.
pub(super) struct Watched {
    pub(super) name: String,
    /// None for a component inside this program, which does not change.
    pub(super) path: Option<PathBuf>,
    pub(super) kind: Kind,
    /// The component in use.
    pub(super) digest: String,
    imports: Vec<String>,
    /// What it was granted when it was loaded.
    pub(super) granted: Grants,
    /// The component, where it may have to be loaded again because it imports what has to be granted.
    pub(super) bytes: Option<Arc<[u8]>>,
    /// Why it is not asked any more.
    pub(super) revoked: Option<String>,
    /// The files as they were looked at last.
    pub(super) file: Option<Stamp>,
    pub(super) grants: Option<Stamp>,
    pub(super) refused: Option<Refused>,
}

/// A build that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    /// None where the file, or the grants, could not be read.
    pub(super) digest: Option<String>,
    reason: String,
}

impl Watched {
    /// One that has just been loaded.
    pub(super) fn new(source: Source) -> Self {
        let imports = source.plugin.imports().to_vec();
        let is_kept = imports.iter().any(|import| has_to_be_granted(import));
        Self {
            name: source.plugin.name().to_owned(),
            path: source.file,
            kind: source.plugin.kind(),
            digest: source.plugin.digest().to_owned(),
            imports,
            granted: source.granted,
            bytes: is_kept.then(|| Arc::from(source.bytes)),
            revoked: None,
            // Not known: the first look reads the files.
            file: None,
            grants: None,
            refused: None,
        }
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
        tracing::warn!(
            plugin = %self.name,
            reason = %refused.reason,
            in_use = %self.digest,
            "what has changed is refused; the build before stays in use"
        );
        self.refused = Some(refused);
        true
    }

    pub(super) fn told(&self) -> Value {
        let mut told = json!({
            "name": self.name,
            "kind": self.kind.to_string(),
            "digest": self.digest,
            "imports": self.imports,
            "granted": self.granted.beyond(&Grants::default()),
        });
        let Some(fields) = told.as_object_mut() else {
            return told;
        };
        if let Some(reason) = &self.revoked {
            fields.insert("revoked".to_owned(), json!({"reason": reason}));
        }
        if let Some(refused) = &self.refused {
            let refused = json!({"digest": refused.digest, "reason": refused.reason});
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
