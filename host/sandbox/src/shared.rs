//! What the machines of this process share: leases, places and snapshots, and what each running machine holds of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use clawhost_config::{SandboxConfig, SandboxProfile};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::SandboxError;
use crate::lease::{Lease, LeaseDir, LeaseRecord, Owner};
use crate::process::Supervisor;

/// What a new machine is to be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spec {
    /// Its profile.
    pub profile: String,
    /// Environment variables of every command.
    pub env: Vec<(String, String)>,
    /// Working directory of every command. Default `/work`.
    pub workdir: Option<String>,
}

pub(crate) struct Shared {
    pub(crate) config: SandboxConfig,
    pub(crate) leases: Arc<LeaseDir>,
    pub(crate) slots: Arc<Semaphore>,
    running: Mutex<BTreeMap<u64, LeaseRecord>>,
    /// Notified when a machine has ended.
    ended: Condvar,
    snapshots: Mutex<BTreeMap<String, Snapshot>>,
}

/// A stored work directory.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) path: PathBuf,
    pub(crate) run: String,
    pub(crate) spec: Spec,
    id: String,
    size: u64,
}

impl Shared {
    pub(crate) fn new(config: SandboxConfig, leases: LeaseDir) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(config.max_machines)),
            config,
            leases: Arc::new(leases),
            running: Mutex::default(),
            ended: Condvar::new(),
            snapshots: Mutex::default(),
        }
    }

    /// The machines that are running.
    pub(crate) fn running(&self) -> Vec<LeaseRecord> {
        lock(&self.running).values().cloned().collect()
    }

    /// Waits until no machine is running. Returns whether that is so.
    pub(crate) fn wait_for_end(&self, timeout: Duration) -> bool {
        let running = lock(&self.running);
        let waited = self
            .ended
            .wait_timeout_while(running, timeout, |running| !running.is_empty());
        let (running, _) = waited.unwrap_or_else(PoisonError::into_inner);
        running.is_empty()
    }

    pub(crate) fn snapshot(&self, id: &str) -> Option<Snapshot> {
        lock(&self.snapshots).get(id).cloned()
    }

    pub(crate) fn remove_snapshot(&self, id: &str) {
        let found = lock(&self.snapshots).remove(id);
        // Dropping removes the file.
        drop(found.map(|found| PendingSnapshot(Some(found))));
    }

    /// A snapshot that is removed unless it is kept.
    pub(crate) fn new_snapshot(&self, record: &LeaseRecord, spec: &Spec) -> PendingSnapshot {
        let id = format!("snapshot-{}", self.leases.next());
        PendingSnapshot(Some(Snapshot {
            path: self.leases.path().join(format!("{id}.tar")),
            id,
            run: record.owner.run.clone(),
            spec: spec.clone(),
            size: 0,
        }))
    }

    pub(crate) fn keep_snapshot(
        &self,
        mut pending: PendingSnapshot,
        size: u64,
    ) -> Result<String, SandboxError> {
        let mut snapshots = lock(&self.snapshots);
        let stored: u64 = snapshots.values().map(|snapshot| snapshot.size).sum();
        if stored.saturating_add(size) > self.config.max_snapshots {
            return Err(SandboxError::QuotaExceeded(format!(
                "snapshots of {stored} bytes are stored, and this one has {size}: more than sandbox.max_snapshots"
            )));
        }
        let mut snapshot = pending.0.take().expect("a snapshot is kept once");
        snapshot.size = size;
        let id = snapshot.id.clone();
        snapshots.insert(id.clone(), snapshot);
        Ok(id)
    }
}

/// A snapshot that is being stored. Its file is removed when it is dropped.
pub(crate) struct PendingSnapshot(Option<Snapshot>);

impl PendingSnapshot {
    pub(crate) fn path(&self) -> &Path {
        self.0
            .as_ref()
            .map_or(Path::new(""), |snapshot| &snapshot.path)
    }
}

impl Drop for PendingSnapshot {
    fn drop(&mut self) {
        if let Some(snapshot) = &self.0 {
            // It may not have been created; the next process removes it otherwise.
            let _ = std::fs::remove_file(&snapshot.path);
        }
    }
}

/// What a running machine holds. Dropping it, after its socket is closed, waits in a thread of its own for the end of
/// the machine.
pub(crate) struct Held {
    record: LeaseRecord,
    parts: Mutex<Option<Parts>>,
}

struct Parts {
    number: u64,
    supervisor: Supervisor,
    lease: Lease,
    permit: OwnedSemaphorePermit,
    shared: Arc<Shared>,
}

impl Held {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        owner: Owner,
        profile_name: &str,
        profile: &SandboxProfile,
        supervisor: Supervisor,
        permit: OwnedSemaphorePermit,
    ) -> Result<Self, SandboxError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let deadline = now.unwrap_or_default().saturating_add(profile.deadline);
        let (dir, pid) = (&shared.leases, supervisor.pid);
        let lease = match Lease::new(dir, owner, profile_name, pid, deadline.as_secs()) {
            Ok(lease) => lease,
            Err(error) => {
                supervisor.end();
                return Err(SandboxError::Unavailable(format!(
                    "cannot record a lease: {error}"
                )));
            }
        };
        let record = lease.record.clone();
        let number = dir.next();
        lock(&shared.running).insert(number, record.clone());
        let parts = Parts {
            number,
            supervisor,
            lease,
            permit,
            shared: Arc::clone(shared),
        };
        Ok(Self {
            record,
            parts: Mutex::new(Some(parts)),
        })
    }

    pub(crate) fn record(&self) -> &LeaseRecord {
        &self.record
    }

    /// Waits for the end of the machine, whose socket is closed.
    pub(crate) async fn released(&self) {
        let parts = lock(&self.parts).take();
        if let Some(parts) = parts {
            let ended = tokio::task::spawn_blocking(|| parts.end()).await;
            if let Err(error) = ended {
                tracing::warn!("cannot wait for the end of a machine: {error}");
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let parts = lock(&self.parts).take();
        if let Some(parts) = parts {
            let thread = std::thread::Builder::new().name("sandbox-release".to_owned());
            if let Err(error) = thread.spawn(|| parts.end()) {
                tracing::warn!("cannot wait for the end of a machine: {error}");
            }
        }
    }
}

impl Parts {
    fn end(self) {
        self.supervisor.end();
        drop(self.lease);
        lock(&self.shared.running).remove(&self.number);
        self.shared.ended.notify_all();
        drop(self.permit);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
