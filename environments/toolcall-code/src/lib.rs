//! Questions with an exact check, and tools, of which `code_interpreter` runs Python of the policy in a throw-away machine:
//! see [`task_question`].
//!
//! The machine has no network unless its profile grants it, and neither the answer nor the check is in it. Each call is a
//! process of its own; files of the work directory stay until the episode ends. If the policy ends its machine, further
//! calls fail and the answer is still graded. If the host cannot start or reach a machine there is no verdict.

use clawhost_sdk::PluginError;
use clawhost_sdk::sandbox::{Command, Exit, Machine};
use task_machine::{Done, ENDED, create, failure, of_output, settle, shell};
use task_question::{Interpreter, Question, Ran};

/// Time limit of the check that Python is there.
const PROBE_TIMEOUT_MS: u32 = 30_000;

/// Python in a machine.
pub struct Python {
    /// None once the machine has ended.
    machine: Option<Machine>,
}

clawhost_sdk::export_environment!(Question<Python>);

impl Interpreter for Python {
    fn start(task: &str, profile: &str) -> Result<Python, PluginError> {
        let machine = create(profile)?;
        let found = machine.exec(&shell("command -v python3", PROBE_TIMEOUT_MS));
        if found.map_err(failure)?.exit != Exit::Code(0) {
            return Err(PluginError::Unsupported(format!(
                "task {task}: the machine has no python3; install it on the host, below /usr"
            )));
        }
        Ok(Python {
            machine: Some(machine),
        })
    }

    fn run(&mut self, code: &str, timeout_ms: u32) -> Result<Ran, PluginError> {
        let Some(machine) = &self.machine else {
            return Ok(Ran::Failed(ENDED.to_owned()));
        };
        let command = Command {
            argv: ["python3", "-"].map(str::to_owned).to_vec(),
            stdin: code.as_bytes().to_vec(),
            ..shell("", timeout_ms)
        };
        Ok(match settle(machine.exec(&command))? {
            Done::Value(output) if output.exit == Exit::Code(0) && output.stderr.is_empty() => {
                let text = String::from_utf8_lossy(&output.stdout);
                let cut = if output.truncated {
                    "\n(output was dropped from the middle)"
                } else {
                    ""
                };
                Ran::Printed(match text.trim_end() {
                    "" => "(it printed nothing)".to_owned(),
                    text => format!("{text}{cut}"),
                })
            }
            Done::Value(output) if output.exit == Exit::Code(0) => Ran::Printed(of_output(&output)),
            Done::Value(output) => Ran::Failed(of_output(&output)),
            Done::Rejected(why) => Ran::Failed(why),
            Done::Ended => {
                self.machine = None;
                Ran::Failed(ENDED.to_owned())
            }
        })
    }
}
