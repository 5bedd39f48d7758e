//! The host functions of `log`.

use std::time::Instant;

use crate::bindings::log;
use crate::printable::one_line;
use crate::store::CallState;

/// Fields that are kept of one line.
const MAX_FIELDS: usize = 16;

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
        let mut line = one_line(&message, limits.log_line_size);
        let mut left = limits.log_line_size;
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
