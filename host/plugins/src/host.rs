//! The plugin host: loads components and returns callable plugins.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;
use wasmtime::component::Component;

use crate::admission;
use crate::call::CallContext;
use crate::call_stats::CallStats;
use crate::capability::http::HttpGrant;
use crate::capability::log::LogRate;
use crate::capability::model::ModelGrant;
use crate::capability::state::StateGrant;
use crate::compiling::{CompiledComponent, ComponentCompiler, engine_error};
use crate::engine::WasmRuntime;
use crate::error::PluginError;
use crate::exports::Export;
use crate::fault::{Fault, FaultKind};
use crate::grants::{Capability, Grants, Manifest};
use crate::inspect::{self, Inspection};
use crate::invoke;
use crate::kind::Kind;
use crate::linking;
use crate::loaded_plugin::{LoadedPlugin, SharedStats, max_slots};
use crate::lock::lock;
use crate::options::HostOptions;
use crate::precheck;
use crate::receipt::CallResult;
use crate::thread_pool::PluginThreads;
use clawhost_config::Profile;

/// Loads components and runs them on its own thread pool. Clones share all state.
#[derive(Clone)]
pub struct PluginHost {
    inner: Arc<Inner>,
}

struct Inner {
    options: HostOptions,
    compiler: ComponentCompiler,
    threads: PluginThreads,
    /// Started when the first component of the profile is loaded.
    deterministic: Mutex<Option<Arc<WasmRuntime>>>,
    fast: Mutex<Option<Arc<WasmRuntime>>>,
    /// By name and digest.
    call_stats: Mutex<BTreeMap<(String, String), SharedStats>>,
}

impl PluginHost {
    /// Starts the thread pool. The engine of a profile starts with its first component.
    ///
    /// # Errors
    /// [`PluginError::Host`] when the threads cannot be started.
    pub fn new(options: HostOptions) -> Result<PluginHost, PluginError> {
        let threads = PluginThreads::start(options.guest_threads())?;
        Ok(PluginHost {
            inner: Arc::new(Inner {
                compiler: ComponentCompiler::new(&options),
                options,
                threads,
                deterministic: Mutex::new(None),
                fast: Mutex::new(None),
                call_stats: Mutex::new(BTreeMap::new()),
            }),
        })
    }

    /// Validates, compiles and links a component. This blocks for milliseconds when the compiled code is cached and up
    /// to seconds otherwise, so do not call it on a serving thread.
    ///
    /// # Errors
    /// [`PluginError`] when the component is invalid or a grant is missing.
    pub fn load(
        &self,
        name: &str,
        bytes: &[u8],
        grants: &Grants,
        profile: Profile,
    ) -> Result<Plugin, PluginError> {
        self.load_with_manifest(name, bytes, grants, &Manifest::default(), profile)
    }

    /// As [`PluginHost::load`], with the grants narrowed to what the plugin's manifest requests.
    ///
    /// # Errors
    /// As [`PluginHost::load`].
    pub fn load_with_manifest(
        &self,
        name: &str,
        bytes: &[u8],
        grants: &Grants,
        manifest: &Manifest,
        profile: Profile,
    ) -> Result<Plugin, PluginError> {
        let grants = &manifest.narrow(grants);
        precheck::check(bytes, self.inner.options.config.max_component_size)?;
        let digest = inspect::digest(bytes);
        let runtime = self.runtime(profile)?;
        let CompiledComponent { component, cached } = self
            .inner
            .compiler
            .component(&runtime, profile, bytes, &digest)?;
        let inspection = inspect::inspect(&component, bytes.len(), &digest)?;
        let options = &self.inner.options;
        admission::check_capabilities(options, name, &inspection, grants, manifest)?;
        admission::check_initial_size(options, &inspection)?;
        let export = link(&runtime, &component, &inspection)?;
        let max_slots = max_slots(options.config.max_instances);
        let linked = LinkedComponent {
            name,
            profile,
            runtime,
            inspection,
            share: Arc::new(Semaphore::new(max_slots as usize)),
            slots: WasmRuntime::slots_per_instance(&component).min(max_slots),
        };
        Ok(Plugin {
            loaded: Arc::new(self.with_capabilities(linked, grants, manifest)),
            export,
            cached,
        })
    }

    /// Returns a loaded plugin with other grants. Nothing is compiled, so this takes microseconds. Calls in progress
    /// keep the grants that they started with.
    ///
    /// # Errors
    /// [`PluginError::NotGranted`] when the new grants do not cover its imports.
    pub fn regrant(
        &self,
        plugin: &Plugin,
        grants: &Grants,
        manifest: &Manifest,
    ) -> Result<Plugin, PluginError> {
        let grants = &manifest.narrow(grants);
        let current = &plugin.loaded;
        let options = &self.inner.options;
        admission::check_capabilities(
            options,
            &current.name,
            &current.inspection,
            grants,
            manifest,
        )?;
        let linked = LinkedComponent {
            name: &current.name,
            profile: current.profile,
            runtime: Arc::clone(&current.runtime),
            inspection: current.inspection.clone(),
            share: Arc::clone(&current.share),
            slots: current.slots,
        };
        Ok(Plugin {
            loaded: Arc::new(self.with_capabilities(linked, grants, manifest)),
            export: plugin.export.clone(),
            cached: plugin.cached,
        })
    }

