//! Live progress of a demo on standard error: both arms in one updated line on a terminal, otherwise one line per
//! round.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use clawhost_evaluation::statistics::mean;
use clawhost_evaluation::{ArmEvent, Progress};

/// Number of conversations that the displayed mean covers.
const WINDOW: usize = 12;

/// Progress of one arm.
#[derive(Debug, Default)]
struct ArmProgress {
    values: Vec<f64>,
    ended: usize,
    failures: usize,
    steps: u64,
}

impl ArmProgress {
    /// Mean of the last `WINDOW` values.
    fn recent(&self) -> String {
        let from = self.values.len().saturating_sub(WINDOW);
        mean(&self.values[from..]).map_or_else(|| "–".to_owned(), |mean| format!("{mean:.2}"))
    }
}

/// Progress on standard error: one updated line on a terminal, otherwise one line per round.
pub(super) struct Live {
    conversations: usize,
    started: Instant,
    terminal: bool,
    trained: ArmProgress,
    control: ArmProgress,
}

impl Live {
    pub(super) fn new(conversations: usize) -> Live {
        Live {
            conversations,
            started: Instant::now(),
            terminal: std::io::stderr().is_terminal(),
            trained: ArmProgress::default(),
            control: ArmProgress::default(),
        }
    }

    fn line(&self) -> String {
        let (trained, control) = (&self.trained, &self.control);
        let mut line = format!(
            "trained {}/{} · last {WINDOW}: {} · {} steps   control {}/{} · last {WINDOW}: {}",
            trained.ended,
            self.conversations,
            trained.recent(),
            trained.steps,
            control.ended,
            self.conversations,
            control.recent(),
        );
        let failures = trained.failures + control.failures;
        if failures > 0 {
            line.push_str(&format!("   {failures} requests failed"));
        }
        if let Some(left) = left(
            self.started.elapsed(),
            trained.ended,
            control.ended,
            self.conversations,
        ) {
            let seconds = left.as_secs();
            line.push_str(&format!("   {}:{:02} left", seconds / 60, seconds % 60));
        }
        line
    }

    fn show(&self, round_over: bool) {
        let mut err = std::io::stderr().lock();
        // Progress output is best effort: a closed terminal must not end the run.
        let _ = if self.terminal {
            write!(err, "\r\x1b[2K{}", self.line()).and_then(|()| err.flush())
        } else if round_over {
            writeln!(err, "{}", self.line())
        } else {
            Ok(())
        };
    }

    pub(super) fn clear(&self) {
        if self.terminal {
            let _ = writeln!(std::io::stderr().lock());
        }
    }
}

/// Estimated time left, by the slower arm; None until it has finished a conversation.
fn left(elapsed: Duration, one: usize, other: usize, total: usize) -> Option<Duration> {
    let slower = one.min(other);
    (slower > 0).then(|| {
        let share = total.saturating_sub(slower) as f64 / slower as f64;
        elapsed.mul_f64(share)
    })
}

impl Progress for Live {
    fn event(&mut self, event: &ArmEvent) {
        let (ArmEvent::ConversationFinished { arm, .. } | ArmEvent::RoundFinished { arm, .. }) =
            event;
        let trained = arm == "trained";
        let progress = if trained {
            &mut self.trained
        } else {
            &mut self.control
        };
        let mut round_over = false;
        match event {
            ArmEvent::ConversationFinished {
                value, failures, ..
            } => {
                progress.ended += 1;
                progress.failures += failures;
                progress.values.extend(value);
            }
            ArmEvent::RoundFinished { health, .. } => {
                progress.steps = health.steps;
                round_over = trained;
            }
        }
        self.show(round_over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_arm_determines_the_time_left() {
        let minute = Duration::from_secs(60);
        assert_eq!(left(minute, 0, 9, 60), None);
        assert_eq!(left(minute, 30, 60, 60), Some(minute));
        assert_eq!(left(minute, 60, 60, 60), Some(Duration::ZERO));
    }

    #[test]
    fn progress_counts_both_arms() {
        let mut live = Live::new(60);
        live.terminal = false;
        for value in [Some(1.0), Some(0.0), None] {
            live.event(&ArmEvent::ConversationFinished {
                arm: "trained".into(),
                value,
                replies: 1,
                failures: usize::from(value.is_none()),
            });
        }
        let line = live.line();
        assert!(line.contains("trained 3/60 · last 12: 0.50"), "{line}");
        assert!(line.contains("control 0/60 · last 12: –"), "{line}");
        assert!(line.contains("1 requests failed"), "{line}");
    }
}
