//! The score of a reply.

use serde::Serialize;

/// The score of a reply and its factors, each in [0, 1].
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Score {
    /// The reported score: the product of the factors.
    pub value: f64,
    /// Style: plainness of homework, friendliness times specificity of grading.
    pub style: f64,
    /// Correctness of the content.
    pub correctness: f64,
}

impl Score {
    pub(super) fn new(style: f64, correctness: f64) -> Score {
        Score {
            value: style * correctness,
            style,
            correctness,
        }
    }
}
