//! Loads components and hands out plugins.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use wasmtime::component::Component;

use crate::call::CallContext;
use crate::calls::Export;
use crate::capability::http::{HttpGrant, Network};
use crate::capability::log::LogRate;
use crate::capability::model::{ModelClient, ModelGrant};
use crate::capability::state::{StateGrant, StateStore};
use crate::engine::Machine;
use crate::error::PluginError;
use crate::fault::{Fault, FaultKind};
use crate::grants::{Capability, Grants, Manifest};
use crate::inspect::{self, Inspection};
use crate::invoke;
use crate::kind::Kind;
use crate::linking;
use crate::loaded::{self, Loaded};
use crate::printable::one_line;
use crate::profile::Profile;
use crate::receipt::Receipt;
use crate::threads::PluginThreads;
use crate::verdict::Verdict;
use crate::walk;

/// Bytes that are kept of what the engine says about a component.
const ENGINE_WORDS: usize = 4 << 10;

/// How a host runs its plugins.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostOptions {
    /// Threads that run guests. Default: the number of cores, at most 4.
    pub threads: usize,
    /// Instances at a time, for each profile. Calls beyond wait; those of one plugin hold at most three
    /// quarters. Default 256.
    pub instances: u32,
    /// Take instances from a pool when the address space allows. Default true.
    pub pooling: bool,
    /// Largest component file, in bytes. Default 64 MiB.
    pub max_component_bytes: usize,
    /// Largest single memory of a guest, in bytes; `limits.memory_bytes` caps the sum. Default
    /// 256 MiB.
    pub max_memory_bytes: usize,
    /// Elements of a guest's largest table. Default 20,000.
    pub max_table_elements: usize,
    /// Models that plugins may be granted. Default none.
    #[serde(skip)]
    pub model: Option<Arc<dyn ModelClient>>,
    /// Durable state that plugins may be granted. Default none.
    #[serde(skip)]
    pub state: Option<Arc<dyn StateStore>>,
    /// The way out for plugins that may be granted `http`. Default none.
    #[serde(skip)]
    pub network: Option<Arc<dyn Network>>,
}

impl std::fmt::Debug for HostOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostOptions")
            .field("threads", &self.threads)
            .field("instances", &self.instances)
            .field("pooling", &self.pooling)
            .field("max_component_bytes", &self.max_component_bytes)
            .field("max_memory_bytes", &self.max_memory_bytes)
            .field("max_table_elements", &self.max_table_elements)
            .field("model", &self.model.is_some())
            .field("state", &self.state.is_some())
            .field("network", &self.network.is_some())
            .finish()
    }
}

impl Default for HostOptions {
    fn default() -> Self {
        HostOptions {
            threads: std::thread::available_parallelism().map_or(2, |cores| cores.get().min(4)),
            instances: 256,
            pooling: true,
            max_component_bytes: 64 << 20,
            max_memory_bytes: 256 << 20,
            max_table_elements: 20_000,
            model: None,
            state: None,
            network: None,
        }
    }
}

/// Loads components and runs them on its own threads. Clones share everything.
#[derive(Clone)]
pub struct PluginHost {
    inner: Arc<Inner>,
}

struct Inner {
    options: HostOptions,
    threads: Arc<PluginThreads>,
    /// Engines are started when the first component needs them.
    deterministic: Mutex<Option<Arc<Machine>>>,
    fast: Mutex<Option<Arc<Machine>>>,
}

impl PluginHost {
    /// Starts the threads. Engines start with the first component of their profile.
    ///
    /// # Errors
    /// [`PluginError::Host`] when threads cannot be started.
    pub fn new(options: HostOptions) -> Result<PluginHost, PluginError> {
        let threads = Arc::new(PluginThreads::start(options.threads.max(1))?);
        Ok(PluginHost {
            inner: Arc::new(Inner {
                options,
                threads,
                deterministic: Mutex::new(None),
                fast: Mutex::new(None),
            }),
        })
    }

