//! A secret: written in the file, or read from the environment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The secret itself, or `env:NAME` to read it from the environment variable NAME.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Secret(String);

/// A secret could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("names the environment variable {0}, which is not set; export it before starting")]
pub struct SecretError(String);

impl Secret {
    /// A secret as it stands in the configuration.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret.
    ///
    /// # Errors
    /// Its environment variable is not set.
    pub fn read(&self) -> Result<String, SecretError> {
        match self.variable() {
            Some(name) => std::env::var(name).map_err(|_| SecretError(name.to_owned())),
            None => Ok(self.0.clone()),
        }
    }

    /// The same secret for printing: only the name of an environment variable is kept.
    #[must_use]
    pub fn redacted(&self) -> Self {
        match self.variable() {
            Some(_) => self.clone(),
            None => Self::new("(redacted)"),
        }
    }

    fn variable(&self) -> Option<&str> {
        self.0.strip_prefix("env:")
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.redacted().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_read_and_not_shown() {
        let plain = Secret::new("hunter2");
        assert_eq!(plain.read().unwrap(), "hunter2");
        assert_eq!(format!("{plain:?}"), "(redacted)");
        let missing = Secret::new("env:CLAWHOST_TEST_NO_SUCH_SECRET");
        assert_eq!(format!("{missing:?}"), "env:CLAWHOST_TEST_NO_SUCH_SECRET");
        assert!(
            missing
                .read()
                .unwrap_err()
                .to_string()
                .contains("NO_SUCH_SECRET")
        );
    }
}
