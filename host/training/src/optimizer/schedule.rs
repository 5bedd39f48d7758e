//! Learning rate over time.

/// Shape of the schedule after the warm-up. Default: constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Stays at the peak.
    #[default]
    Constant,
    /// Falls in a straight line to `floor` × peak at `total`.
    Linear,
    /// Falls along half a cosine to `floor` × peak at `total`.
    Cosine,
}

/// Learning rate as a function of the update's number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Highest rate.
    pub peak: f64,
    /// Updates over which the rate rises from peak / warmup to the peak; 0 = none.
    pub warmup: u64,
    /// Shape after the warm-up.
    pub shape: Shape,
    /// Update at which linear and cosine reach the floor.
    pub total: u64,
    /// Share of the peak that is kept at the end.
    pub floor: f64,
}

impl Schedule {
    /// Rate of update `number`, counted from 1.
    #[allow(
        clippy::cast_precision_loss,
        reason = "update numbers are far below 2^53"
    )]
    pub fn rate(&self, number: u64) -> f64 {
        if number < self.warmup {
            return self.peak * number as f64 / self.warmup as f64;
        }
        let span = self.total.saturating_sub(self.warmup).max(1) as f64;
        let passed = (number.saturating_sub(self.warmup) as f64 / span).min(1.0);
        let left = match self.shape {
            Shape::Constant => return self.peak,
            Shape::Linear => 1.0 - passed,
            Shape::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * passed).cos()),
        };
        self.peak * (self.floor + (1.0 - self.floor) * left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(shape: Shape) -> Schedule {
        Schedule {
            peak: 2.0,
            warmup: 4,
            shape,
            total: 12,
            floor: 0.1,
        }
    }

    #[test]
    fn rises_and_falls_where_it_should() {
        for shape in [Shape::Constant, Shape::Linear, Shape::Cosine] {
            assert_eq!(schedule(shape).rate(1), 0.5);
            assert_eq!(schedule(shape).rate(4), 2.0);
        }
        assert_eq!(schedule(Shape::Constant).rate(1000), 2.0);
        assert!((schedule(Shape::Linear).rate(8) - 1.1).abs() < 1e-12);
        assert!((schedule(Shape::Cosine).rate(8) - 1.1).abs() < 1e-12);
        assert!((schedule(Shape::Linear).rate(12) - 0.2).abs() < 1e-12);
        assert!((schedule(Shape::Cosine).rate(99) - 0.2).abs() < 1e-12);
    }
}
