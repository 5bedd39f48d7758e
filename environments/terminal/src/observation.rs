//! What the policy sees of screens.

use clawhost_sdk::sandbox::Screen;
use task_machine::of_exit;

/// The lines of a screen without the empty ones at its end.
pub(crate) fn of_screen(screen: &Screen) -> String {
    let text = screen.text.join("\n");
    let text = text.trim_end();
    match &screen.exited {
        None => text.to_owned(),
        Some(exit) => format!("{text}\n(the shell has ended: {})", of_exit(exit)),
    }
}
