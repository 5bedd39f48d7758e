//! Progress of long work on standard error, with an estimate: one line that moves on a terminal, one line a
//! stage elsewhere. A courtesy: a closed terminal never ends the work.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How far some work has come, in parts of any unit.
pub(crate) struct Progress {
    all: f64,
    done: f64,
    begun: Instant,
    terminal: bool,
    shown: String,
}

impl Progress {
    /// Of work that has `all` parts.
    pub(crate) fn new(all: f64) -> Self {
        Self {
            all,
            done: 0.0,
            begun: Instant::now(),
            terminal: std::io::stderr().is_terminal(),
            shown: String::new(),
        }
    }

    /// Says what is being done now.
    pub(crate) fn stage(&mut self, what: &str) {
        let line = line(what, self.done, self.all, self.begun.elapsed());
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

    /// These parts are done.
    pub(crate) fn done(&mut self, parts: f64) {
        self.done += parts;
    }

    /// Leaves the line free for what is printed next.
    pub(crate) fn end(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[2K");
        }
    }
}

fn line(what: &str, done: f64, all: f64, elapsed: Duration) -> String {
    let share = if all > 0.0 {
        (done / all).clamp(0.0, 1.0)
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
    fn the_estimate_goes_by_what_is_done() {
        let quarter = line("reading", 2.0, 8.0, Duration::from_secs(25));
        assert_eq!(quarter, " 25 %  reading   1:15 left");
        let start = line("reading", 0.0, 8.0, Duration::from_secs(25));
        assert_eq!(start, "  0 %  reading");
        let over = line("reading", 9.0, 8.0, Duration::from_secs(25));
        assert_eq!(over, "100 %  reading   0:00 left");
    }
}
