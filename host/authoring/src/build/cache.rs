//! Cache of built components, keyed by a digest of the build's inputs.
//!
//! A component in Python or JavaScript contains the memory of an interpreter that has imported the plugin: hash tables with
//! a random seed, and clocks. Two builds of the same sources differ, and neither componentize-py 0.25.1
//! (<https://github.com/bytecodealliance/componentize-py/issues/247>) nor componentize-qjs 0.4.5 has an option that makes
//! builds reproducible. Grants belong to a digest, so an unchanged build returns the cached component instead.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clawhost_plugins::digest;

use crate::error::AuthoringError;

use super::job::Job;

/// Most components in the cache; the least recently used ones are removed first.
const MAX_COMPONENTS: usize = 32;
/// Entries of a plugin's directory that do not affect its component: outputs, installed packages and tests.
const IGNORED: [&str; 4] = ["build", "target", "node_modules", "tests"];
/// Installed packages that are build tools, which no plugin imports.
const TOOLS: [&str; 7] = [
    "@andreiltd",
    "componentize-qjs",
    "componentize_py",
    "ziglang",
    "pip",
    "setuptools",
    "pkg_resources",
];

/// Copies the component from the cache, or builds it; returns whether it came from the cache. Without a cache directory or
/// a complete list of inputs, it is always built.
pub(super) fn restore_or_build(
    job: &Job<'_>,
    inputs: Option<Inputs>,
    build: impl FnOnce() -> Result<(), AuthoringError>,
) -> Result<bool, AuthoringError> {
    let component = job.dir.join(&job.manifest.component);
    let cached = job
        .cache
        .zip(inputs)
        .map(|(folder, inputs)| CachedComponent::for_inputs(folder, &inputs));
    if cached
        .as_ref()
        .is_some_and(|cached| cached.restore(&component))
    {
        return Ok(true);
    }
    build()?;
    if let Some(cached) = cached {
        cached.store(&component);
    }
    Ok(false)
}

/// A component's file in the cache.
struct CachedComponent {
    path: PathBuf,
}

impl CachedComponent {
    /// The file for these inputs in the cache directory `folder`.
    fn for_inputs(folder: &Path, inputs: &Inputs) -> CachedComponent {
        let key = digest(inputs.text.as_bytes());
        CachedComponent {
            path: folder.join(format!("{key}.wasm")),
        }
    }

    /// Copies it to the build's output path; returns false if it is not in the cache.
    fn restore(&self, component: &Path) -> bool {
        if fs::copy(&self.path, component).is_err() {
            return false;
        }
        // Only the order of eviction depends on it.
        let _ = File::open(&self.path).and_then(|file| file.set_modified(SystemTime::now()));
        true
    }

    /// Stores a built component. A failure to store it is not a failure of the build.
    fn store(&self, component: &Path) {
        let _ = self.try_store(component);
    }

