//! What the policy sees of commands.

use clawhost_sdk::sandbox::{Exit, Output};

/// Exit code, standard output and standard error, as far as there are any.
pub fn of_output(output: &Output) -> String {
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

/// How a command ended.
pub fn of_exit(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exit code: {code}"),
        Exit::Signal(signal) => format!("killed by signal {signal}"),
        Exit::TimedOut => "killed at its time limit".to_owned(),
        Exit::OutOfMemory => "killed because it used too much memory".to_owned(),
    }
}
