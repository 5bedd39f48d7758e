//! Sampling parameters that all dialects have.

use clawhost_policy::SamplingParams;

use crate::error::ApiError;
use crate::fields::Fields;

/// Parses `temperature` (at most `max_temperature`) and `top_p` into `sampling`.
pub(crate) fn parse_temperature_and_top_p(
    fields: Fields<'_, '_>,
    sampling: &mut SamplingParams,
    max_temperature: f64,
) -> Result<(), ApiError> {
    if let Some(temperature) = fields.number("temperature", 0.0, max_temperature)? {
        sampling.temperature = temperature as f32;
    }
    if let Some(top_p) = fields.number("top_p", 0.0, 1.0)? {
        sampling.top_p = top_p as f32;
    }
    if sampling.top_p <= 0.0 {
        return Err(ApiError::invalid(
            "top_p",
            "`top_p` is 0; it must be above 0 (use `temperature: 0` for greedy decoding)",
        ));
    }
    Ok(())
}
