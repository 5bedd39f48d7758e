//! Writes lines to the host's log, which adds the plugin's name and the call.
//!
//! The host limits their number and length. In native builds they are discarded.

/// Writes a line at level `debug`.
pub fn debug(message: &str) {
    write(Level::Debug, message);
}

/// Writes a line at level `info`.
pub fn info(message: &str) {
    write(Level::Info, message);
}

/// Writes a line at level `warn`.
pub fn warn(message: &str) {
    write(Level::Warn, message);
}

/// Writes a line at level `error`.
pub fn error(message: &str) {
    write(Level::Error, message);
}

use crate::bindings::clawhost::plugin::log::Level;

#[cfg(target_arch = "wasm32")]
fn write(level: Level, message: &str) {
    crate::bindings::clawhost::plugin::log::write(level, message, &[]);
}

#[cfg(not(target_arch = "wasm32"))]
fn write(_level: Level, _message: &str) {}

/// Logs panic messages, because a panic ends in a trap, which has no message.
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub fn report_panics() {
    std::panic::set_hook(Box::new(|panic| error(&panic.to_string())));
}
