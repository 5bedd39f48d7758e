//! The `clawhost` command as a process of its own, which can be killed.
//!
//! A test of this package does not know where the binary is, and it might be an old one. So the test
//! executable runs itself again: `main.rs` holds a test that only calls [`become_clawhost`], and the
//! child runs exactly that test.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::waiting::PATIENCE;

/// Name of that test.
const TEST: &str = "clawhost_process";
/// Holds the arguments as a JSON list.
const ARGUMENTS: &str = "CLAWHOST_TEST_ARGS";
/// What the test harness prints before a test.
const BANNER: &str = "running 1 test";

/// The body of the test `clawhost_process`: in a child it runs `clawhost` and ends the process with its
/// exit code; in an ordinary run of the tests it does nothing.
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

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; none when a signal ended it.
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

    /// The same, for a process whose files [`Process::limit_files`] will limit: it gets an error as from a full disk, and
    /// not the signal that would end it.
    #[must_use]
    pub fn limited(self) -> Self {
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

    /// Runs it in this directory.
    #[must_use]
    pub fn within(mut self, directory: &Path) -> Self {
        self.0.current_dir(directory);
        self
    }

    /// Starts it with more in its environment.
    pub(crate) fn spawn_with(mut self, environment: &[(&str, &str)]) -> Child {
        self.0.envs(environment.iter().copied());
        self.0.spawn().unwrap()
    }

    /// Runs it to its end.
    pub fn run(mut self) -> Ended {
        let output = self.0.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let stdout = text(output.stdout);
        let said = stdout.trim_start().strip_prefix(BANNER);
        Ended {
            code: output.status.code(),
            stdout: said.unwrap().trim_start_matches('\n').to_owned(),
            stderr: text(output.stderr),
        }
    }

    /// Starts `clawhost run` and waits until it is up; none when it ended before that.
    pub fn serve(mut self) -> Option<Process> {
        let mut child = self.0.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut stderr = child.stderr.take().unwrap();
        let complaints = std::thread::spawn(move || {
            let mut said = String::new();
            stderr.read_to_string(&mut said).unwrap();
            said
        });
        let url = lines.map_while(Result::ok).find_map(|line| {
            let mut words = line.split([' ', ',']);
            let url = words.find(|word| word.starts_with("http://"))?;
            Some(url.trim_end_matches("/v1").to_owned())
        });
        let process = Process {
            url: url.unwrap_or_default(),
            child,
            complaints: Some(complaints),
        };
        // Without an address there is only an end, which dropping it waits for.
        (!process.url.is_empty()).then_some(process)
    }
}

/// A server in a process of its own; dropping it kills it.
pub struct Process {
    /// Its address.
    pub url: String,
    child: Child,
    complaints: Option<JoinHandle<String>>,
}

impl Process {
    /// Kills it as `kill -9` does and waits until it is gone; returns what it said on standard error.
    pub fn kill(mut self) -> String {
        self.end();
        let complaints = self.complaints.take().map(JoinHandle::join);
        complaints.unwrap().unwrap()
    }

    /// Sends it SIGTERM, as `kill` does.
    ///
    /// # Panics
    /// When it has ended already.
    pub fn terminate(&self) {
        let sent = std::process::Command::new("sh")
            .args(["-c", "kill -TERM \"$0\"", &self.child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Asks it to stop as `kill` does, and waits until it has; returns its exit code, none when the signal ended it.
    ///
    /// # Panics
    /// When it has not ended after [`PATIENCE`].
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
        let ended = tokio::time::timeout(PATIENCE, ended).await;
        ended.unwrap_or_else(|_| panic!("still there {PATIENCE:?} after it was asked to stop"))
    }

    /// Lets no file of it grow beyond so many bytes from now on, as a full disk would; none lifts that.
    ///
    /// # Panics
    /// When the system refuses, or the process was not started as [`Command::limited`].
    pub fn limit_files(&self, bytes: Option<u64>) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let most = rustix::process::getrlimit(rustix::process::Resource::Fsize).maximum;
        let limit = rustix::process::Rlimit {
            current: bytes.or(most),
            maximum: most,
        };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Fsize, limit).unwrap();
    }

    /// Whether it has ended by itself.
    pub fn is_gone(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