    fn try_store(&self, component: &Path) -> io::Result<()> {
        let Some(folder) = self.path.parent() else {
            return Ok(());
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        // Renamed once complete, so that readers never see a partial file.
        let unfinished = self
            .path
            .with_extension(format!("{}.new", std::process::id()));
        fs::copy(component, &unfinished)?;
        File::open(&unfinished)?.set_modified(SystemTime::now())?;
        fs::rename(&unfinished, &self.path)?;
        let mut stored = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            stored.push((entry.metadata()?.modified()?, entry.path()));
        }
        stored.sort_unstable();
        for (_, path) in stored.iter().rev().skip(MAX_COMPONENTS) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

/// The inputs of a build as text: names and digests.
pub(super) struct Inputs {
    text: String,
}

impl Inputs {
    /// Collects the version of the tool, the entry modules and the plugin's directory. None if one cannot be determined.
    pub(super) fn collect(job: &Job<'_>, tool: &str, entry: &str) -> Option<Inputs> {
        let tool = job.tools.iter().find(|found| found.name == tool)?;
        let mut inputs = Inputs::new(tool.version.as_deref()?);
        inputs.add_entry(&job.dir.join(entry)).ok()?;
        inputs.add_plugin(job.dir).ok()?;
        Some(inputs)
    }

    fn new(tool: &str) -> Inputs {
        Inputs {
            text: format!("clawhost {}\n{tool}\n", env!("CARGO_PKG_VERSION")),
        }
    }

    /// Adds a plugin's directory without the entries that do not affect its component.
    ///
    /// # Errors
    /// If an entry cannot be read, or is a link to a directory.
    fn add_plugin(&mut self, folder: &Path) -> io::Result<()> {
        let ignored =
            |name: &str| name.starts_with('.') || IGNORED.contains(&name) || name.ends_with(".md");
        self.add(folder, "plugin", &ignored)
    }

    /// Adds the entry modules, which call the plugin.
    ///
    /// # Errors
    /// As [`Inputs::add_plugin`].
    fn add_entry(&mut self, folder: &Path) -> io::Result<()> {
        self.add(folder, "entry", &|_| false)
    }

    /// Adds a directory of installed packages.
    ///
    /// # Errors
    /// As [`Inputs::add_plugin`].
    pub(super) fn add_packages(&mut self, folder: &Path) -> io::Result<()> {
        let of = |name: &str, tool: &str| {
            let rest = name.strip_prefix(tool);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let ignored = |name: &str| name.starts_with('.') || TOOLS.iter().any(|tool| of(name, tool));
        self.add(folder, "packages", &ignored)
    }

    /// Adds a directory without the ignored entries at its top level and Python's bytecode caches.
    fn add(
        &mut self,
        folder: &Path,
        label: &str,
        ignored: &dyn Fn(&str) -> bool,
    ) -> io::Result<()> {
        let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_unstable_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == "__pycache__" || ignored(&name) {
                continue;
            }
            let label = format!("{label}/{name}");
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                self.add(&path, &label, &|_| false)?;
            } else {
                // Reading a link to a directory is an error: the target could change without changing the key.
                let digest = digest(&fs::read(&path)?);
                self.text.push_str(&format!("{digest} {label}\n"));
            }
        }
        Ok(())
    }
}

/// Finds the package directories of a virtual environment.
pub(super) fn find_packages(environment: &Path) -> Vec<PathBuf> {
    let Ok(versions) = fs::read_dir(environment.join("lib")) else {
        return Vec::new();
    };
    let folders = versions.filter_map(|version| Some(version.ok()?.path().join("site-packages")));
    let mut folders: Vec<PathBuf> = folders.filter(|folder| folder.is_dir()).collect();
    folders.sort_unstable();
    folders
}

/// Finds the virtual environment whose packages a plugin in this directory may import: the active one, else its `.venv`.
pub(super) fn find_environment(active: Option<&OsStr>, folder: &Path) -> Option<PathBuf> {
    let active = active.filter(|path| !path.is_empty()).map(PathBuf::from);
    let own = || Some(folder.join(".venv")).filter(|path| path.is_dir());
    active.or_else(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(folder: &Path, packages: Option<&Path>) -> String {
        let mut inputs = Inputs::new("tool 1");
        inputs.add_plugin(folder).unwrap();
        if let Some(packages) = packages {
            inputs.add_packages(packages).unwrap();
        }
        digest(inputs.text.as_bytes())
    }

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn inputs_do_not_depend_on_the_directory() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&one, &other] {
            write(dir.path().join("plugin.py"), "x = 1");
            write(dir.path().join("sdk/a.py"), "y = 2");
        }
        let before = key(one.path(), None);
        assert_eq!(before, key(other.path(), None));
        // Changes that do not affect the component.
        for ignored in [
            "tests/goldens.json",
            "build/j.wasm",
            "README.md",
            ".venv/x",
            "sdk/__pycache__/a.pyc",
        ] {
            write(other.path().join(ignored), "z");
        }
        assert_eq!(before, key(other.path(), None));
        // Changes that do.
        for more in [
            "plugin.py",
            "sdk/a.py",
            "data.json",
            "wit/world.wit",
            "sdk/tests/b.py",
        ] {
            let was = key(other.path(), None);
            write(other.path().join(more), "changed");
            assert_ne!(was, key(other.path(), None), "{more}");
        }
        let packages = tempfile::tempdir().unwrap();
        write(
            packages
                .path()
                .join("componentize_py-0.25.1.dist-info/RECORD"),
            "1",
        );
        let empty = key(one.path(), Some(packages.path()));
        assert_eq!(empty, before);
        write(packages.path().join("pipes/__init__.py"), "1");
        assert_ne!(empty, key(one.path(), Some(packages.path())));
    }

    #[test]
    fn links_to_directories_are_errors() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(other.path(), dir.path().join("lib")).unwrap();
        assert!(Inputs::new("tool").add_plugin(dir.path()).is_err());
    }

    #[test]
    fn the_most_recently_used_components_are_restored() {
        let dir = tempfile::tempdir().unwrap();
        let (built, kept) = (dir.path().join("built.wasm"), dir.path().join("kept"));
        let of =
            |tool: usize| CachedComponent::for_inputs(&kept, &Inputs::new(&format!("tool {tool}")));
        for tool in 0..MAX_COMPONENTS + 3 {
            fs::write(&built, format!("component {tool}")).unwrap();
            of(tool).store(&built);
        }
        assert_eq!(fs::read_dir(&kept).unwrap().count(), MAX_COMPONENTS);
        fs::write(&built, "another").unwrap();
        assert!(!of(MAX_COMPONENTS + 3).restore(&built));
        assert_eq!(fs::read_to_string(&built).unwrap(), "another");
        assert!(of(MAX_COMPONENTS + 2).restore(&built));
        let last = fs::read_to_string(&built).unwrap();
        assert_eq!(last, format!("component {}", MAX_COMPONENTS + 2));
    }

    #[test]
    fn the_active_environment_has_precedence() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find_environment(None, dir.path()), None);
        let own = dir.path().join(".venv");
        fs::create_dir_all(own.join("lib/python3.14/site-packages")).unwrap();
        assert_eq!(
            find_environment(Some(OsStr::new("")), dir.path()),
            Some(own.clone())
        );
        assert_eq!(
            find_packages(&own),
            [own.join("lib/python3.14/site-packages")]
        );
        let active = find_environment(Some(OsStr::new("/active")), dir.path());
        assert_eq!(active, Some(PathBuf::from("/active")));
    }
}
