//! What the policy sees of commands and screens.

use clawhost_sdk::sandbox::{Exit, Output, Screen};

/// Exit code, standard output and standard error, as far as there are any.
pub(crate) fn of_output(output: &Output) -> String {
    let mut parts = vec![of_exit(&output.exit)];
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end();
        if !text.is_empty() {
            parts.push(format!("{name}:\n{text}"));
        }
    }
    if output.truncated {
        parts.push("(output was dropped from the middle)".to_owned());
    }
    parts.join("\n")
}

/// The lines of a screen without the empty ones at its end.
pub(crate) fn of_screen(screen: &Screen) -> String {
    let text = screen.text.join("\n");
    let text = text.trim_end();
    match &screen.exited {
        None => text.to_owned(),
        Some(exit) => format!("{text}\n(the shell has ended: {})", of_exit(exit)),
    }
}

/// How a command ended.
pub(crate) fn of_exit(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exit code: {code}"),
        Exit::Signal(signal) => format!("killed by signal {signal}"),
        Exit::TimedOut => "killed at its time limit".to_owned(),
        Exit::OutOfMemory => "killed because it used too much memory".to_owned(),
    }
}
