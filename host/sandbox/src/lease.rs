//! Leases: which machines this process has started, recorded in a directory, so that the next process ends and removes
//! what a killed one left.
//!
//! Each process has a directory of its own and holds a lock on it. The kernel releases the lock when the process ends,
//! however it ends, so a directory whose lock can be taken is a leftover. Nothing else is removed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Name of the lock in the directory of a process, and of the lock of all of them.
const LOCK: &str = "lock";
/// Beginning of the name of a process's directory.
const PREFIX: &str = "host-";

/// Who started a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The run. Snapshots of a run can be restored only by the run.
    pub run: String,
    /// The episode or call.
    pub episode: String,
}

/// A machine that is running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Who started it.
    pub owner: Owner,
    /// Its profile.
    pub profile: String,
    /// Process id of its supervisor.
    pub supervisor: u32,
    /// When the supervisor started, in clock ticks since the boot; tells it from a later process with its id.
    started: u64,
    /// The machine is ended at this time, in seconds of the Unix epoch.
    pub deadline: u64,
}

/// The directory of this process.
pub(crate) struct LeaseDir {
    path: PathBuf,
    _lock: File,
    next: AtomicU64,
}

impl LeaseDir {
    /// Creates a directory for this process below `root`, and ends and removes what other processes left there.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        let all = lock_file(&root.join(LOCK))?;
        flock(&all, FlockOperation::LockExclusive)?;
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                remove_leftover(&entry.path())?;
            }
        }
        for number in 0_u64.. {
            let path = root.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let lock = lock_file(&path.join(LOCK))?;
                    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
                    return Ok(Self {
                        path,
                        _lock: lock,
                        next: AtomicU64::new(0),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory, if it is still there.
    pub(crate) fn remove(&self) {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("cannot remove {}: {error}", self.path.display());
            }
            _ => {}
        }
    }

    /// A number that is unique in this directory.
    pub(crate) fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for LeaseDir {
    fn drop(&mut self) {
        self.remove();
    }
}

fn lock_file(path: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
}

fn remove_leftover(dir: &Path) -> io::Result<()> {
    let lock = lock_file(&dir.join(LOCK))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "lease")
        {
            let record = fs::read(&path)
                .ok()
                .and_then(|text| serde_json::from_slice(&text).ok());
            if let Some(record) = record {
                kill_supervisor(&record);
            }
        }
    }
    fs::remove_dir_all(dir)
}

/// Kills the supervisor if it still runs. It ends by itself when its host does, so this is for a stopped one.
fn kill_supervisor(record: &LeaseRecord) {
    let pid = i32::try_from(record.supervisor)
        .ok()
        .and_then(Pid::from_raw);
    let Some(pid) = pid else { return };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    if start_time(record.supervisor).is_ok_and(|started| started == record.started) {
        // It may have ended meanwhile.
        let _ = pidfd_send_signal(&process, Signal::KILL);
    }
}

/// When a process started, in clock ticks since the boot.
fn start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let field = fields.split_whitespace().nth(19);
    let field = field.and_then(|field| field.parse().ok());
    field.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The record of one machine; removed when dropped.
pub(crate) struct Lease {
    path: PathBuf,
    pub(crate) record: LeaseRecord,
    _dir: Arc<LeaseDir>,
}

impl Lease {
    pub(crate) fn new(
        dir: &Arc<LeaseDir>,
        owner: Owner,
        profile: &str,
        supervisor: u32,
        deadline: u64,
    ) -> io::Result<Self> {
        let record = LeaseRecord {
            owner,
            profile: profile.to_owned(),
            supervisor,
            started: start_time(supervisor)?,
            deadline,
        };
        let path = dir.path.join(format!("{}.lease", dir.next()));
        fs::write(&path, serde_json::to_vec(&record)?)?;
        Ok(Self {
            path,
            record,
            _dir: Arc::clone(dir),
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leftovers_of_ended_processes_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let mine = LeaseDir::open(root.path()).unwrap();
        let leftover = root.path().join("host-1-0");
        let others = root.path().join("notes");
        for dir in [&leftover, &others] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("0.lease"), "{}").unwrap();
        }
        let second = LeaseDir::open(root.path()).unwrap();
        assert!(!leftover.exists());
        assert!(others.exists() && mine.path().exists());
        let path = second.path().to_owned();
        drop(second);
        assert!(!path.exists() && mine.path().exists());
    }

    #[test]
    fn a_supervisor_is_killed_only_if_it_is_the_recorded_process() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let started = start_time(child.id()).unwrap();
        let mut record = LeaseRecord {
            owner: Owner {
                run: "run".to_owned(),
                episode: "1".to_owned(),
            },
            profile: "default".to_owned(),
            supervisor: child.id(),
            started: started + 1,
            deadline: 0,
        };
        kill_supervisor(&record);
        assert!(child.try_wait().unwrap().is_none());
        record.started = started;
        kill_supervisor(&record);
        let status = child.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9)
        );
    }
}
