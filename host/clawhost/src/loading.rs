//! Which components judge, and how one is loaded: pinned, granted, of the right kind, or refused in one sentence.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clawhost_plugins::{GrantBook, HostOptions, Kind, Plugin, PluginHost};

use crate::compiling;
use crate::config::Config;
use crate::granting;
use crate::serve::{plugin_name, read_plugin};

/// The judge that is used when none is named.
const EMBEDDED: &str = "judge-next-state";

/// The components of a server, by what they are for.
#[derive(Default)]
pub(crate) struct Loaded {
    pub(crate) judges: Vec<Plugin>,
    /// Where the judges are from; empty for the embedded one.
    pub(crate) judge_files: Vec<PathBuf>,
    pub(crate) training: Vec<Plugin>,
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

    /// Loads a component with what its digest is granted now. Compiles: call it off the threads that serve.
    fn component(&self, name: &str, bytes: &[u8], file: Option<&Path>) -> Result<Plugin> {
        let section = self.config.plugins.get(name).cloned().unwrap_or_default();
        let digest = clawhost_plugins::digest(bytes);
        if let Some(pinned) = &section.sha256 {
            ensure!(
                *pinned == digest,
                "sha256 is {digest}, but plugins.{name}.sha256 pins {pinned}; look at the file with `clawhost plugin inspect` and write its digest there if it is the one you want"
            );
        }
        let book = GrantBook::open(&self.grants_file())?;
        let grants = book.grants(&digest);
        granting::loaded(file, &self.config, |manifest| {
            self.host
                .load_as(name, bytes, &grants, manifest, section.profile)
        })
    }

    /// Loads a judge. Compiles: call it off the threads that serve.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn judge(&self, name: &str, bytes: &[u8], file: Option<&Path>) -> Result<Plugin> {
        let plugin = self.component(name, bytes, file)?;
        ensure!(
            plugin.kind() == Kind::Judge,
            "{name} is a {}, and a judge is wanted here",
            plugin.kind()
        );
        Ok(plugin)
    }

    /// Loads what a server runs: judges (the embedded one when there is none among the files), and what
    /// training asks instead of its own formulas.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub(crate) fn all(&self, files: &[PathBuf]) -> Result<Loaded> {
        let mut loaded = Loaded::default();
        let mut names: Vec<String> = Vec::new();
        for path in files {
            let name = plugin_name(path);
            ensure!(
                !names.contains(&name),
                "two plugins are called {name}; rename one of the files"
            );
            let plugin = self
                .component(&name, &read_plugin(path)?, Some(path))
                .with_context(|| format!("--plugin {} cannot be used", path.display()))?;
            names.push(name);
            match plugin.kind() {
                Kind::Judge => {
                    loaded.judges.push(plugin);
                    loaded.judge_files.push(path.clone());
                }
                Kind::Loss | Kind::Advantage => loaded.training.push(plugin),
                other => bail!(
                    "--plugin {} is a {other}; this version runs judges, losses and advantages",
                    path.display()
                ),
            }
        }
        if loaded.judges.is_empty() {
            loaded.judges = self.judges(&[])?;
        }
        Ok(loaded)
    }

    /// Loads the judges in these files, or the embedded one when there are none.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub(crate) fn judges(&self, files: &[PathBuf]) -> Result<Vec<Plugin>> {
        if files.is_empty() {
            let bytes =
                clawhost_plugins::embedded(EMBEDDED).context("the embedded judge is missing")?;
            return Ok(vec![self.judge(EMBEDDED, bytes, None)?]);
        }
        let mut judges: Vec<Plugin> = Vec::new();
        for path in files {
            let name = plugin_name(path);
            ensure!(
                judges.iter().all(|other| other.name() != name),
                "two plugins are called {name}; rename one of the files"
            );
            judges.push(self.judge_in(path, &name)?);
        }
        Ok(judges)
    }

    fn judge_in(&self, path: &Path, name: &str) -> Result<Plugin> {
        let bytes = read_plugin(path)?;
        self.judge(name, &bytes, Some(path))
            .with_context(|| format!("--plugin {} cannot be used", path.display()))
    }
}
