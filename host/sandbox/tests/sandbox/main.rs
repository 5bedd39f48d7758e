//! Machines with real namespaces. The program is `CLAWHOST_BWRAP`, or `bwrap` on `PATH`; without it, or where it may not
//! create namespaces, every test returns at once and says so.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and says when it tests nothing"
)]

mod display;
mod escape;
mod leases;
mod machine;

use std::path::PathBuf;
use std::time::Duration;

use clawhost_config::{SandboxConfig, SandboxProfile};
use clawhost_sandbox::{Command, Exit, Machine, Output, Owner, Sandboxes, Spec, SupervisorCommand};

/// Sandboxes in a directory of their own.
pub(crate) struct Fixture {
    pub(crate) sandboxes: Sandboxes,
    pub(crate) dir: tempfile::TempDir,
}

/// The program; `None`, with a message, if there is none on this machine. `CLAWHOST_BWRAP` makes it required.
fn bwrap() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os("CLAWHOST_BWRAP") {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join("bwrap"))
        .find(|program| program.is_file());
    let Some(program) = found else {
        println!("not tested: bubblewrap is not installed (apt-get install bubblewrap)");
        return None;
    };
    let probe = std::process::Command::new(&program)
        .args(["--unshare-all", "--disable-userns", "--unshare-user"])
        .args(["--ro-bind", "/", "/", "true"])
        .output()
        .unwrap();
    if !probe.status.success() {
        let error = String::from_utf8_lossy(&probe.stderr);
        println!("not tested: bubblewrap may not create namespaces here: {error}");
        return None;
    }
    Some(program)
}

/// The example of this crate, which `cargo test` builds.
pub(crate) fn supervisor() -> SupervisorCommand {
    let test = std::env::current_exe().unwrap();
    let program = test
        .parent()
        .unwrap()
        .with_file_name("examples")
        .join("supervisor");
    assert!(
        program.is_file(),
        "run `cargo test -p clawhost-sandbox`, which builds {}",
        program.display()
    );
    SupervisorCommand::new(program, Vec::<String>::new())
}

/// The parent of a process; none if it has ended, also as a zombie.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    if fields.starts_with(" Z") {
        return None;
    }
    fields.split_whitespace().nth(1)?.parse().ok()
}

/// Small enough that reaching every limit is quick.
pub(crate) fn small() -> SandboxProfile {
    SandboxProfile {
        memory: 128 << 20,
        processes: 32,
        disk: 16 << 20,
        cpu_time: Duration::from_secs(60),
        ..SandboxProfile::default()
    }
}

pub(crate) fn config(profile: SandboxProfile) -> Option<SandboxConfig> {
    Some(SandboxConfig {
        bwrap: bwrap()?,
        profiles: [("small".to_owned(), profile)].into(),
        ..SandboxConfig::default()
    })
}

impl Fixture {
    pub(crate) fn new(profile: SandboxProfile) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let sandboxes = Sandboxes::new(config(profile)?, supervisor(), dir.path()).unwrap();
        Some(Self { sandboxes, dir })
    }

    pub(crate) async fn machine(&self) -> Machine {
        self.sandboxes.create(owner(), spec()).await.unwrap()
    }
}

pub(crate) fn owner() -> Owner {
    Owner {
        run: "run".to_owned(),
        episode: "1".to_owned(),
    }
}

pub(crate) fn spec() -> Spec {
    Spec {
        profile: "small".to_owned(),
        ..Spec::default()
    }
}

/// A command line with more time than it needs on the busiest host.
pub(crate) fn line(line: &str) -> Command {
    Command {
        timeout: Duration::from_secs(100),
        ..Command::shell(line)
    }
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

pub(crate) async fn run(machine: &Machine, command: &str) -> Output {
    machine.exec(line(command)).await.unwrap()
}

/// Runs a command line that must succeed and returns what it wrote.
pub(crate) async fn stdout(machine: &Machine, command: &str) -> String {
    let output = run(machine, command).await;
    assert_eq!(
        output.exit,
        Exit::Code(0),
        "{command}: {}",
        text(&output.stderr)
    );
    text(&output.stdout).trim_end().to_owned()
}