    /// Checks, compiles and links a component. Takes milliseconds to seconds of CPU: call it off
    /// the threads that serve.
    ///
    /// # Errors
    /// [`PluginError`] says what is wrong with the component or which grant it lacks.
    pub fn load(
        &self,
        name: &str,
        bytes: &[u8],
        grants: &Grants,
        profile: Profile,
    ) -> Result<Plugin, PluginError> {
        self.load_as(name, bytes, grants, &Manifest::default(), profile)
    }

    /// As [`PluginHost::load`], with no more than the plugin's manifest says it wants.
    ///
    /// # Errors
    /// As [`PluginHost::load`].
    pub fn load_as(
        &self,
        name: &str,
        bytes: &[u8],
        grants: &Grants,
        manifest: &Manifest,
        profile: Profile,
    ) -> Result<Plugin, PluginError> {
        let grants = &manifest.narrow(grants);
        walk::check(bytes, self.inner.options.max_component_bytes)?;
        let digest = inspect::digest(bytes);
        let machine = self.machine(profile)?;
        let component = compile(&machine, bytes)?;
        let inspection = inspect::inspect(&component, bytes)?;
        self.permit(name, &inspection, grants, manifest)?;
        self.feed(&inspection)?;
        let export = link(&machine, &component, &inspection)?;
        let granted = |capability| inspection.capabilities.contains(&capability);
        let options = &self.inner.options;
        let loaded = Loaded {
            name: name.to_owned(),
            digest,
            kind: inspection.kind,
            imports: inspection.imports.clone(),
            profile,
            machine,
            threads: Arc::clone(&self.inner.threads),
            model: options
                .model
                .clone()
                .filter(|_| granted(Capability::Model))
                .map(|client| ModelGrant {
                    client,
                    models: grants.models.clone(),
                }),
            state: options
                .state
                .clone()
                .filter(|_| granted(Capability::State))
                .map(|store| StateGrant { store }),
            http: options
                .network
                .clone()
                .filter(|_| granted(Capability::Http))
                .map(|network| HttpGrant {
                    network,
                    grants: Arc::new(grants.clone()),
                }),
            budgets: manifest.budgets(),
            log_rate: LogRate::default(),
            share: loaded::share_of(options.instances),
        };
        Ok(Plugin {
            loaded: Arc::new(loaded),
            export,
        })
    }

    /// Says what a component is without granting or running anything.
    ///
    /// # Errors
    /// [`PluginError`] when it is no component of the contract.
    pub fn inspect(&self, bytes: &[u8]) -> Result<Inspection, PluginError> {
        walk::check(bytes, self.inner.options.max_component_bytes)?;
        let machine = self.machine(Profile::default())?;
        inspect::inspect(&compile(&machine, bytes)?, bytes)
    }

    /// Instances of this profile come from a pool. Starts the engine if need be.
    ///
    /// # Errors
    /// [`PluginError::Host`] when the engine cannot start.
    pub fn is_pooled(&self, profile: Profile) -> Result<bool, PluginError> {
        Ok(self.machine(profile)?.pooled)
    }

    fn machine(&self, profile: Profile) -> Result<Arc<Machine>, PluginError> {
        let slot = match profile {
            Profile::Deterministic => &self.inner.deterministic,
            Profile::Fast => &self.inner.fast,
        };
        let mut slot = slot
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(machine) = &*slot {
            return Ok(Arc::clone(machine));
        }
        let machine = Arc::new(Machine::start(profile, &self.inner.options)?);
        *slot = Some(Arc::clone(&machine));
        Ok(machine)
    }

    /// Every capability must be in the world, granted to this digest, and available here.
    fn permit(
        &self,
        name: &str,
        inspection: &Inspection,
        grants: &Grants,
        manifest: &Manifest,
    ) -> Result<(), PluginError> {
        for capability in &inspection.capabilities {
            if !inspection.kind.may_import(*capability) {
                return Err(PluginError::OutsideWorld {
                    capability: *capability,
                    world: inspection.kind.world(),
                });
            }
        }
        let missing: Vec<Capability> = inspection
            .capabilities
            .iter()
            .copied()
            .filter(|capability| !grants.covers(*capability))
            .collect();
        if !missing.is_empty() {
            return Err(PluginError::NotGranted {
                name: name.to_owned(),
                digest: inspection.digest.clone(),
                arguments: manifest.lacking(&missing, grants),
                missing,
            });
        }
        for capability in &inspection.capabilities {
            if let Some(reason) = self.why_unavailable(*capability) {
                return Err(PluginError::NotAvailable {
                    name: name.to_owned(),
                    capability: *capability,
                    reason,
                });
            }
        }
        Ok(())
    }