    /// Gives a component the capabilities that it imports and that are granted to it.
    fn with_capabilities(
        &self,
        linked: LinkedComponent<'_>,
        grants: &Grants,
        manifest: &Manifest,
    ) -> LoadedPlugin {
        let options = &self.inner.options;
        let LinkedComponent {
            name,
            profile,
            runtime,
            inspection,
            share,
            slots,
        } = linked;
        let imports = |capability| inspection.capabilities.contains(&capability);
        LoadedPlugin {
            name: name.to_owned(),
            digest: inspection.digest.clone(),
            kind: inspection.kind,
            profile,
            runtime,
            threads: self.inner.threads.clone(),
            model: options
                .model
                .clone()
                .filter(|_| imports(Capability::Model))
                .map(|client| ModelGrant {
                    client,
                    models: grants.models.clone(),
                }),
            state: options
                .state
                .clone()
                .filter(|_| imports(Capability::State))
                .map(|store| StateGrant { store }),
            http: options
                .network
                .clone()
                .filter(|_| imports(Capability::Http))
                .map(|network| HttpGrant {
                    network,
                    grants: Arc::new(grants.clone()),
                }),
            sandbox: options
                .sandbox
                .clone()
                .filter(|_| imports(Capability::Sandbox)),
            display: options
                .sandbox
                .clone()
                .filter(|_| imports(Capability::Display)),
            budgets: manifest.budgets(),
            log_rate: LogRate::of_lines(),
            fault_rate: LogRate::of_faults(),
            share,
            slots,
            call_stats: self.stats_of(name, &inspection.digest),
            inspection,
        }
    }

    /// The threads that run the guests of its plugins.
    pub fn threads(&self) -> &PluginThreads {
        &self.inner.threads
    }

    /// The call statistics of every component since this host started: name, digest, statistics.
    pub fn call_stats(&self) -> Vec<(String, String, CallStats)> {
        let call_stats = lock(&self.inner.call_stats);
        let one = |((name, digest), stats): (&(String, String), &SharedStats)| {
            (name.clone(), digest.clone(), lock(stats).clone())
        };
        call_stats.iter().map(one).collect()
    }

    fn stats_of(&self, name: &str, digest: &str) -> SharedStats {
        let mut call_stats = lock(&self.inner.call_stats);
        let key = (name.to_owned(), digest.to_owned());
        Arc::clone(call_stats.entry(key).or_default())
    }

    /// Inspects a component: kind, imports, exports and initial sizes. Grants and runs nothing, but compiles it.
    ///
    /// # Errors
    /// [`PluginError`] when it is not a plugin component.
    pub fn inspect(&self, bytes: &[u8]) -> Result<Inspection, PluginError> {
        precheck::check(bytes, self.inner.options.config.max_component_size)?;
        let digest = inspect::digest(bytes);
        let profile = Profile::default();
        let runtime = self.runtime(profile)?;
        let compiled = self
            .inner
            .compiler
            .component(&runtime, profile, bytes, &digest)?;
        inspect::inspect(&compiled.component, bytes.len(), &digest)
    }

    /// Whether instances of this profile are allocated from a pool. Starts the engine if necessary.
    ///
    /// # Errors
    /// [`PluginError::Host`] when the engine cannot start.
    pub fn is_pooled(&self, profile: Profile) -> Result<bool, PluginError> {
        Ok(self.runtime(profile)?.pooled)
    }

    fn runtime(&self, profile: Profile) -> Result<Arc<WasmRuntime>, PluginError> {
        let slot = match profile {
            Profile::Deterministic => &self.inner.deterministic,
            Profile::Fast => &self.inner.fast,
        };
        let mut slot = lock(slot);
        if let Some(runtime) = &*slot {
            return Ok(Arc::clone(runtime));
        }
        let runtime = Arc::new(WasmRuntime::start(profile, &self.inner.options)?);
        *slot = Some(Arc::clone(&runtime));
        Ok(runtime)
    }
}

/// A component that is compiled, linked and admitted, before it gets its capabilities.
struct LinkedComponent<'a> {
    name: &'a str,
    profile: Profile,
    runtime: Arc<WasmRuntime>,
    inspection: Inspection,
    share: Arc<Semaphore>,
    slots: u32,
}

/// Links the imports of the component and checks the types of its exports.
fn link(
    runtime: &WasmRuntime,
    component: &Component,
    inspection: &Inspection,
) -> Result<Export, PluginError> {
    let mismatch = |error: wasmtime::Error| PluginError::TypeMismatch(engine_error(&error));
    let linker = linking::linker(&runtime.engine, inspection)
        .map_err(|error| PluginError::Host(format!("{error:#}")))?;
    let pre = linker.instantiate_pre(component).map_err(mismatch)?;
    Export::find(inspection.kind, pre).map_err(mismatch)
}

/// A loaded component that can be called. Clones share it.
#[derive(Clone)]
pub struct Plugin {
    loaded: Arc<LoadedPlugin>,
    export: Export,
    cached: bool,
}

impl Plugin {
    /// The name under which it was loaded.
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// sha256 of the component, in hex.
    pub fn digest(&self) -> &str {
        &self.loaded.digest
    }

    /// The threads that run its guests, those of its host.
    pub fn threads(&self) -> &PluginThreads {
        &self.loaded.threads
    }

    /// The kind of plugin.
    pub fn kind(&self) -> Kind {
        self.loaded.kind
    }

    /// The imported interfaces, as named in the component.
    pub fn imports(&self) -> &[String] {
        &self.loaded.inspection.imports
    }

    /// The engine profile.
    pub fn profile(&self) -> Profile {
        self.loaded.profile
    }

    /// Whether its compiled code came from the cache.
    pub fn was_cached(&self) -> bool {
        self.cached
    }

    pub(crate) fn export(&self) -> &Export {
        &self.export
    }

    pub(crate) fn loaded(&self) -> Arc<LoadedPlugin> {
        Arc::clone(&self.loaded)
    }

    /// The result of a call that this kind of plugin does not support.
    pub(crate) fn wrong_kind<T>(&self, call: &CallContext, wanted: Kind) -> CallResult<T> {
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
