//! Learning rate schedule.

use clawhost_config::{LrScheduleShape, OptimizerOptions};

/// Learning rate as a function of the update number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LrSchedule {
    /// Peak learning rate.
    pub peak: f64,
    /// Warmup updates, over which the rate rises from peak / warmup to the peak; 0 = none.
    pub warmup: u64,
    /// Shape after warmup.
    pub shape: LrScheduleShape,
    /// Update at which linear and cosine decay reach the floor.
    pub total: u64,
    /// Final rate as a fraction of the peak.
    pub floor: f64,
}

impl From<&OptimizerOptions> for LrSchedule {
    fn from(options: &OptimizerOptions) -> Self {
        Self {
            peak: options.learning_rate,
            warmup: options.warmup_steps,
            shape: options.lr_scheduler_type,
            total: options.total_steps,
            floor: options.min_lr_ratio,
        }
    }
}

impl LrSchedule {
    /// Learning rate of update `number`, counted from 1.
    #[allow(
        clippy::cast_precision_loss,
        reason = "update numbers are far below 2^53"
    )]
    pub fn learning_rate(&self, number: u64) -> f64 {
        if number < self.warmup {
            return self.peak * number as f64 / self.warmup as f64;
        }
        let span = self.total.saturating_sub(self.warmup).max(1) as f64;
        let passed = (number.saturating_sub(self.warmup) as f64 / span).min(1.0);
        let left = match self.shape {
            LrScheduleShape::Constant => return self.peak,
            LrScheduleShape::Linear => 1.0 - passed,
            LrScheduleShape::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * passed).cos()),
        };
        self.peak * (self.floor + (1.0 - self.floor) * left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(shape: LrScheduleShape) -> LrSchedule {
        LrSchedule {
            peak: 2.0,
            warmup: 4,
            shape,
            total: 12,
            floor: 0.1,
        }
    }

    #[test]
    fn the_rate_warms_up_and_decays() {
        for shape in [
            LrScheduleShape::Constant,
            LrScheduleShape::Linear,
            LrScheduleShape::Cosine,
        ] {
            assert_eq!(schedule(shape).learning_rate(1), 0.5);
            assert_eq!(schedule(shape).learning_rate(4), 2.0);
        }
        assert_eq!(schedule(LrScheduleShape::Constant).learning_rate(1000), 2.0);
        assert!((schedule(LrScheduleShape::Linear).learning_rate(8) - 1.1).abs() < 1e-12);
        assert!((schedule(LrScheduleShape::Cosine).learning_rate(8) - 1.1).abs() < 1e-12);
        assert!((schedule(LrScheduleShape::Linear).learning_rate(12) - 0.2).abs() < 1e-12);
        assert!((schedule(LrScheduleShape::Cosine).learning_rate(99) - 0.2).abs() < 1e-12);
    }
}
