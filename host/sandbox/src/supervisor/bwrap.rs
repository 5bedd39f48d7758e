//! Starts bubblewrap and joins what it made.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::poll::Poller;
use super::{enter, spawn};
use crate::protocol::MachineSpec;

/// Longest time until a machine is ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The user and group in the machine.
const USER: u32 = 1000;
/// The first process. It ignores SIGCHLD, so that the kernel reaps every orphan, and handles no signal, so that none
/// that is sent in the machine reaches it. `env` sets that, because shells do not let SIGCHLD be ignored.
const INIT: &str =
    "echo ready; exec env --ignore-signal=CHLD sleep 2147483647 </dev/null >/dev/null 2>&1";
/// What programs need of `/etc`. It contains no secrets.
const ETC: [&str; 9] = [
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "protocols",
    "services",
    "java-11-openjdk",
];
/// What a browser needs of `/etc`.
const ETC_BROWSER: [&str; 2] = ["chromium.d", "fonts"];
/// What the network needs of `/etc`.
const ETC_NETWORK: [&str; 6] = [
    "ca-certificates",
    "hosts",
    "nsswitch.conf",
    "pki",
    "resolv.conf",
    "ssl/certs",
];

/// A started machine, of which this process has joined the namespaces.
pub(super) struct Machine {
    bwrap: Child,
    /// The first process of the machine. When it ends, the kernel kills all others.
    pub(super) init: OwnedFd,
}

impl Machine {
    /// Starts a machine.
    ///
    /// # Errors
    /// What failed, with what bubblewrap wrote.
    pub(super) fn start(spec: &MachineSpec) -> Result<Self, String> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| format!("{what}: {error}")
        };
        enter::leave_root().map_err(failed("cannot give up the root user"))?;
        let (mut bwrap, mut info) =
            launch(spec).map_err(|error| not_started(&spec.bwrap, &error))?;
        let started = await_ready(&mut bwrap, &mut info)
            .map_err(failed("cannot read from bubblewrap"))
            .and_then(|init| match init {
                Some(init) => join(&bwrap, init, spec).map_err(failed("cannot join the machine")),
                None => Err("bubblewrap failed".to_owned()),
            });
        match started {
            Ok(init) => Ok(Self { bwrap, init }),
            Err(what) => Err(end_failed(bwrap, &what)),
        }
    }

    /// Ends every process of the machine and waits for that.
    pub(super) fn end(mut self) {
        // It may have ended by itself.
        let _ = pidfd_send_signal(&self.init, Signal::KILL);
        let _ = self.bwrap.wait();
    }
}

fn not_started(bwrap: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "machines need bubblewrap, and `{}` is not installed; install it (Debian, Ubuntu: apt-get install bubblewrap) \
            or set sandbox.bwrap",
            bwrap.display()
        ),
        _ => format!("cannot start {}: {error}", bwrap.display()),
    }
}

/// Ends bubblewrap and returns `what` with its last words.
fn end_failed(mut bwrap: Child, what: &str) -> String {
    // It may have ended by itself.
    let _ = bwrap.kill();
    let mut words = Vec::new();
    if let Some(stderr) = bwrap.stderr.take() {
        // Without its words the message is still true.
        let _ = stderr.take(2_000).read_to_end(&mut words);
    }
    let _ = bwrap.wait();
    let words = String::from_utf8_lossy(&words);
    let hint = "machines need unprivileged user namespaces and bubblewrap 0.8 or newer; see `sysctl kernel.unprivileged_userns_clone` \
        and `sysctl kernel.apparmor_restrict_unprivileged_userns`";
    match words.trim() {
        "" => format!("{what}; {hint}"),
        words => format!("{what}: {words}; {hint}"),
    }
}

fn launch(spec: &MachineSpec) -> io::Result<(Child, io::PipeReader)> {
    let (info, info_writer) = io::pipe()?;
    let passwd = data(&format!(
        "root:x:0:0::/root:/bin/sh\nagent:x:{USER}:{USER}::/home/agent:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"
    ))?;
    let group = data(&format!("root:x:0:\nagent:x:{USER}:\nnogroup:x:65534:\n"))?;
    fcntl_setfd(&info_writer, FdFlags::empty())?;
    let mut command = Command::new(&spec.bwrap);
    command
        .args(arguments(spec)?)
        .args([
            "--ro-bind-data",
            &passwd.as_raw_fd().to_string(),
            "/etc/passwd",
        ])
        .args([
            "--ro-bind-data",
            &group.as_raw_fd().to_string(),
            "/etc/group",
        ])
        .args(["--remount-ro", "/dev", "--remount-ro", "/"])
        .args(["--chdir", "/work"])
        .args(["--info-fd", &info_writer.as_raw_fd().to_string()])
        .args(["--", "/bin/sh", "-c", INIT])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    spawn::limit_init(&mut command, spec);
    Ok((command.spawn()?, info))
}

