//! Validation of options, with errors that name the key.

/// An invalid configuration value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {rule}")]
pub struct OptionsError {
    /// Full name of the key, such as `training.batch`.
    pub key: &'static str,
    /// The invalid value.
    pub value: String,
    /// What a valid value must satisfy.
    pub rule: &'static str,
}

/// Returns an error for the key unless `holds`.
pub(super) fn require(
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

pub(super) fn require_fraction(key: &'static str, value: f64) -> Result<(), OptionsError> {
    require(
        (0.0..=1.0).contains(&value),
        key,
        value,
        "must be between 0 and 1",
    )
}

pub(super) fn require_non_negative(key: &'static str, value: f64) -> Result<(), OptionsError> {
    require(
        value >= 0.0 && value.is_finite(),
        key,
        value,
        "must be 0 or more",
    )
}

pub(super) fn require_positive(key: &'static str, value: f64) -> Result<(), OptionsError> {
    require(
        value > 0.0 && value.is_finite(),
        key,
        value,
        "must be more than 0",
    )
}

pub(super) fn require_at_least_one(key: &'static str, value: usize) -> Result<(), OptionsError> {
    require(value >= 1, key, value, "must be at least 1")
}

/// Longest allowed wait; keeps deadlines representable.
pub(super) const MAX_WAIT_SECONDS: f64 = 30.0 * 24.0 * 3600.0;

pub(super) fn require_duration(key: &'static str, value: f64) -> Result<(), OptionsError> {
    require(
        (0.0..=MAX_WAIT_SECONDS).contains(&value),
        key,
        value,
        "must be between 0 and 2592000 seconds (30 days)",
    )
}
