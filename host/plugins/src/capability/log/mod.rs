//! `log`: lines from a component into the host's tracing.
//!
//! A guest can neither flood nor forge: lines are counted per call and per plugin, bounded in
//! length, and control characters are escaped, so one line of a guest is one line in the log.

mod host;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock::lock;

/// Lines that one plugin may write in one [`WINDOW`], all calls together.
const LINES: u32 = 500;
/// Lines that the host writes about its faults in one [`WINDOW`].
const FAULTS: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// The lines of one call.
#[derive(Debug, Default)]
pub(crate) struct LogLines {
    kept: u32,
    pub(crate) dropped: u64,
}

/// Lines by or about one plugin over all of its calls, at most so many in one [`WINDOW`].
#[derive(Debug)]
pub(crate) struct LogRate {
    most: u32,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    start: Option<Instant>,
    lines: u32,
    dropped: u64,
}

impl LogRate {
    /// For what a plugin writes.
    pub(crate) fn of_lines() -> LogRate {
        LogRate::new(LINES)
    }

    /// For what is written about its faults.
    pub(crate) fn of_faults() -> LogRate {
        LogRate::new(FAULTS)
    }

    fn new(most: u32) -> LogRate {
        LogRate {
            most,
            window: Mutex::default(),
        }
    }

    /// Returns whether a line may be written now: then how many were dropped since the last one.
    pub(crate) fn admits(&self, now: Instant) -> Option<u64> {
        let mut window = lock(&self.window);
        let open = |start: Instant| now.duration_since(start) < WINDOW;
        if !window.start.is_some_and(open) {
            window.start = Some(now);
            window.lines = 0;
        }
        if window.lines < self.most {
            window.lines += 1;
            return Some(std::mem::take(&mut window.dropped));
        }
        window.dropped += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_gets_its_lines_back_in_the_next_window() {
        let rate = LogRate::of_lines();
        let start = Instant::now();
        for _ in 0..LINES {
            assert_eq!(rate.admits(start), Some(0));
        }
        assert_eq!(rate.admits(start), None);
        assert_eq!(rate.admits(start + WINDOW / 2), None);
        assert_eq!(rate.admits(start + WINDOW), Some(2), "two were dropped");
        assert_eq!(rate.admits(start + WINDOW), Some(0));
    }
}
