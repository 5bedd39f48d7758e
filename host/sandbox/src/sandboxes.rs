//! The machines of this process: profiles, leases and snapshots.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use clawhost_config::{SandboxConfig, SandboxProfile};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::SandboxError;
use crate::lease::{Lease, LeaseDir, LeaseRecord, Owner};
use crate::machine::{self, Machine, check_arguments};
use crate::process::{self, SupervisorCommand};
use crate::protocol::{MachineSpec, Reply, Request};

/// How long a machine may take to start, on a busy host.
const START_TIMEOUT: Duration = Duration::from_secs(90);

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

/// Starts machines. Clones share everything.
#[derive(Clone)]
pub struct Sandboxes {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    config: SandboxConfig,
    supervisor: SupervisorCommand,
    leases: Arc<LeaseDir>,
    slots: Arc<Semaphore>,
    running: Mutex<BTreeMap<u64, LeaseRecord>>,
    /// Notified when a machine has ended.
    ended: Condvar,
    snapshots: Mutex<BTreeMap<String, Snapshot>>,
}

/// A stored work directory.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) path: PathBuf,
    id: String,
    run: String,
    spec: Spec,
    size: u64,
}

impl std::fmt::Debug for Sandboxes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandboxes")
            .field("config", &self.shared.config)
            .field("running", &self.leases())
            .finish_non_exhaustive()
    }
}

impl Sandboxes {
    /// Prepares to start machines; ends and removes what earlier processes left in `dir`. Starts nothing, so it works
    /// without bubblewrap.
    ///
    /// # Errors
    /// The directory of the leases cannot be used.
    pub fn new(
        config: SandboxConfig,
        supervisor: SupervisorCommand,
        dir: &Path,
    ) -> Result<Self, SandboxError> {
        let leases = LeaseDir::open(dir).map_err(|error| {
            SandboxError::Unavailable(format!("cannot use {}: {error}", dir.display()))
        })?;
        Ok(Self {
            shared: Arc::new(Shared {
                slots: Arc::new(Semaphore::new(config.max_machines)),
                config,
                supervisor,
                leases: Arc::new(leases),
                running: Mutex::default(),
                ended: Condvar::new(),
                snapshots: Mutex::default(),
            }),
        })
    }

    /// The machines that are running.
    pub fn leases(&self) -> Vec<LeaseRecord> {
        lock(&self.shared.running).values().cloned().collect()
    }

    /// Starts a machine; waits while `sandbox.max_machines` are running.
    ///
    /// # Errors
    /// [`SandboxError`] when the profile does not exist or the machine cannot be started.
    pub async fn create(&self, owner: Owner, spec: Spec) -> Result<Machine, SandboxError> {
        self.start(owner, spec).await
    }

    /// Starts a machine with the work directory of a snapshot of the same run.
    ///
    /// # Errors
    /// As [`Sandboxes::create`], and when the run has no such snapshot.
    pub async fn restore(&self, owner: Owner, snapshot: &str) -> Result<Machine, SandboxError> {
        let found = lock(&self.shared.snapshots).get(snapshot).cloned();
        let found = found
            .filter(|found| found.run == owner.run)
            .ok_or_else(|| {
                SandboxError::NotFound(format!("this run has no snapshot {snapshot:?}"))
            })?;
        let machine = self.start(owner, found.spec.clone()).await?;
        machine.unpack(&found).await?;
        Ok(machine)
    }

    /// Removes a snapshot. A machine that is being restored from it may fail to start.
    pub fn remove_snapshot(&self, snapshot: &str) {
        let found = lock(&self.shared.snapshots).remove(snapshot);
        // Dropping removes the file.
        drop(found.map(|found| PendingSnapshot(Some(found))));
    }

    /// Waits for the end of machines that were dropped, and removes the directory of this process. For the end of a
    /// program, which waits neither for threads nor for clones. What is still in use is left to the next process.
    pub fn finish(&self, timeout: Duration) {
        let running = lock(&self.shared.running);
        let waited = self
            .shared
            .ended
            .wait_timeout_while(running, timeout, |running| !running.is_empty());
        let (running, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if running.is_empty() {
            self.shared.leases.remove();
        }
    }

    async fn start(&self, owner: Owner, spec: Spec) -> Result<Machine, SandboxError> {
        let shared = &self.shared;
        let profile = shared.config.profile(&spec.profile).ok_or_else(|| {
            SandboxError::Denied(format!(
                "there is no sandbox profile {:?}; configure [sandbox.profiles.{}]",
                spec.profile, spec.profile
            ))
        })?;
        check_arguments(spec.workdir.as_slice(), &spec.env)?;
        let slots = Arc::clone(&shared.slots);
        let unavailable = |what: &str, error: &dyn std::fmt::Display| {
            SandboxError::Unavailable(format!("{what}: {error}"))
        };
        let permit = slots.acquire_owned().await;
        let permit = permit.map_err(|error| unavailable("no machine can be started", &error))?;
        let started = shared.supervisor.start();
        let (child, stream) =
            started.map_err(|error| unavailable("cannot start a supervisor", &error))?;
        let held = Held::new(shared, owner, &spec.profile, &profile, child, permit)?;
        let connected = stream.set_nonblocking(true);
        let mut stream = connected
            .and_then(|()| UnixStream::from_std(stream))
            .map_err(|error| unavailable("cannot reach a supervisor", &error))?;
        let request = Request::Start(machine_spec(&shared.config, &profile, &spec));
        let reply = machine::within(START_TIMEOUT, async {
            machine::write_frame(&mut stream, &request, &[]).await?;
            machine::read_frame(&mut stream).await
        });
        match reply.await {
            Ok((Reply::Done, _)) => {}
            Ok((Reply::Failed(error), _)) => return Err(error),
            Ok(_) => return Err(unavailable("the supervisor", &"unexpected answer")),
            Err(error) => return Err(unavailable("the supervisor failed", &error)),
        }
        let shared = Arc::clone(shared);
        Ok(Machine::new(stream, spec, profile, shared, held))
    }
}

fn machine_spec(config: &SandboxConfig, profile: &SandboxProfile, spec: &Spec) -> MachineSpec {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    MachineSpec {
        bwrap: config.bwrap.clone(),
        memory: profile.memory,
        processes: profile.processes,
        cpu_seconds: profile.cpu_time.as_secs().max(1),
        disk: profile.disk,
        ttl_ms: millis(profile.ttl),
        deadline_ms: millis(profile.deadline),
        network: profile.network,
        read_only: profile.read_only.clone(),
        env: spec.env.clone(),
        workdir: spec.workdir.clone(),
    }
}

impl Shared {
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
    child: Child,
    lease: Lease,
    permit: OwnedSemaphorePermit,
    shared: Arc<Shared>,
}

impl Held {
    fn new(
        shared: &Arc<Shared>,
        owner: Owner,
        profile_name: &str,
        profile: &SandboxProfile,
        child: Child,
        permit: OwnedSemaphorePermit,
    ) -> Result<Self, SandboxError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let deadline = now.unwrap_or_default().saturating_add(profile.deadline);
        let (dir, pid) = (&shared.leases, child.id());
        let lease = match Lease::new(dir, owner, profile_name, pid, deadline.as_secs()) {
            Ok(lease) => lease,
            Err(error) => {
                process::end(child);
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
            child,
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
        process::end(self.child);
        drop(self.lease);
        lock(&self.shared.running).remove(&self.number);
        self.shared.ended.notify_all();
        drop(self.permit);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
