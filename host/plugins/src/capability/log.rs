//! `log`: lines from a component into the host's tracing.
//!
//! A guest can neither flood nor forge: lines are counted per call and per plugin, bounded in
//! length, and control characters are escaped, so one line of a guest is one line in the log.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::bindings::log;
use crate::printable::one_line;
use crate::store::CallState;

/// Fields that are kept of one line.
const MAX_FIELDS: usize = 16;
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

    /// When a line may be written now: how many were not since the last that was.
    pub(crate) fn admits(&self, now: Instant) -> Option<u64> {
        let mut window = self
            .window
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
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

impl log::Host for CallState {
    async fn write(
        &mut self,
        level: log::Level,
        message: String,
        fields: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        self.meter.host_call()?;
        let limits = self.meter.limits();
        if self.log.kept >= limits.log_lines
            || self.loaded.log_rate.admits(Instant::now()).is_none()
        {
            self.log.dropped += 1;
            return Ok(());
        }
        self.log.kept += 1;
        let mut line = one_line(&message, limits.log_line_bytes);
        let mut left = limits.log_line_bytes;
        for (key, value) in fields.iter().take(MAX_FIELDS) {
            let field = format!(" {}={}", one_line(key, left.min(64)), one_line(value, left));
            left = left.saturating_sub(key.len() + value.len());
            line.push_str(&field);
        }
        if matches!(level, log::Level::Error) {
            // A guest that has no standard error can still say why it is about to end.
            self.stderr.push(format!("{line}\n").as_bytes());
        }
        let plugin = self.loaded.name.as_str();
        let call = self.identity.call_id();
        match level {
            log::Level::Trace => {
                tracing::trace!(target: "clawhost::plugin", plugin, call, "{line}")
            }
            log::Level::Debug => {
                tracing::debug!(target: "clawhost::plugin", plugin, call, "{line}")
            }
            log::Level::Info => tracing::info!(target: "clawhost::plugin", plugin, call, "{line}"),
            log::Level::Warn => tracing::warn!(target: "clawhost::plugin", plugin, call, "{line}"),
            log::Level::Error => {
                tracing::error!(target: "clawhost::plugin", plugin, call, "{line}")
            }
        }
        Ok(())
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
        assert_eq!(rate.admits(start + WINDOW), Some(2), "and is told of two");
        assert_eq!(rate.admits(start + WINDOW), Some(0));
    }
}
