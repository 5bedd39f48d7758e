//! `[[api_keys]]`: who may use the server, and for what.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::secret::Secret;

/// What an API key may do.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Generate replies, list models, view and end the sessions of this key.
    Chat,
    /// Score the replies of this key through `/v1/feedback`.
    Feedback,
    /// View, score, end and delete the sessions of any key; read metrics and the operator page.
    Operator,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 3] = [Scope::Chat, Scope::Feedback, Scope::Operator];

    /// The name in configuration files.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Chat => "chat",
            Scope::Feedback => "feedback",
            Scope::Operator => "operator",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One `[[api_keys]]` entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyConfig {
    /// Name of the key in sessions and logs. A key owns what it collects, so names are unique.
    pub name: String,
    /// The secret itself, or `env:NAME` to read it from the environment.
    pub secret: Secret,
    /// What the key may do. Default all three.
    #[serde(default = "all_scopes")]
    pub scopes: Vec<Scope>,
    /// Requests per minute. Default unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Adapter version for requests that name none; 0 = the base model. Default: the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_version: Option<u64>,
}

fn all_scopes() -> Vec<Scope> {
    Scope::ALL.to_vec()
}

impl KeyConfig {
    /// A key with all scopes and no rate limit.
    pub fn with_all_scopes(name: &str, secret: &str) -> Self {
        Self {
            name: name.to_owned(),
            secret: Secret::new(secret),
            scopes: all_scopes(),
            requests_per_minute: None,
            adapter_version: None,
        }
    }
}