/// A file in memory, which bubblewrap inherits.
fn data(text: &str) -> io::Result<OwnedFd> {
    let fd = memfd_create("sandbox", MemfdFlags::empty())?;
    let mut file = std::fs::File::from(fd);
    file.write_all(text.as_bytes())?;
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

fn arguments(spec: &MachineSpec) -> io::Result<Vec<OsString>> {
    let mut list: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| list.extend(words.iter().map(OsString::from));
    add(&[
        "--unshare-user",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-uts",
    ]);
    add(&["--unshare-cgroup-try", "--disable-userns"]);
    if !spec.network {
        add(&["--unshare-net"]);
    }
    let user = USER.to_string();
    add(&["--uid", &user, "--gid", &user, "--hostname", "sandbox"]);
    add(&[
        "--die-with-parent",
        "--new-session",
        "--as-pid-1",
        "--clearenv",
    ]);
    add(&["--setenv", "PATH", "/usr/bin:/bin"]);
    add(&["--ro-bind", "/usr", "/usr"]);
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let path = format!("/{name}");
        match std::fs::read_link(&path) {
            Ok(target) => add(&["--symlink", &target.to_string_lossy(), &path]),
            Err(_) => add(&["--ro-bind-try", &path, &path]),
        }
    }
    let network: &[&str] = if spec.network { &ETC_NETWORK } else { &[] };
    let browser: &[&str] = if spec.browser { &ETC_BROWSER } else { &[] };
    for name in ETC.iter().chain(network).chain(browser) {
        let path = format!("/etc/{name}");
        add(&["--ro-bind-try", &path, &path]);
    }
    add(&["--proc", "/proc", "--dev", "/dev"]);
    let quarter = (spec.disk / 4).max(4096).to_string();
    add(&["--size", &quarter, "--perms", "1777", "--tmpfs", "/dev/shm"]);
    add(&["--size", &quarter, "--perms", "1777", "--tmpfs", "/tmp"]);
    add(&["--size", &quarter, "--tmpfs", "/home/agent"]);
    add(&["--size", &spec.disk.to_string(), "--tmpfs", "/work"]);
    for path in &spec.read_only {
        list.extend(["--ro-bind".into(), path.into(), path.into()]);
    }
    Ok(list)
}

/// Waits until the first process runs and returns its id on the host; none if bubblewrap ended.
fn await_ready(bwrap: &mut Child, info: &mut io::PipeReader) -> io::Result<Option<Pid>> {
    let until = Instant::now() + START_TIMEOUT;
    let Some(mut stdout) = bwrap.stdout.take() else {
        return Ok(None);
    };
    let mut poller = Poller::default();
    let output = poller.add(&stdout, PollFlags::IN);
    if !poller.wait(until)?.ready(output) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut ready = [0; 6];
    if stdout.read_exact(&mut ready).is_err() || ready != *b"ready\n" {
        return Ok(None);
    }
    // Bubblewrap wrote it, in one piece, before it started the first process.
    let mut buffer = [0; 4096];
    let length = info.read(&mut buffer)?;
    let info: serde_json::Value = serde_json::from_slice(buffer.get(..length).unwrap_or_default())?;
    let pid = info.get("child-pid").and_then(serde_json::Value::as_i64);
    let pid = pid.and_then(|pid| i32::try_from(pid).ok());
    Ok(pid.and_then(Pid::from_raw))
}

/// Applies the limits to the first process and joins its namespaces.
fn join(bwrap: &Child, init: Pid, spec: &MachineSpec) -> io::Result<OwnedFd> {
    let pidfd = pidfd_open(init, PidfdFlags::empty())?;
    // If bubblewrap had ended, the id could be another process's by now.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", init.as_raw_pid()))?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let parent = fields.split_whitespace().nth(1);
    if parent != Some(bwrap.id().to_string().as_str()) {
        return Err(io::Error::other("the first process has ended"));
    }
    spawn::limit_running(init, spec)?;
    enter::join_namespaces(&pidfd, spec.network)?;
    Ok(pidfd)
}
