//! The `clawhost` command as a child process, which can be killed.
//!
//! The tests of this package do not know the path of the binary, and it may be outdated. So the test executable runs
//! itself: `main.rs` has a test that only calls [`become_clawhost`], and the child process runs exactly that test.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::waiting::WAIT_TIMEOUT;

/// Name of that test.
const TEST: &str = "clawhost_process";
/// Environment variable with the arguments as a JSON list.
const ARGUMENTS: &str = "CLAWHOST_TEST_ARGS";
/// Printed by the test harness before a test.
const BANNER: &str = "running 1 test";

/// Body of the test `clawhost_process`: in a child process it runs `clawhost` and exits with its exit code; in an
/// ordinary test run it does nothing.
pub fn become_clawhost() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let arguments: Vec<String> = serde_json::from_str(&arguments).unwrap();
    let words = std::iter::once("clawhost".to_owned()).chain(arguments);
    let code = clawhost::main_with(words.map(OsString::from));
    let code = (0..=u8::MAX).find(|number| ExitCode::from(*number) == code);
    std::process::exit(code.map_or(255, i32::from));
}

/// A command line to run.
pub struct Command(std::process::Command);

/// Exit code and output of a process.
#[derive(Debug)]
pub struct ProcessOutput {
    /// Exit code; `None` if a signal killed it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Command {
    /// `clawhost` with these arguments.
    pub fn new<S: AsRef<str>>(arguments: &[S]) -> Self {
        let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command
            .args([
                TEST,
                "--exact",
                "--nocapture",
                "--quiet",
                "--test-threads=1",
            ])
            .env(ARGUMENTS, serde_json::to_string(&arguments).unwrap())
            .env_remove("CLAWHOST_API_KEY")
            .env_remove("CLAWHOST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self(command)
    }

    /// Ignores SIGXFSZ, for processes used with [`ServerProcess::limit_files`]: writes beyond the limit fail with an
    /// error, as on a full disk, instead of killing the process.
    #[must_use]
    pub fn ignoring_file_size_signal(self) -> Self {
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
            .arg(self.0.get_program())
            .args(self.0.get_args())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in self.0.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Self(command)
    }

    /// Sets the working directory.
    #[must_use]
    pub fn in_directory(mut self, directory: &Path) -> Self {
        self.0.current_dir(directory);
        self
    }

    /// Spawns it with additional environment variables.
    pub(crate) fn spawn_with(mut self, environment: &[(&str, &str)]) -> Child {
        self.0.envs(environment.iter().copied());
        self.0.spawn().unwrap()
    }

    /// Runs it until it exits.
    pub fn run(mut self) -> ProcessOutput {
        let output = self.0.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let stdout = text(output.stdout);
        let own_output = stdout.trim_start().strip_prefix(BANNER);
        ProcessOutput {
            code: output.status.code(),
            stdout: own_output.unwrap().trim_start_matches('\n').to_owned(),
            stderr: text(output.stderr),
        }
    }

    /// Spawns `clawhost run` and waits until it serves; `None` if it exits before that.
    pub fn serve(mut self) -> Option<ServerProcess> {
        let mut child = self.0.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut stderr = child.stderr.take().unwrap();
        let stderr_reader = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        let url = lines.map_while(Result::ok).find_map(|line| {
            let mut words = line.split([' ', ',']);
            let url = words.find(|word| word.starts_with("http://"))?;
            Some(url.trim_end_matches("/v1").to_owned())
        });
        let process = ServerProcess {
            url: url.unwrap_or_default(),
            child,
            stderr_reader: Some(stderr_reader),
        };
        // Without an address the process has exited; dropping it waits for that.
        (!process.url.is_empty()).then_some(process)
    }
}

/// A server in a child process; dropping it kills it.
pub struct ServerProcess {
    /// The address.
    pub url: String,
    child: Child,
    stderr_reader: Option<JoinHandle<String>>,
}

impl ServerProcess {
    /// Kills it with SIGKILL and waits until it is gone. Returns its standard error.
    pub fn kill(mut self) -> String {
        self.end();
        let stderr_reader = self.stderr_reader.take().map(JoinHandle::join);
        stderr_reader.unwrap().unwrap()
    }

    /// Sends SIGTERM.
    ///
    /// # Panics
    /// When it has exited already.
    pub fn terminate(&self) {
        let sent = std::process::Command::new("sh")
            .args(["-c", "kill -TERM \"$0\"", &self.child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Sends SIGTERM and waits until it exits. Returns its exit code, or `None` if the signal killed it.
    ///
    /// # Panics
    /// When it has not exited after [`WAIT_TIMEOUT`].
    pub async fn stop(&mut self) -> Option<i32> {
        self.terminate();
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status.code();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let ended = tokio::time::timeout(WAIT_TIMEOUT, ended).await;
        ended.unwrap_or_else(|_| panic!("still running {WAIT_TIMEOUT:?} after SIGTERM"))
    }

    /// Limits the size of its files from now on, which simulates a full disk; `None` removes the limit.
    ///
    /// # Panics
    /// When the system call fails, or the process was not started as [`Command::ignoring_file_size_signal`].
    pub fn limit_files(&self, bytes: Option<u64>) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let maximum = rustix::process::getrlimit(rustix::process::Resource::Fsize).maximum;
        let limit = rustix::process::Rlimit {
            current: bytes.or(maximum),
            maximum,
        };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Fsize, limit).unwrap();
    }

    /// Whether it has exited.
    pub fn has_exited(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    fn end(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.end();
    }
}
