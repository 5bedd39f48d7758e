//! The two settings of drawing that every dialect has.

use clawhost_policy::Sampling;

use crate::error::ApiError;
use crate::fields::Fields;

/// Reads `temperature`, at most `hottest`, and `top_p`, over what `sampling` has.
pub(crate) fn temperature_and_top_p(
    fields: Fields<'_, '_>,
    sampling: &mut Sampling,
    hottest: f64,
) -> Result<(), ApiError> {
    if let Some(temperature) = fields.number("temperature", 0.0, hottest)? {
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
