//! Which components a server or a replay runs, and how one is loaded: checked against its pinned digest, its grants and
//! its kind, or rejected with a one-line error.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clawhost_config::component_name;
use clawhost_plugins::{
    CallStats, GrantFile, Grants, HostOptions, Kind, Plugin, PluginHost, PluginThreads,
};

use crate::compiling;
use crate::config::Config;
use crate::granting;
use crate::plugin_file::PluginFiles;

/// The default judge.
const DEFAULT_JUDGE: &str = "judge-next-state";
/// The default hint extractor, used when the training method uses hints, or hints are kept as experience.
const DEFAULT_HINT_EXTRACTOR: &str = "hint-next-state";

/// A component, its file, and its grants when it was loaded.
pub(crate) struct Source {
    pub(crate) plugin: Plugin,
    /// A file or a reference to a registry. None for an embedded component.
    pub(crate) file: Option<PathBuf>,
    pub(crate) granted: Grants,
}

/// Components in the order in which they were named.
pub(crate) struct LoadedPlugins {
    pub(crate) sources: Vec<Source>,
}

impl LoadedPlugins {
    /// Judges, hint extractors and filters.
    pub(crate) fn judging(&self) -> Vec<Plugin> {
        self.of_kinds(&[Kind::Judge, Kind::GroupJudge, Kind::Hint, Kind::Filter])
    }

    /// Loss, pair loss, advantage and gate components.
    pub(crate) fn training(&self) -> Vec<Plugin> {
        self.of_kinds(&[Kind::Loss, Kind::PairLoss, Kind::Advantage, Kind::Gate])
    }

    pub(crate) fn of_kinds(&self, kinds: &[Kind]) -> Vec<Plugin> {
        let plugins = self.sources.iter().map(|source| &source.plugin);
        plugins
            .filter(|plugin| kinds.contains(&plugin.kind()))
            .cloned()
            .collect()
    }
}

/// Loads components as configured.
pub(crate) struct Loader {
    host: PluginHost,
    files: PluginFiles,
    config: Config,
}

impl Loader {
    /// `options` provides the capabilities: models, state, network.
    ///
    /// # Errors
    /// The plugin threads cannot be started.
    pub(crate) fn new(config: &Config, options: HostOptions) -> Result<Self> {
        Ok(Self {
            host: compiling::host(options)?,
            files: PluginFiles::new(config),
            config: config.clone(),
        })
    }

    /// The grants file.
    pub(crate) fn grants_file(&self) -> PathBuf {
        self.config.grants_file()
    }

    /// The threads that run the components.
    pub(crate) fn threads(&self) -> PluginThreads {
        self.host.threads().clone()
    }

    /// Call statistics since the start, by name and digest.
    pub(crate) fn call_stats(&self) -> Vec<(String, String, CallStats)> {
        self.host.call_stats()
    }

    /// The current grants of a digest.
    ///
    /// # Errors
    /// The grants file cannot be read.
    pub(crate) fn current_grants(&self, digest: &str) -> Result<Grants> {
        Ok(GrantFile::open(&self.grants_file())?.grants(digest))
    }

    /// Reads a component from its file or registry.
    ///
    /// # Errors
    /// As [`PluginFiles::read`].
    pub(crate) fn read(&self, file: &Path) -> Result<Vec<u8>> {
        self.files.read(file)
    }

    /// The plugin with other grants. Compiles nothing.
    ///
    /// # Errors
    /// Why it is rejected with these grants.
    pub(crate) fn regrant(&self, plugin: &Plugin, granted: &Grants, file: &Path) -> Result<Plugin> {
        granting::load_with_manifest(Some(file), &self.files, &self.config, |manifest| {
            self.host.regrant(plugin, granted, manifest)
        })
    }

    /// Loads a component with the current grants of its digest. Compiles: do not call it on the threads that serve.
    ///
    /// # Errors
    /// Why it is rejected.
    pub(crate) fn load(&self, name: &str, bytes: &[u8], file: Option<&Path>) -> Result<Source> {
        let section = self.config.plugins.plugin(name);
        let digest = clawhost_plugins::digest(bytes);
        if let Some(pinned) = &section.sha256 {
            ensure!(
                *pinned == digest,
                "sha256 is {digest}, but plugins.config.{name}.sha256 pins {pinned}; check the file with `clawhost plugin inspect` and update the pin if it is the one you want"
            );
        }
        let granted = self.current_grants(&digest)?;
        let plugin = granting::load_with_manifest(file, &self.files, &self.config, |manifest| {
            self.host
                .load_with_manifest(name, bytes, &granted, manifest, section.profile)
        })?;
        Ok(Source {
            plugin,
            file: file.map(Path::to_owned),
            granted,
        })
    }

    /// Loads the components of a server: the files, and the embedded defaults for what is missing: a judge, and a hint
    /// extractor when training uses hints.
    ///
    /// # Errors
    /// The first file that cannot be loaded.
    pub(crate) fn load_all(&self, files: &[PathBuf]) -> Result<LoadedPlugins> {
        let mut sources: Vec<Source> = Vec::new();
        for path in files {
            let name = component_name(path);
            ensure!(
                sources.iter().all(|other| other.plugin.name() != name),
                "two plugins are named {name}; rename one of the files"
            );
            let source = self
                .load(&name, &self.read(path)?, Some(path))
                .with_context(|| format!("cannot load --plugin {}", path.display()))?;
            if source.plugin.kind() == Kind::Environment {
                bail!(
                    "--plugin {} is an environment; pass it with --env and its task set with --tasks",
                    path.display()
                );
            }
            sources.push(source);
        }
        let training = &self.config.training;
        let required = [
            (Kind::Judge, DEFAULT_JUDGE, true),
            (
                Kind::Hint,
                DEFAULT_HINT_EXTRACTOR,
                training.enabled && training.method.uses_hints()
                    || self.config.experience.mode.collects(),
            ),
        ];
        for (kind, name, required) in required {
            if !required || sources.iter().any(|source| source.plugin.kind() == kind) {
                continue;
            }
            ensure!(
                sources.iter().all(|source| source.plugin.name() != name),
                "a plugin that is not a {kind} is named {name}, like the embedded {kind}; rename its file"
            );
            let bytes = clawhost_plugins::embedded_component(name)
                .with_context(|| format!("the embedded plugin {name} is missing"))?;
            sources.push(self.load(name, bytes, None)?);
        }
        Ok(LoadedPlugins { sources })
    }
}
