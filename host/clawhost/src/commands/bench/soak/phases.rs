//! The soak with training: compares the same streams without and with it.

use std::time::{Duration, Instant};

use clawhost_training::TrainingState;
use serde_json::{Value, json};

use super::super::figures::number;
use super::client::{ClientStats, Phase, SharedState};

/// Maximum share of the throughput that training may take beyond its share of the time while requests run.
const LOSS_MARGIN: f64 = 0.05;
/// Maximum ratio of the 99th percentile of gaps with training to that without.
const TAIL_BOUND: f64 = 2.0;
/// Share of the time before counting starts, and at which clients start to give feedback.
const WARMUP: f64 = 0.1;
const FEEDBACK_START: f64 = 0.5;

/// Drives the phases.
pub(super) struct Phases {
    duration: Duration,
    started: Instant,
    /// Start of the current phase.
    since: Instant,
    seconds: [f64; 3],
    /// Steps recorded before clients gave feedback.
    before: u64,
}

impl Phases {
    pub(super) fn new(duration: Duration, training: &TrainingState) -> Self {
        Self {
            duration,
            started: Instant::now(),
            since: Instant::now(),
            seconds: [0.0; 3],
            before: training.snapshot().steps,
        }
    }

    /// Enters the next phase when it is due; call it often. The phase with training starts at its first step, since it
    /// takes a while until a batch is full.
    pub(super) fn advance(&mut self, state: &SharedState, training: &TrainingState) {
        let passed = self.started.elapsed().as_secs_f64() / self.duration.as_secs_f64();
        let phase = state.phase();
        let gives_feedback = state.gives_feedback();
        if phase == Phase::Uncounted && !gives_feedback && passed >= WARMUP {
            self.enter(state, Phase::Without);
        } else if phase == Phase::Without && passed >= FEEDBACK_START {
            self.enter(state, Phase::Uncounted);
            state.start_feedback();
        } else if phase == Phase::Uncounted && gives_feedback && training.snapshot().running {
            self.enter(state, Phase::With);
        }
    }

    /// Ends the last phase.
    pub(super) fn end(&mut self, state: &SharedState) {
        self.enter(state, Phase::Uncounted);
    }

    fn enter(&mut self, state: &SharedState, phase: Phase) {
        let seconds = self.since.elapsed().as_secs_f64();
        self.seconds[state.phase() as usize] += seconds;
        self.since = Instant::now();
        state.enter(phase);
    }

    /// Compares the streams of both phases.
    pub(super) fn compare(
        &self,
        stats: &ClientStats,
        training: &TrainingState,
        share: f64,
    ) -> Comparison {
        let figures = |phase: Phase| {
            let seconds = self.seconds[phase as usize];
            let stats = stats.counts(phase);
            PhaseFigures {
                seconds,
                tokens_per_second: stats.tokens as f64 / seconds.max(1e-9),
                median: stats.gaps.quantile(0.5),
                p99: stats.gaps.quantile(0.99),
                gaps: stats.gaps.count(),
            }
        };
        let snapshot = training.snapshot();
        Comparison {
            without: figures(Phase::Without),
            with: figures(Phase::With),
            steps: snapshot.steps.saturating_sub(self.before),
            running: snapshot.running,
            share,
        }
    }
}

/// Figures of one phase.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PhaseFigures {
    pub(super) seconds: f64,
    pub(super) tokens_per_second: f64,
    /// Gaps between tokens, in milliseconds.
    pub(super) median: f64,
    pub(super) p99: f64,
    pub(super) gaps: u64,
}

/// The phases without and with training of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Comparison {
    pub(super) without: PhaseFigures,
    pub(super) with: PhaseFigures,
    /// Steps recorded in the run.
    pub(super) steps: u64,
    /// Whether a step was running at the end.
    pub(super) running: bool,
    /// Share of the time that training may use while requests run.
    pub(super) share: f64,
}

impl Comparison {
    /// Throughput with training relative to that without.
    fn throughput(&self) -> f64 {
        self.with.tokens_per_second / self.without.tokens_per_second.max(1e-9)
    }

    /// 99th percentile of gaps with training relative to that without.
    fn tail(&self) -> f64 {
        self.with.p99 / self.without.p99.max(1e-9)
    }

    /// The missed bounds, each with the measured value.
    pub(super) fn missed_bounds(&self) -> Vec<String> {
        if self.with.gaps == 0 || self.without.gaps == 0 {
            return vec!["training did not start in time; run longer with --minutes".to_owned()];
        }
        let mut missed = Vec::new();
        let (loss, bound) = (1.0 - self.throughput(), self.share + LOSS_MARGIN);
        if loss > bound {
            missed.push(format!(
                "training takes {:.0} % of the throughput, more than {:.0} %",
                100.0 * loss,
                100.0 * bound
            ));
        }
        if self.tail() > TAIL_BOUND {
            missed.push(format!(
                "the 99th percentile of gaps is {:.2} times that without training, more than {TAIL_BOUND}",
                self.tail()
            ));
        }
        missed
    }

    pub(super) fn json(&self) -> Value {
        let side = |side: &PhaseFigures| {
            json!({
                "seconds": side.seconds, "tokens_per_second": side.tokens_per_second,
                "gaps": {"count": side.gaps, "median_ms": side.median, "p99_ms": side.p99},
            })
        };
        json!({
            "without": side(&self.without), "with": side(&self.with),
            "throughput_ratio": self.throughput(), "p99_gap_ratio": self.tail(),
            "steps": self.steps, "step_running": self.running, "busy_share": self.share,
        })
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let side = |name: &str, side: &PhaseFigures| {
            format!(
                "{name}: {} tokens/s, gaps median {} ms, 99th percentile {} ms, for {:.0} s",
                number(side.tokens_per_second),
                number(side.median),
                number(side.p99),
                side.seconds
            )
        };
        vec![
            side("without training", &self.without),
            side("with training", &self.with),
            format!(
                "with relative to without: throughput {:.2}, 99th percentile of gaps {:.2}; {} steps recorded{}",
                self.throughput(),
                self.tail(),
                self.steps,
                if self.running { ", one running" } else { "" }
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(tokens_per_second: f64, p99: f64) -> PhaseFigures {
        PhaseFigures {
            seconds: 10.0,
            tokens_per_second,
            median: 5.0,
            p99,
            gaps: 100,
        }
    }

    fn comparison(with: PhaseFigures) -> Comparison {
        Comparison {
            without: side(1000.0, 10.0),
            with,
            steps: 1,
            running: true,
            share: 0.1,
        }
    }

    #[test]
    fn ratios_are_computed_and_missed_bounds_listed() {
        let good = comparison(side(860.0, 14.9));
        assert_eq!(good.missed_bounds(), Vec::<String>::new());
        assert_eq!(good.json()["throughput_ratio"], 0.86);
        assert!(good.lines()[2].contains("throughput 0.86, 99th percentile of gaps 1.49"));
        let slow = comparison(side(600.0, 25.0)).missed_bounds();
        assert!(
            slow[0].contains("takes 40 % of the throughput, more than 15 %"),
            "{slow:?}"
        );
        assert!(slow[1].contains("2.50 times"), "{slow:?}");
        let none = comparison(PhaseFigures {
            gaps: 0,
            ..side(0.0, 0.0)
        });
        assert!(none.missed_bounds()[0].contains("did not start"));
    }
}
