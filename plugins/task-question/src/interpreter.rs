//! What runs code of the policy.

use clawhost_sdk::PluginError;

/// The end of code of the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ran {
    /// It succeeded; this is what it printed.
    Printed(String),
    /// It failed, with this trace.
    Failed(String),
}

/// Runs code of the policy outside of the component.
pub trait Interpreter: Sized + 'static {
    /// Starts one for a task, with a profile of the operator's.
    ///
    /// # Errors
    /// It cannot be started: the task has no verdict.
    fn start(task: &str, profile: &str) -> Result<Self, PluginError>;

    /// Runs code for at most `timeout_ms`.
    ///
    /// # Errors
    /// The host failed. What the code does to its surroundings is no error.
    fn run(&mut self, code: &str, timeout_ms: u32) -> Result<Ran, PluginError>;
}

/// For components that need no machine: tasks with `code_interpreter` are rejected.
pub struct NoInterpreter;

impl Interpreter for NoInterpreter {
    fn start(task: &str, _profile: &str) -> Result<Self, PluginError> {
        Err(PluginError::InvalidInput(format!(
            "task {task}: `code_interpreter` needs a machine; use the component environment-toolcall-code, which has one"
        )))
    }

    fn run(&mut self, _code: &str, _timeout_ms: u32) -> Result<Ran, PluginError> {
        unreachable!("it cannot be started")
    }
}
