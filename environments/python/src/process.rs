//! The Python process of an episode, and how requests reach it.
//!
//! The bridge reads each request from one named pipe until its end, and writes the answer to another. So a request is one
//! short command in the machine, and the process keeps the state of the class.

use clawhost_sdk::PluginError;
use clawhost_sdk::sandbox::{Exit, Machine};
use task_json::Json;
use task_machine::{create, failure, of_output, prepare, shell};

use crate::task::Work;

const BRIDGE: &str = include_str!("bridge.py");
const BRIDGE_FILE: &str = "/tmp/bridge.py";
/// Starts the bridge. It is isolated: only the directory of the class is added to the path of modules.
const START: &str = "command -v python3 >/dev/null || { echo 'the machine has no python3; install it on the host, below /usr' >&2; exit 1; }; \
    mkfifo /tmp/ask /tmp/answer && { python3 -I /tmp/bridge.py /tmp/ask /tmp/answer </dev/null >/tmp/log 2>&1 & echo $! > /tmp/pid; }";
/// Sends the standard input and prints the answer.
const ASK: &str = "test -d /proc/$(cat /tmp/pid) && cat > /tmp/ask && cat /tmp/answer";
const START_TIMEOUT_MS: u32 = 30_000;
/// Bytes of an answer.
const MAX_ANSWER: u32 = 512 << 10;

pub(crate) struct Process {
    machine: Machine,
    timeout_ms: u32,
}

impl Process {
    /// Starts a machine with the files of the task, and the bridge in it.
    pub(crate) fn start(task: &str, work: &Work) -> Result<Process, PluginError> {
        let machine = create(&work.profile)?;
        prepare(&machine, task, &work.files, &[])?;
        machine
            .write_file(BRIDGE_FILE, BRIDGE.as_bytes())
            .map_err(failure)?;
        let output = machine
            .exec(&shell(START, START_TIMEOUT_MS))
            .map_err(failure)?;
        if output.exit != Exit::Code(0) {
            return Err(PluginError::Unsupported(format!(
                "task {task}: Python cannot be started: {}",
                of_output(&output)
            )));
        }
        Ok(Process {
            machine,
            timeout_ms: work.timeout_ms,
        })
    }

    /// Sends a request and returns the answer. An error of the class is an error of the call: the episode has no verdict.
    pub(crate) fn ask(&self, request: &str) -> Result<Json, PluginError> {
        let mut command = shell(ASK, self.timeout_ms);
        command.stdin = request.as_bytes().to_vec();
        command.max_output = MAX_ANSWER;
        let output = self.machine.exec(&command).map_err(failure)?;
        match output.exit {
            Exit::Code(0) if output.truncated => Err(PluginError::Transient(format!(
                "the answer of the Python class has more than {MAX_ANSWER} bytes"
            ))),
            Exit::Code(0) => {
                let text = String::from_utf8_lossy(&output.stdout);
                let answer = task_json::parse(&text).ok_or_else(|| {
                    PluginError::Transient(format!("the Python class answered no JSON: {text}"))
                })?;
                match answer.get("error").and_then(Json::text) {
                    Some(trace) => Err(PluginError::InvalidInput(format!(
                        "the Python class raised an error: {}",
                        trace.trim_end()
                    ))),
                    None => Ok(answer),
                }
            }
            Exit::TimedOut => Err(PluginError::Transient(format!(
                "the Python class did not answer within {} s; raise `timeout` of the task{}",
                f64::from(self.timeout_ms) / 1e3,
                self.log()
            ))),
            _ => Err(PluginError::Transient(format!(
                "the Python process has ended{}",
                self.log()
            ))),
        }
    }

    /// The end of what the process printed.
    fn log(&self) -> String {
        let output = self
            .machine
            .exec(&shell("tail -c 2000 /tmp/log", START_TIMEOUT_MS));
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        match text {
            Ok(text) if !text.is_empty() => format!("; it printed: {text}"),
            _ => String::new(),
        }
    }
}