    fn why_unavailable(&self, capability: Capability) -> Option<&'static str> {
        let options = &self.inner.options;
        match capability {
            Capability::Log | Capability::Context => None,
            Capability::Model => options
                .model
                .is_none()
                .then_some("this server offers no model to plugins"),
            Capability::State => options
                .state
                .is_none()
                .then_some("this server keeps no state for plugins"),
            Capability::Http => options
                .network
                .is_none()
                .then_some("this server has no way out for plugins"),
            Capability::Sandbox | Capability::Display => Some("this build does not provide it"),
        }
    }

    /// A component that can never start is refused now, not at its first call.
    fn feed(&self, inspection: &Inspection) -> Result<(), PluginError> {
        let options = &self.inner.options;
        for (what, needed, limit) in [
            (
                "bytes of memory",
                inspection.initial_memory_bytes,
                options.max_memory_bytes,
            ),
            (
                "table elements",
                inspection.initial_table_elements,
                options.max_table_elements,
            ),
        ] {
            if let Some(needed) = needed.filter(|needed| *needed > limit as u64) {
                return Err(PluginError::TooHungry {
                    what,
                    needed,
                    limit: limit as u64,
                });
            }
        }
        Ok(())
    }
}

/// Links what the component imports and checks once that its exports have the types of the
/// contract.
fn link(
    machine: &Machine,
    component: &Component,
    inspection: &Inspection,
) -> Result<Export, PluginError> {
    let mismatch = |error: wasmtime::Error| PluginError::Mismatch(told(&error));
    let linker = linking::linker(&machine.engine, inspection)
        .map_err(|error| PluginError::Host(format!("{error:#}")))?;
    let pre = linker.instantiate_pre(component).map_err(mismatch)?;
    Export::find(inspection.kind, pre).map_err(mismatch)
}

fn compile(machine: &Machine, bytes: &[u8]) -> Result<Component, PluginError> {
    Component::from_binary(&machine.engine, bytes)
        .map_err(|error| PluginError::Invalid(told(&error)))
}

/// What the engine says about a component, which may quote names that the component chose.
fn told(error: &wasmtime::Error) -> String {
    one_line(&format!("{error:#}"), ENGINE_WORDS)
}

/// A component that is ready to be called. Clones share it.
#[derive(Clone)]
pub struct Plugin {
    loaded: Arc<Loaded>,
    export: Export,
}

/// The result of a call and its account.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Called<T> {
    /// The result, checked, or why there is none.
    pub outcome: Result<T, Fault>,
    /// What the call cost.
    pub receipt: Receipt,
}

/// The result of a judge call.
pub type Judged = Called<Verdict>;

impl Plugin {
    /// Name under which it was loaded.
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// sha256 of the component, in hex.
    pub fn digest(&self) -> &str {
        &self.loaded.digest
    }

    /// What it is for.
    pub fn kind(&self) -> Kind {
        self.loaded.kind
    }

    /// Its imports, as written in the component.
    pub fn imports(&self) -> &[String] {
        &self.loaded.imports
    }

    /// How it runs.
    pub fn profile(&self) -> Profile {
        self.loaded.profile
    }

    pub(crate) fn export(&self) -> &Export {
        &self.export
    }

    pub(crate) fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded)
    }

    /// The answer to a call that this kind of plugin does not have.
    pub(crate) fn wrong_kind<T>(&self, call: &CallContext, wanted: Kind) -> Called<T> {
        invoke::refused(
            &self.loaded,
            call,
            Fault::new(FaultKind::WrongKind {
                wanted,
                is: self.loaded.kind,
            }),
        )
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("name", &self.loaded.name)
            .field("kind", &self.loaded.kind)
            .field("digest", &self.loaded.digest)
            .finish_non_exhaustive()
    }
}
