//! Validation of values, with errors that name the key.

use std::borrow::Cow;
use std::time::Duration;

use crate::duration::duration_text;
use crate::size::size_text;

/// An invalid configuration value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {rule}")]
pub struct OptionsError {
    /// Full name of the key, such as `training.batch_size`.
    pub key: Cow<'static, str>,
    /// The invalid value.
    pub value: String,
    /// What a valid value must satisfy.
    pub rule: &'static str,
}

/// Returns an error for the key unless `holds`.
pub(crate) fn require(
    holds: bool,
    key: impl Into<Cow<'static, str>>,
    value: impl ToString,
    rule: &'static str,
) -> Result<(), OptionsError> {
    if holds {
        Ok(())
    } else {
        Err(OptionsError {
            key: key.into(),
            value: value.to_string(),
            rule,
        })
    }
}

pub(crate) fn require_fraction(key: &'static str, value: f64) -> Result<(), OptionsError> {
    require(
        (0.0..=1.0).contains(&value),
        key,
        value,
        "must be between 0 and 1",
    )
}

pub(crate) fn require_non_negative(key: &'static str, value: f64) -> Result<(), OptionsError> {
    require(
        value >= 0.0 && value.is_finite(),
        key,
        value,
        "must be 0 or more",
    )
}

pub(crate) fn require_positive(key: &'static str, value: f64) -> Result<(), OptionsError> {
    require(
        value > 0.0 && value.is_finite(),
        key,
        value,
        "must be more than 0",
    )
}

pub(crate) fn require_at_least_one(key: &'static str, value: usize) -> Result<(), OptionsError> {
    require(value >= 1, key, value, "must be at least 1")
}

/// Longest time that can be configured: ten years, which keeps deadlines representable.
const MAX_DURATION: Duration = Duration::from_secs(3650 * 86_400);

/// Checks that a duration is at most [`MAX_DURATION`].
pub(crate) fn require_duration(key: &'static str, value: Duration) -> Result<(), OptionsError> {
    require_between(
        key,
        value,
        Duration::ZERO,
        MAX_DURATION,
        "must be at most 3650d",
    )
}

/// Checks that a timeout is more than 0 and at most [`MAX_DURATION`].
pub(crate) fn require_timeout(key: &'static str, value: Duration) -> Result<(), OptionsError> {
    let least = Duration::from_millis(1);
    require_between(
        key,
        value,
        least,
        MAX_DURATION,
        "must be more than 0 and at most 3650d",
    )
}

pub(crate) fn require_between(
    key: impl Into<Cow<'static, str>>,
    value: Duration,
    least: Duration,
    most: Duration,
    rule: &'static str,
) -> Result<(), OptionsError> {
    let text = format!("\"{}\"", duration_text(value));
    require((least..=most).contains(&value), key, text, rule)
}

/// Checks that a size is within a range.
pub(crate) fn require_size(
    key: impl Into<Cow<'static, str>>,
    value: u64,
    allowed: std::ops::RangeInclusive<u64>,
    rule: &'static str,
) -> Result<(), OptionsError> {
    let text = format!("\"{}\"", size_text(value));
    require(allowed.contains(&value), key, text, rule)
}
