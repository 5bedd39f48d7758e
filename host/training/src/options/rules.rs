//! Rules that options must keep, and the error that names the key.

/// A configuration value that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {rule}")]
pub struct OptionsError {
    /// Full name of the key, such as `training.batch`.
    pub key: &'static str,
    /// The value as given.
    pub value: String,
    /// What would be right.
    pub rule: &'static str,
}

/// A rule broken is an error that names the key.
pub(super) fn rule(
    holds: bool,
    key: &'static str,
    value: impl ToString,
    rule: &'static str,
) -> Result<(), OptionsError> {
    if holds {
        Ok(())
    } else {
        Err(OptionsError {
            key,
            value: value.to_string(),
            rule,
        })
    }
}

pub(super) fn share(key: &'static str, value: f64) -> Result<(), OptionsError> {
    rule(
        (0.0..=1.0).contains(&value),
        key,
        value,
        "must be between 0 and 1",
    )
}

pub(super) fn not_negative(key: &'static str, value: f64) -> Result<(), OptionsError> {
    rule(
        value >= 0.0 && value.is_finite(),
        key,
        value,
        "must be 0 or more",
    )
}

pub(super) fn positive(key: &'static str, value: f64) -> Result<(), OptionsError> {
    rule(
        value > 0.0 && value.is_finite(),
        key,
        value,
        "must be more than 0",
    )
}

pub(super) fn at_least_one(key: &'static str, value: usize) -> Result<(), OptionsError> {
    rule(value >= 1, key, value, "must be at least 1")
}

/// Longest wait that is taken, so that a deadline is always a time that exists.
pub(super) const LONGEST_WAIT: f64 = 30.0 * 24.0 * 3600.0;

pub(super) fn seconds(key: &'static str, value: f64) -> Result<(), OptionsError> {
    rule(
        (0.0..=LONGEST_WAIT).contains(&value),
        key,
        value,
        "must be between 0 and 2592000 seconds (30 days)",
    )
}
