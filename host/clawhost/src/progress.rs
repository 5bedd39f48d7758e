//! Progress of long work on standard error with an estimate of the time left: one updated line on a terminal, one line
//! per stage otherwise. Write errors are ignored.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Progress of some work, counted in parts of any unit.
pub(crate) struct Progress {
    total: f64,
    done: f64,
    started: Instant,
    terminal: bool,
    shown: String,
}

impl Progress {
    /// Work of `total` parts.
    pub(crate) fn new(total: f64) -> Self {
        Self {
            total,
            done: 0.0,
            started: Instant::now(),
            terminal: std::io::stderr().is_terminal(),
            shown: String::new(),
        }
    }

    /// Prints the current stage.
    pub(crate) fn stage(&mut self, what: &str) {
        let line = line(what, self.done, self.total, self.started.elapsed());
        let mut err = std::io::stderr().lock();
        let _ = if self.terminal {
            write!(err, "\r\x1b[2K{line}").and_then(|()| err.flush())
        } else if self.shown == what {
            Ok(())
        } else {
            writeln!(err, "{line}")
        };
        what.clone_into(&mut self.shown);
    }

    /// Adds finished parts.
    pub(crate) fn advance(&mut self, parts: f64) {
        self.done += parts;
    }

    /// Clears the line on a terminal.
    pub(crate) fn clear(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[2K");
        }
    }
}

fn line(what: &str, done: f64, total: f64, elapsed: Duration) -> String {
    let share = if total > 0.0 {
        (done / total).clamp(0.0, 1.0)
    } else {
        0.0
    };
    let mut line = format!("{:3.0} %  {what}", share * 100.0);
    if share > 0.0 {
        let left = elapsed.mul_f64((1.0 - share) / share).as_secs();
        line.push_str(&format!("   {}:{:02} left", left / 60, left % 60));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_the_finished_share() {
        let quarter = line("reading", 2.0, 8.0, Duration::from_secs(25));
        assert_eq!(quarter, " 25 %  reading   1:15 left");
        let start = line("reading", 0.0, 8.0, Duration::from_secs(25));
        assert_eq!(start, "  0 %  reading");
        let over = line("reading", 9.0, 8.0, Duration::from_secs(25));
        assert_eq!(over, "100 %  reading   0:00 left");
    }
}
