//! Loads a component for a command that runs without a server: with the capabilities of the configuration that it is
//! granted, or with a script in their place. State is in memory in both cases, and initially empty.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use clawhost_authoring::{Recorder, Script};
use clawhost_config::component_name;
use clawhost_plugins::{
    Capability, GrantFile, Grants, HostOptions, Limits, Manifest, ModelClient, Network, Plugin,
    StateStore, embedded_component,
};

use crate::capabilities::{Internet, Models, PluginState};
use crate::compiling;
use crate::config::{Config, StateConfig};
use crate::granting;
use crate::machines;
use crate::plugin_file::PluginFiles;
use crate::serve::load_engine;

/// The configuration of a command that reads components and grants.
#[derive(Debug, Args)]
pub(super) struct ReadingFlags {
    /// Configuration file; its section [plugins] applies
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key of the configuration; can be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

impl ReadingFlags {
    /// Loads the configuration.
    pub(super) fn load(&self) -> Result<Config> {
        Ok(Config::load(self.config.as_deref(), &self.set, None)?)
    }
}

/// The configuration of a command that runs a component without a server.
#[derive(Debug, Args)]
pub(in crate::commands) struct ConfigurationFlags {
    /// Configuration file, for models, and limits and settings of the component
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key of the configuration; can be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Data directory of the server, where `grants.toml` is kept
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl ConfigurationFlags {
    /// Loads the configuration, with this model in place of the configured one.
    pub(in crate::commands) fn load(&self, model: Option<&Path>) -> Result<Config> {
        let mut config = Config::load(self.config.as_deref(), &self.set, model)?;
        if let Some(data) = &self.data {
            config.server.data_dir.clone_from(data);
        }
        Ok(config)
    }
}

/// Returns the limits of a call of this plugin on a server with this configuration.
pub(in crate::commands) fn limits(config: &Config, plugin: &Plugin) -> Limits {
    let defaults = plugin.kind().default_limits();
    config.plugins.limits(plugin.name(), &defaults)
}

/// A component and its imported capabilities.
struct Component<'a> {
    file: &'a Path,
    files: PluginFiles,
    name: String,
    bytes: Vec<u8>,
    capabilities: Vec<Capability>,
}

impl<'a> Component<'a> {
    fn read(file: &'a Path, config: &Config) -> Result<Component<'a>> {
        // A name without a file is that of an embedded component.
        let embedded = file
            .to_str()
            .filter(|_| !file.exists())
            .and_then(embedded_component);
        let files = PluginFiles::new(config);
        let bytes = match embedded {
            Some(bytes) => bytes.to_vec(),
            None => files.read(file)?,
        };
        let inspection = compiling::host(config.plugins.host.into())?
            .inspect(&bytes)
            .with_context(|| format!("{} cannot be used", file.display()))?;
        Ok(Component {
            file,
            files,
            name: component_name(file),
            bytes,
            capabilities: inspection.capabilities.into_iter().collect(),
        })
    }

    fn load(
        &self,
        config: &Config,
        options: HostOptions,
        grants: impl FnOnce(&Manifest) -> Grants,
    ) -> Result<Plugin> {
        let own = config.plugins.plugin(&self.name);
        let host = compiling::host(options)?;
        granting::load_with_manifest(Some(self.file), &self.files, config, |manifest| {
            let grants = grants(manifest);
            host.load_with_manifest(&self.name, &self.bytes, &grants, manifest, own.profile)
        })
        .with_context(|| format!("{} cannot be run", self.file.display()))
    }
}

/// Loads a component with the capabilities of a server that this build is granted. The model is loaded only for a component
/// that imports it. With `record`, a recorder stores the exchanges.
pub(in crate::commands) fn load_live(
    file: &Path,
    config: &Config,
    record: bool,
) -> Result<(Plugin, Option<Arc<Recorder>>)> {
    let component = Component::read(file, config)?;
    let mut model: Option<Arc<dyn ModelClient>> = None;
    if component.capabilities.contains(&Capability::Model) {
        let engine = load_engine(config)?.engine;
        model = Some(Arc::new(Models::new(engine, &config.models)?));
    }
    let mut network: Arc<dyn Network> = Arc::new(Internet);
    let mut recorder = None;
    if record {
        let exchanges = Arc::new(Recorder::new(model.clone(), Arc::clone(&network)));
        model = model.map(|_| Arc::clone(&exchanges) as _);
        network = Arc::clone(&exchanges) as _;
        recorder = Some(exchanges);
    }
    let needs_machines = [Capability::Sandbox, Capability::Display]
        .iter()
        .any(|capability| component.capabilities.contains(capability));
    let sandbox = match needs_machines {
        true => machines::sandboxes(config)?,
        false => None,
    };
    let options = HostOptions {
        model,
        network: Some(network),
        state: Some(in_memory(config.plugins.state)?),
        sandbox,
        ..HostOptions::from(config.plugins.host)
    };
    let digest = clawhost_plugins::digest(&component.bytes);
    let grants = GrantFile::open(&config.grants_file())?.grants(&digest);
    let plugin = component.load(config, options, |_| grants)?;
    Ok((plugin, recorder))
}

/// Loads a component with a script in place of models, network and state. No grants are needed, because nothing real is
/// accessed; limits of the manifest still apply.
pub(in crate::commands) fn load_scripted(
    file: &Path,
    config: &Config,
) -> Result<(Plugin, Arc<Script>)> {
    let component = Component::read(file, config)?;
    let quota = config.plugins.state;
    let script = Script::new(move || in_memory(quota).map_err(|error| format!("{error:#}")));
    let script = Arc::new(script.map_err(|error| anyhow!(error))?);
    let options = HostOptions {
        model: Some(Arc::clone(&script) as _),
        network: Some(Arc::clone(&script) as _),
        state: Some(Arc::clone(&script) as _),
        ..HostOptions::from(config.plugins.host)
    };
    let capabilities = component.capabilities.clone();
    let plugin = component.load(config, options, |manifest| {
        // Empty lists of origins and models mean all.
        let mut grants = manifest.all_requested_grants();
        grants.allow.extend(capabilities);
        grants
    })?;
    Ok((plugin, script))
}

fn in_memory(quota: StateConfig) -> Result<Arc<dyn StateStore>> {
    Ok(Arc::new(PluginState::in_memory(quota)?))
}
