//! Starts machines: profiles, and the work directories of snapshots.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clawhost_config::{SandboxConfig, SandboxProfile};
use tokio::net::UnixStream;

use crate::error::SandboxError;
use crate::lease::{LeaseDir, LeaseRecord, Owner};
use crate::machine::{self, Machine, check_arguments};
use crate::process::{Launcher, SupervisorCommand};
use crate::protocol::{MachineSpec, Reply, Request};
use crate::shared::{Held, Shared, Spec};

/// How long a machine may take to start, on a busy host.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// Starts machines. Clones share everything.
#[derive(Clone)]
pub struct Sandboxes {
    shared: Arc<Shared>,
    launcher: Arc<Launcher>,
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
            shared: Arc::new(Shared::new(config, leases)),
            launcher: Arc::new(Launcher::new(supervisor)),
        })
    }

    /// The machines that are running.
    pub fn leases(&self) -> Vec<LeaseRecord> {
        self.shared.running()
    }

    /// Starts a machine; waits while `sandbox.max_machines` are running.
    ///
    /// # Errors
    /// [`SandboxError`] when the profile does not exist or the machine cannot be started.
    pub async fn create(&self, owner: Owner, spec: Spec) -> Result<Machine, SandboxError> {
        self.start(owner, spec, None).await
    }

    /// Starts a machine with the work directory of a snapshot of the same run.
    ///
    /// # Errors
    /// As [`Sandboxes::create`], and when the run has no such snapshot.
    pub async fn restore(&self, owner: Owner, snapshot: &str) -> Result<Machine, SandboxError> {
        let found = self
            .shared
            .snapshot(snapshot)
            .filter(|found| found.run == owner.run)
            .ok_or_else(|| {
                SandboxError::NotFound(format!("this run has no snapshot {snapshot:?}"))
            })?;
        let machine = self.start(owner, found.spec.clone(), None).await?;
        machine.unpack(&found).await?;
        Ok(machine)
    }

    /// Removes a snapshot. A machine that is being restored from it may fail to start.
    pub fn remove_snapshot(&self, snapshot: &str) {
        self.shared.remove_snapshot(snapshot);
    }

    /// Waits for the end of machines that were dropped, and removes the directory of this process. For the end of a
    /// program, which waits neither for threads nor for clones. What is still in use is left to the next process.
    pub fn finish(&self, timeout: Duration) {
        if self.shared.wait_for_end(timeout) {
            self.shared.leases.remove();
        }
    }

    /// The configuration of machines.
    pub(crate) fn config(&self) -> &SandboxConfig {
        &self.shared.config
    }

    /// Starts a machine. `browser`: the end of a pipe for [`Request::OpenBrowser`].
    pub(crate) async fn start(
        &self,
        owner: Owner,
        spec: Spec,
        browser: Option<OwnedFd>,
    ) -> Result<Machine, SandboxError> {
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
        let has_browser = browser.is_some();
        let started = self.launcher.start(browser);
        let (supervisor, stream) =
            started.map_err(|error| unavailable("cannot start a supervisor", &error))?;
        let held = Held::new(shared, owner, &spec.profile, &profile, supervisor, permit)?;
        let connected = stream.set_nonblocking(true);
        let mut stream = connected
            .and_then(|()| UnixStream::from_std(stream))
            .map_err(|error| unavailable("cannot reach a supervisor", &error))?;
        let mut machine = machine_spec(&shared.config, &profile, &spec);
        machine.browser = has_browser;
        let request = Request::Start(machine);
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
        browser: false,
        env: spec.env.clone(),
        workdir: spec.workdir.clone(),
    }
}
