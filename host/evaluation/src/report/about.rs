//! What all reports need besides the outcome.

/// Facts about the run that only the caller knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Facts about the served model (model, digest, judge, …), in display order.
    pub served: Vec<(String, String)>,
    /// The command line that reproduces the run.
    pub reproduce: String,
    /// The date of the run.
    pub date: String,
}

/// Window of the moving average in all plots.
pub(super) const SMOOTHING: usize = 12;
