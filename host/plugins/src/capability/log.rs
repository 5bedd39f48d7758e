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
const LINES_PER_WINDOW: u32 = 500;
const WINDOW: Duration = Duration::from_secs(10);

/// The lines of one call.
#[derive(Debug, Default)]
pub(crate) struct LogLines {
    kept: u32,
    pub(crate) dropped: u64,
}

/// The lines of one plugin over all of its calls.
#[derive(Debug, Default)]
pub(crate) struct LogRate {
    window: Mutex<Option<(Instant, u32)>>,
}

impl LogRate {
    fn admits(&self, now: Instant) -> bool {
        let mut window = self
            .window
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        match &mut *window {
            Some((start, lines)) if now.duration_since(*start) < WINDOW => {
                *lines += 1;
                *lines <= LINES_PER_WINDOW
            }
            other => {
                *other = Some((now, 1));
                true
            }
        }
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
        if self.log.kept >= limits.log_lines || !self.loaded.log_rate.admits(Instant::now()) {
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
        let rate = LogRate::default();
        let start = Instant::now();
        for _ in 0..LINES_PER_WINDOW {
            assert!(rate.admits(start));
        }
        assert!(!rate.admits(start));
        assert!(!rate.admits(start + WINDOW / 2));
        assert!(rate.admits(start + WINDOW));
    }
}
