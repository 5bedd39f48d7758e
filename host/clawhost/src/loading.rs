//! Which components a server or a replay runs, and how one is loaded: pinned, granted, of the right kind, or refused in
//! one sentence.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clawhost_plugins::{Account, GrantBook, Grants, HostOptions, Kind, Plugin, PluginHost};

use crate::compiling;
use crate::config::Config;
use crate::granting;
use crate::serve::{plugin_name, read_plugin_of};

/// The judge that is used when none is named.
const JUDGE: &str = "judge-next-state";
/// The hint extractor that is used when none is named and the method of training learns from hints.
const HINTS: &str = "hint-next-state";

/// A component, where it is from, and what it was granted when it was loaded.
pub(crate) struct Source {
    pub(crate) plugin: Plugin,
    /// None for a component inside this program.
    pub(crate) file: Option<PathBuf>,
    pub(crate) granted: Grants,
}

/// Components in the order in which they were named.
pub(crate) struct Loaded {
    pub(crate) sources: Vec<Source>,
}

impl Loaded {
    /// Those that judge turns or make hints of what follows.
    pub(crate) fn judging(&self) -> Vec<Plugin> {
        self.of(&[Kind::Judge, Kind::GroupJudge, Kind::Hint])
    }

    /// Those that training asks instead of its own formulas.
    pub(crate) fn training(&self) -> Vec<Plugin> {
        self.of(&[Kind::Loss, Kind::Advantage])
    }

    pub(crate) fn of(&self, kinds: &[Kind]) -> Vec<Plugin> {
        let plugins = self.sources.iter().map(|source| &source.plugin);
        plugins
            .filter(|plugin| kinds.contains(&plugin.kind()))
            .cloned()
            .collect()
    }
}

/// Loads components as one configuration says.
pub(crate) struct Loader {
    host: PluginHost,
    config: Config,
}

impl Loader {
    /// With what `options` offer beside the configuration: models, state, a way out.
    ///
    /// # Errors
    /// When the threads of the plugins cannot be started.
    pub(crate) fn new(config: &Config, options: HostOptions) -> Result<Self> {
        Ok(Self {
            host: compiling::host(options)?,
            config: config.clone(),
        })
    }

    /// The file in which grants are written down.
    pub(crate) fn grants_file(&self) -> PathBuf {
        self.config.grants_file()
    }

    /// What calls came to since the start, by name and digest.
    pub(crate) fn accounts(&self) -> Vec<(String, String, Account)> {
        self.host.accounts()
    }

    /// What a digest is granted now.
    ///
    /// # Errors
    /// When the grants cannot be read.
    pub(crate) fn granted(&self, digest: &str) -> Result<Grants> {
        Ok(GrantBook::open(&self.grants_file())?.grants(digest))
    }

    /// A component's bytes.
    ///
    /// # Errors
    /// When it cannot be read, is no regular file or is larger than this host takes.
    pub(crate) fn read(&self, file: &Path) -> Result<Vec<u8>> {
        read_plugin_of(file, self.config.plugin_host.max_component_bytes)
    }

    /// The plugin with other grants. Nothing is compiled.
    ///
    /// # Errors
    /// Why it is refused now.
    pub(crate) fn regrant(&self, plugin: &Plugin, granted: &Grants, file: &Path) -> Result<Plugin> {
        granting::loaded(Some(file), &self.config, |manifest| {
            self.host.regrant(plugin, granted, manifest)
        })
    }

    /// Loads a component with what its digest is granted now. Compiles: call it off the threads that serve.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn load(&self, name: &str, bytes: &[u8], file: Option<&Path>) -> Result<Source> {
        let section = self.config.plugins.get(name).cloned().unwrap_or_default();
        let digest = clawhost_plugins::digest(bytes);
        if let Some(pinned) = &section.sha256 {
            ensure!(
                *pinned == digest,
                "sha256 is {digest}, but plugins.{name}.sha256 pins {pinned}; look at the file with `clawhost plugin inspect` and write its digest there if it is the one you want"
            );
        }
        let granted = self.granted(&digest)?;
        let plugin = granting::loaded(file, &self.config, |manifest| {
            self.host
                .load_as(name, bytes, &granted, manifest, section.profile)
        })?;
        Ok(Source {
            plugin,
            file: file.map(Path::to_owned),
            granted,
        })
    }

    /// Loads what a server runs: what is in the files, and from this program what is missing among them: a judge, and
    /// an extractor of hints when training learns from hints.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub(crate) fn all(&self, files: &[PathBuf]) -> Result<Loaded> {
        let mut sources: Vec<Source> = Vec::new();
        for path in files {
            let name = plugin_name(path);
            ensure!(
                sources.iter().all(|other| other.plugin.name() != name),
                "two plugins are called {name}; rename one of the files"
            );
            let source = self
                .load(&name, &self.read(path)?, Some(path))
                .with_context(|| format!("--plugin {} cannot be used", path.display()))?;
            if source.plugin.kind() == Kind::Environment {
                bail!(
                    "--plugin {} is an environment, and episodes are not run by this version; `clawhost plugin test` and `clawhost plugin run` call environments",
                    path.display()
                );
            }
            sources.push(source);
        }
        let training = &self.config.training;
        let wanted = [
            (Kind::Judge, JUDGE, true),
            (
                Kind::Hint,
                HINTS,
                training.enabled && training.method.uses_hints(),
            ),
        ];
        for (kind, name, wanted) in wanted {
            if !wanted || sources.iter().any(|one| one.plugin.kind() == kind) {
                continue;
            }
            ensure!(
                sources.iter().all(|one| one.plugin.name() != name),
                "a plugin that is no {kind} is called {name}, as the {kind} in this program; rename its file"
            );
            let bytes = clawhost_plugins::embedded(name)
                .with_context(|| format!("{name} is missing in this program"))?;
            sources.push(self.load(name, bytes, None)?);
        }
        Ok(Loaded { sources })
    }
}
