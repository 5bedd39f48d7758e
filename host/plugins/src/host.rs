//! Loads components and hands out plugins.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::Semaphore;
use wasmtime::component::Component;

use crate::account::Account;
use crate::admission;
use crate::call::CallContext;
use crate::calls::Export;
use crate::capability::http::HttpGrant;
use crate::capability::log::LogRate;
use crate::capability::model::ModelGrant;
use crate::capability::state::StateGrant;
use crate::compiling::{Compiled, Compiling, told};
use crate::engine::Machine;
use crate::error::PluginError;
use crate::fault::{Fault, FaultKind};
use crate::grants::{Capability, Grants, Manifest};
use crate::inspect::{self, Inspection};
use crate::invoke;
use crate::kind::Kind;
use crate::linking;
use crate::loaded::{self, Loaded, SharedAccount};
pub use crate::options::HostOptions;
use crate::profile::Profile;
use crate::receipt::Receipt;
use crate::threads::PluginThreads;
use crate::verdict::Verdict;
use crate::walk;

/// Loads components and runs them on its own threads. Clones share everything.
#[derive(Clone)]
pub struct PluginHost {
    inner: Arc<Inner>,
}

struct Inner {
    options: HostOptions,
    compiling: Compiling,
    threads: Arc<PluginThreads>,
    /// Engines are started when the first component needs them.
    deterministic: Mutex<Option<Arc<Machine>>>,
    fast: Mutex<Option<Arc<Machine>>>,
    /// By name and digest.
    accounts: Mutex<BTreeMap<(String, String), SharedAccount>>,
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
                compiling: Compiling::new(&options),
                options,
                threads,
                deterministic: Mutex::new(None),
                fast: Mutex::new(None),
                accounts: Mutex::new(BTreeMap::new()),
            }),
        })
    }

    /// Checks, compiles and links a component. Takes milliseconds when its compiled code is in the
    /// cache, up to seconds otherwise: call it off the threads that serve.
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
        let Compiled { component, cached } = self
            .inner
            .compiling
            .component(&machine, profile, bytes, &digest)?;
        let inspection = inspect::inspect(&component, bytes.len(), &digest)?;
        let options = &self.inner.options;
        admission::permit(options, name, &inspection, grants, manifest)?;
        admission::feed(options, &inspection)?;
        let export = link(&machine, &component, &inspection)?;
        let share = loaded::share_of(options.instances);
        let linked = Linked {
            name,
            profile,
            machine,
            inspection,
            share: Arc::new(Semaphore::new(share as usize)),
            places: Machine::places_of(&component).min(share),
        };
        Ok(Plugin {
            loaded: Arc::new(self.equip(linked, grants, manifest)),
            export,
            cached,
        })
    }

    /// A plugin that was loaded before, with other grants. Nothing is compiled, so this takes microseconds. Calls in
    /// progress end with what they began with.
    ///
    /// # Errors
    /// [`PluginError::NotGranted`] when it lacks what it imports now.
    pub fn regrant(
        &self,
        plugin: &Plugin,
        grants: &Grants,
        manifest: &Manifest,
    ) -> Result<Plugin, PluginError> {
        let grants = &manifest.narrow(grants);
        let before = &plugin.loaded;
        let options = &self.inner.options;
        admission::permit(options, &before.name, &before.inspection, grants, manifest)?;
        let linked = Linked {
            name: &before.name,
            profile: before.profile,
            machine: Arc::clone(&before.machine),
            inspection: before.inspection.clone(),
            share: Arc::clone(&before.share),
            places: before.places,
        };
        Ok(Plugin {
            loaded: Arc::new(self.equip(linked, grants, manifest)),
            export: plugin.export.clone(),
            cached: plugin.cached,
        })
    }

    /// Gives a component what it was granted, of what this host offers.
    fn equip(&self, linked: Linked<'_>, grants: &Grants, manifest: &Manifest) -> Loaded {
        let options = &self.inner.options;
        let Linked {
            name,
            profile,
            machine,
            inspection,
            share,
            places,
        } = linked;
        let granted = |capability| inspection.capabilities.contains(&capability);
        Loaded {
            name: name.to_owned(),
            digest: inspection.digest.clone(),
            kind: inspection.kind,
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
            log_rate: LogRate::of_lines(),
            fault_rate: LogRate::of_faults(),
            share,
            places,
            account: self.account(name, &inspection.digest),
            inspection,
        }
    }

    /// What the calls of every component came to since this host was started, by name and digest.
    pub fn accounts(&self) -> Vec<(String, String, Account)> {
        let accounts = self
            .inner
            .accounts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let one = |((name, digest), account): (&(String, String), &SharedAccount)| {
            let account = account.lock().unwrap_or_else(PoisonError::into_inner);
            (name.clone(), digest.clone(), account.clone())
        };
        accounts.iter().map(one).collect()
    }

    fn account(&self, name: &str, digest: &str) -> SharedAccount {
        let mut accounts = self
            .inner
            .accounts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let key = (name.to_owned(), digest.to_owned());
        Arc::clone(accounts.entry(key).or_default())
    }

    /// Says what a component is without granting or running anything.
    ///
    /// # Errors
    /// [`PluginError`] when it is no component of the contract.
    pub fn inspect(&self, bytes: &[u8]) -> Result<Inspection, PluginError> {
        walk::check(bytes, self.inner.options.max_component_bytes)?;
        let digest = inspect::digest(bytes);
        let profile = Profile::default();
        let machine = self.machine(profile)?;
        let compiling = &self.inner.compiling;
        let compiled = compiling.component(&machine, profile, bytes, &digest)?;
        inspect::inspect(&compiled.component, bytes.len(), &digest)
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
}

/// A component that is compiled, linked and admitted.
struct Linked<'a> {
    name: &'a str,
    profile: Profile,
    machine: Arc<Machine>,
    inspection: Inspection,
    share: Arc<Semaphore>,
    places: u32,
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

/// A component that is ready to be called. Clones share it.
#[derive(Clone)]
pub struct Plugin {
    loaded: Arc<Loaded>,
    export: Export,
    cached: bool,
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
        &self.loaded.inspection.imports
    }

    /// How it runs.
    pub fn profile(&self) -> Profile {
        self.loaded.profile
    }

    /// Its compiled code was there already and did not have to be made.
    pub fn was_cached(&self) -> bool {
        self.cached
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
