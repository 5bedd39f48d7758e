//! Why a constraint is rejected, and the limits that it names.

use std::time::Duration;

use super::schema::SchemaError;

/// Maximum concurrent compilations.
pub(super) const MAX_CONCURRENT: usize = 2;

/// How long a request waits for its grammar. The first compilation of a process also builds the vocabulary trie.
pub(super) const COMPILE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a constraint is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// A schema cannot be enforced.
    #[error("the schema{} cannot be enforced: {error}", tool.as_ref().map(|name| format!(" of the tool `{name}`")).unwrap_or_default())]
    Schema {
        /// The tool whose arguments the schema describes; `None` for the response format.
        tool: Option<String>,
        /// Location and reason.
        error: SchemaError,
    },
    /// It cannot be compiled to a grammar.
    #[error("the response format is invalid: {0}")]
    Invalid(String),
    /// The compilation timed out.
    #[error("the schema takes more than {} s to compile; simplify it", COMPILE_TIMEOUT.as_secs())]
    TooSlow,
    /// Too many compilations are running.
    #[error("{MAX_CONCURRENT} other schemas are being compiled; try again shortly")]
    Busy,
}

impl From<SchemaError> for ConstraintError {
    fn from(error: SchemaError) -> Self {
        Self::Schema { tool: None, error }
    }
}

impl ConstraintError {
    /// Adds the name of the tool whose schema it is.
    pub(super) fn with_tool(self, name: &str) -> Self {
        match self {
            Self::Schema { error, .. } => Self::Schema {
                tool: Some(name.to_owned()),
                error,
            },
            other => other,
        }
    }
}
