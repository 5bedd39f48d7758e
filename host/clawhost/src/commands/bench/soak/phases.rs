//! The soak with training: the same streams without it and then with it, and what it costs them.

use std::time::{Duration, Instant};

use clawhost_training::TrainingState;
use serde_json::{Value, json};

use super::super::number;
use super::talk::{Board, Phase, Seen};

/// Most of the throughput that training may take.
const LOSS_BOUND: f64 = 0.15;
/// Most that the 99th percentile of gaps may be of the one without training.
const TAIL_BOUND: f64 = 1.5;
/// Share of the time before anything counts, and share of it at which people begin to praise and complain.
const WARM: f64 = 0.1;
const TEACHES: f64 = 0.5;

/// Moves from phase to phase.
pub(super) struct Phases {
    all: Duration,
    begun: Instant,
    /// Since when the present phase goes on.
    since: Instant,
    seconds: [f64; 3],
    /// Steps that were recorded before people began to teach.
    before: u64,
}

impl Phases {
    pub(super) fn new(all: Duration, training: &TrainingState) -> Self {
        Self {
            all,
            begun: Instant::now(),
            since: Instant::now(),
            seconds: [0.0; 3],
            before: training.snapshot().steps,
        }
    }

    /// To be called often: enters the phase whose time has come. Training counts from its first step on, since it
    /// takes a while until a batch is full.
    pub(super) fn follow(&mut self, board: &Board, training: &TrainingState) {
        let passed = self.begun.elapsed().as_secs_f64() / self.all.as_secs_f64();
        let phase = board.phase();
        let teaches = board.teaches();
        if phase == Phase::Uncounted && !teaches && passed >= WARM {
            self.enter(board, Phase::Without);
        } else if phase == Phase::Without && passed >= TEACHES {
            self.enter(board, Phase::Uncounted);
            board.teach();
        } else if phase == Phase::Uncounted && teaches && training.snapshot().running {
            self.enter(board, Phase::With);
        }
    }

    /// Leaves the last phase.
    pub(super) fn end(&mut self, board: &Board) {
        self.enter(board, Phase::Uncounted);
    }

    fn enter(&mut self, board: &Board, phase: Phase) {
        let seconds = self.since.elapsed().as_secs_f64();
        if let Some(sum) = self.seconds.get_mut(board.phase() as usize) {
            *sum += seconds;
        }
        self.since = Instant::now();
        board.enter(phase);
    }

    /// What the streams saw in both phases.
    pub(super) fn compare(&self, seen: &Seen, training: &TrainingState) -> Comparison {
        let of = |phase: Phase| {
            let seconds = self.seconds.get(phase as usize).copied().unwrap_or(0.0);
            let seen = seen.of(phase);
            Side {
                seconds,
                tokens_per_second: seen.tokens as f64 / seconds.max(1e-9),
                median: seen.gaps.quantile(0.5),
                p99: seen.gaps.quantile(0.99),
                gaps: seen.gaps.count(),
            }
        };
        let snapshot = training.snapshot();
        Comparison {
            without: of(Phase::Without),
            with: of(Phase::With),
            steps: snapshot.steps.saturating_sub(self.before),
            running: snapshot.running,
        }
    }
}

/// What the streams saw in one phase.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Side {
    pub(super) seconds: f64,
    pub(super) tokens_per_second: f64,
    /// Of the gaps between tokens, in milliseconds.
    pub(super) median: f64,
    pub(super) p99: f64,
    pub(super) gaps: u64,
}

/// Without training and with it, in one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Comparison {
    pub(super) without: Side,
    pub(super) with: Side,
    /// Steps recorded in the run.
    pub(super) steps: u64,
    /// Whether one was under way at the end.
    pub(super) running: bool,
}

impl Comparison {
    /// Tokens per second with training, as a share of those without.
    fn throughput(&self) -> f64 {
        self.with.tokens_per_second / self.without.tokens_per_second.max(1e-9)
    }

    /// The 99th percentile of gaps with training, in units of the one without.
    fn tail(&self) -> f64 {
        self.with.p99 / self.without.p99.max(1e-9)
    }

    /// The aims that are missed, each with what was found.
    pub(super) fn broken(&self) -> Vec<String> {
        if self.with.gaps == 0 || self.without.gaps == 0 {
            return vec![
                "training did not begin in the time; soak longer with --minutes".to_owned(),
            ];
        }
        let mut broken = Vec::new();
        let loss = 1.0 - self.throughput();
        if loss > LOSS_BOUND {
            broken.push(format!(
                "training takes {:.0} % of the throughput, more than {:.0} %",
                100.0 * loss,
                100.0 * LOSS_BOUND
            ));
        }
        if self.tail() > TAIL_BOUND {
            broken.push(format!(
                "the 99th percentile of gaps is {:.2} times the one without training, more than {TAIL_BOUND}",
                self.tail()
            ));
        }
        broken
    }

    pub(super) fn json(&self) -> Value {
        let side = |side: &Side| {
            json!({
                "seconds": side.seconds, "tokens_per_second": side.tokens_per_second,
                "gaps": {"count": side.gaps, "median_ms": side.median, "p99_ms": side.p99},
            })
        };
        json!({
            "without": side(&self.without), "with": side(&self.with),
            "throughput_ratio": self.throughput(), "p99_gap_ratio": self.tail(),
            "steps": self.steps, "step_running": self.running,
        })
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let side = |name: &str, side: &Side| {
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
                "with against without: throughput {:.2}, 99th percentile of gaps {:.2}; {} steps recorded{}",
                self.throughput(),
                self.tail(),
                self.steps,
                if self.running { ", one under way" } else { "" }
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(tokens_per_second: f64, p99: f64) -> Side {
        Side {
            seconds: 10.0,
            tokens_per_second,
            median: 5.0,
            p99,
            gaps: 100,
        }
    }

    fn comparison(with: Side) -> Comparison {
        Comparison {
            without: side(1000.0, 10.0),
            with,
            steps: 1,
            running: true,
        }
    }

    #[test]
    fn both_sides_become_ratios_and_a_missed_aim_is_named() {
        let good = comparison(side(860.0, 14.9));
        assert_eq!(good.broken(), Vec::<String>::new());
        assert_eq!(good.json()["throughput_ratio"], 0.86);
        assert!(good.lines()[2].contains("throughput 0.86, 99th percentile of gaps 1.49"));
        let slow = comparison(side(600.0, 25.0)).broken();
        assert!(slow[0].contains("takes 40 % of the throughput"), "{slow:?}");
        assert!(slow[1].contains("2.50 times"), "{slow:?}");
        let none = comparison(Side {
            gaps: 0,
            ..side(0.0, 0.0)
        });
        assert!(none.broken()[0].contains("did not begin"));
    }
}
