//! Owners of adapters.

use std::fmt;
use std::str::FromStr;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use serde::{Deserialize, Serialize};

/// Whose adapter it is: that of an API key (`key:NAME`) or of a user of an API key (`user:KEY/USER`). Each owner has
/// samples, reward baselines, optimizer state and versions of its own. What has no owner belongs to the shared adapter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AdapterOwner(String);

/// A text that names no owner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no owner of an adapter; use `key:NAME` or `user:KEY/USER`")]
pub struct OwnerError(String);

impl AdapterOwner {
    /// The owner of the requests of an API key.
    pub fn of_key(name: &str) -> Self {
        Self(format!("key:{name}"))
    }

    /// The owner of the requests of a user. Users of two keys are two owners, also if they have the same name.
    pub fn of_user(key: Option<&str>, user: &str) -> Self {
        // The first slash separates key and user.
        let key = key.unwrap_or_default();
        let key = key.replace('%', "%25").replace('/', "%2F");
        Self(format!("user:{key}/{user}"))
    }

    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AdapterOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for AdapterOwner {
    type Err = OwnerError;

    fn from_str(text: &str) -> Result<Self, OwnerError> {
        let key = text
            .strip_prefix("key:")
            .is_some_and(|name| !name.is_empty());
        let user = text
            .strip_prefix("user:")
            .and_then(|rest| rest.split_once('/'));
        if key || user.is_some_and(|(_, user)| !user.is_empty()) {
            return Ok(Self(text.to_owned()));
        }
        Err(OwnerError(text.to_owned()))
    }
}

impl TryFrom<String> for AdapterOwner {
    type Error = OwnerError;

    fn try_from(text: String) -> Result<Self, OwnerError> {
        text.parse()
    }
}

impl From<AdapterOwner> for String {
    fn from(owner: AdapterOwner) -> Self {
        owner.0
    }
}

impl ToSql for AdapterOwner {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::from(self.as_str()))
    }
}

impl FromSql for AdapterOwner {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_str()?.parse().map_err(FromSqlError::other)
    }
}

/// The queued samples of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerQueue {
    /// The owner; `None` is the shared adapter.
    pub owner: Option<AdapterOwner>,
    /// Queued samples.
    pub samples: u64,
    /// Creation time of the oldest one, unix milliseconds.
    pub oldest_ms: i64,
}
