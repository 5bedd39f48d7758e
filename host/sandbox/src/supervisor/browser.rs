//! Starts the browser of a display.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::Stdio;

use super::Supervisor;
use super::exec::{Running, Start, not_run};
use crate::error::SandboxError;
use crate::protocol::Reply;

/// Gives the program its standard streams as file descriptors 3 and 4, where a browser expects its pipe, and keeps what it
/// writes.
const LAUNCH: &str = "exec \"$@\" 3<&0 4>&1 </dev/null >/tmp/browser.log 2>&1";

impl Supervisor {
    /// Starts a browser. The pipe becomes the browser's alone, so the host sees it closed when the browser has ended.
    pub(super) fn open_browser(
        &mut self,
        argv: Vec<String>,
        env: &[(String, String)],
    ) -> Result<(Reply, Vec<u8>), SandboxError> {
        if self.browser.is_some() {
            return Err(SandboxError::Denied("the machine has a browser".to_owned()));
        }
        let failed = |error: io::Error| {
            SandboxError::Unavailable(format!("cannot start the browser: {error}"))
        };
        let launch = ["/bin/sh", "-c", LAUNCH, "sh"].map(str::to_owned);
        let argv: Vec<String> = launch.into_iter().chain(argv).collect();
        let start = Start {
            argv: &argv,
            env,
            workdir: None,
        };
        let pipe = io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
        let nothing = File::open("/dev/null").map_err(failed)?;
        rustix::stdio::dup2_stdout(&nothing).map_err(|error| failed(error.into()))?;
        let mut command = self
            .command(&start, false)
            .ok_or_else(super::exec::no_program)?;
        let copy = pipe.try_clone().map_err(failed)?;
        command
            .stdin(Stdio::from(copy))
            .stdout(Stdio::from(pipe))
            .stderr(Stdio::null());
        let child = command
            .spawn()
            .map_err(|error| match not_run(&start, &error) {
                Ok((_, words)) => SandboxError::NotFound(words.trim_end().to_owned()),
                Err(error) => error,
            })?;
        self.browser = Some(Running::new(child).map_err(failed)?);
        Ok((Reply::Done, Vec::new()))
    }
}
