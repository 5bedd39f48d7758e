//! Components that were built before, found by what they were built from.
//!
//! A component in Python or JavaScript holds the memory of an interpreter that has imported the plugin: hash tables under
//! a random seed, and clocks. Two builds of the same sources differ, and neither componentize-py 0.25.1
//! (<https://github.com/bytecodealliance/componentize-py/issues/247>) nor componentize-qjs 0.4.5 has an option that would
//! change it. Grants belong to a digest, so what was built from the same files with the same tool is taken again instead.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clawhost_plugins::digest;

use crate::error::AuthoringError;

use super::Job;

/// Components that are kept; those that were not used for longest go first.
const KEPT: usize = 32;
/// Of a plugin's folder: what builds and tests leave or read there, and what no interpreter imports.
const ASIDE: [&str; 4] = ["build", "target", "node_modules", "tests"];
/// Of installed packages: the tools themselves, which are programs of this machine.
const TOOLS: [&str; 7] = [
    "@andreiltd",
    "componentize-qjs",
    "componentize_py",
    "ziglang",
    "pip",
    "setuptools",
    "pkg_resources",
];

/// Takes the component that was built from these inputs before, else builds it; says whether it was taken. Without a
/// folder, or where the inputs cannot be told, it is built.
pub(super) fn take_or_build(
    job: &Job<'_>,
    inputs: Option<Inputs>,
    build: impl FnOnce() -> Result<(), AuthoringError>,
) -> Result<bool, AuthoringError> {
    let component = job.dir.join(&job.manifest.component);
    let kept = job.kept.zip(inputs);
    let kept = kept.map(|(folder, inputs)| Kept::of(folder, &inputs));
    if kept.as_ref().is_some_and(|kept| kept.take(&component)) {
        return Ok(true);
    }
    build()?;
    if let Some(kept) = kept {
        kept.put(&component);
    }
    Ok(false)
}

/// Where components are kept.
struct Kept {
    path: PathBuf,
}

impl Kept {
    /// The component that was built from these inputs, in `folder`, with that many of them kept.
    fn of(folder: &Path, inputs: &Inputs) -> Kept {
        let key = digest(inputs.text.as_bytes());
        Kept {
            path: folder.join(format!("{key}.wasm")),
        }
    }

    /// Copies it to where the build would leave it; false when it was not built before.
    fn take(&self, component: &Path) -> bool {
        if fs::copy(&self.path, component).is_err() {
            return false;
        }
        // Only which of them is oldest depends on it.
        let _ = File::open(&self.path).and_then(|file| file.set_modified(SystemTime::now()));
        true
    }

    /// Keeps what was built. That it cannot be kept is no failure of the build.
    fn put(&self, component: &Path) {
        let _ = self.try_put(component);
    }

    fn try_put(&self, component: &Path) -> io::Result<()> {
        let Some(folder) = self.path.parent() else {
            return Ok(());
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        // A file has its name once it is whole.
        let unfinished = self
            .path
            .with_extension(format!("{}.new", std::process::id()));
        fs::copy(component, &unfinished)?;
        File::open(&unfinished)?.set_modified(SystemTime::now())?;
        fs::rename(&unfinished, &self.path)?;
        let mut kept = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            kept.push((entry.metadata()?.modified()?, entry.path()));
        }
        kept.sort_unstable();
        for (_, path) in kept.iter().rev().skip(KEPT) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

/// Everything that a component is built from, as text: names and digests.
pub(super) struct Inputs {
    text: String,
}

impl Inputs {
    /// The version of the tool, the modules that call the plugin, and its folder. None where something cannot be told.
    pub(super) fn of(job: &Job<'_>, tool: &str, entry: &str) -> Option<Inputs> {
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

    /// Adds a plugin's folder, less what does not reach its component.
    ///
    /// # Errors
    /// When something in it cannot be read, or leads elsewhere.
    fn add_plugin(&mut self, folder: &Path) -> io::Result<()> {
        let aside =
            |name: &str| name.starts_with('.') || ASIDE.contains(&name) || name.ends_with(".md");
        self.add(folder, "plugin", &aside)
    }

    /// Adds the modules that call the plugin.
    ///
    /// # Errors
    /// As [`Inputs::add_plugin`].
    fn add_entry(&mut self, folder: &Path) -> io::Result<()> {
        self.add(folder, "entry", &|_| false)
    }

    /// Adds a folder of installed packages.
    ///
    /// # Errors
    /// As [`Inputs::add_plugin`].
    pub(super) fn add_packages(&mut self, folder: &Path) -> io::Result<()> {
        let of = |name: &str, tool: &str| {
            let rest = name.strip_prefix(tool);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let aside = |name: &str| name.starts_with('.') || TOOLS.iter().any(|tool| of(name, tool));
        self.add(folder, "packages", &aside)
    }

    /// Adds a folder, less what lies aside at its top, and what Python keeps of its own compiling.
    fn add(&mut self, folder: &Path, label: &str, aside: &dyn Fn(&str) -> bool) -> io::Result<()> {
        let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_unstable_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == "__pycache__" || aside(&name) {
                continue;
            }
            let label = format!("{label}/{name}");
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                self.add(&path, &label, &|_| false)?;
            } else {
                // Reading a link to a folder is an error: what it leads to may change without any sign here.
                let digest = digest(&fs::read(&path)?);
                self.text.push_str(&format!("{digest} {label}\n"));
            }
        }
        Ok(())
    }
}

/// The packages of a virtual environment, where there are any.
pub(super) fn packages(environment: &Path) -> Vec<PathBuf> {
    let Ok(versions) = fs::read_dir(environment.join("lib")) else {
        return Vec::new();
    };
    let folders = versions.filter_map(|version| Some(version.ok()?.path().join("site-packages")));
    let mut folders: Vec<PathBuf> = folders.filter(|folder| folder.is_dir()).collect();
    folders.sort_unstable();
    folders
}

/// The virtual environment whose packages a plugin in this folder may import: the one that is active, else its own.
pub(super) fn environment(active: Option<&OsStr>, folder: &Path) -> Option<PathBuf> {
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
    fn the_same_files_in_another_folder_are_the_same_inputs() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&one, &other] {
            write(dir.path().join("plugin.py"), "x = 1");
            write(dir.path().join("sdk/a.py"), "y = 2");
        }
        let before = key(one.path(), None);
        assert_eq!(before, key(other.path(), None));
        // What does not reach the component.
        for aside in [
            "tests/goldens.json",
            "build/j.wasm",
            "README.md",
            ".venv/x",
            "sdk/__pycache__/a.pyc",
        ] {
            write(other.path().join(aside), "z");
        }
        assert_eq!(before, key(other.path(), None));
        // What does.
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
    fn what_leads_elsewhere_is_no_input() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(other.path(), dir.path().join("lib")).unwrap();
        assert!(Inputs::new("tool").add_plugin(dir.path()).is_err());
    }

    #[test]
    fn keeps_the_last_ones_and_gives_them_back() {
        let dir = tempfile::tempdir().unwrap();
        let (built, kept) = (dir.path().join("built.wasm"), dir.path().join("kept"));
        let of = |tool: usize| Kept::of(&kept, &Inputs::new(&format!("tool {tool}")));
        for tool in 0..KEPT + 3 {
            fs::write(&built, format!("component {tool}")).unwrap();
            of(tool).put(&built);
        }
        assert_eq!(fs::read_dir(&kept).unwrap().count(), KEPT);
        fs::write(&built, "another").unwrap();
        assert!(!of(KEPT + 3).take(&built));
        assert_eq!(fs::read_to_string(&built).unwrap(), "another");
        assert!(of(KEPT + 2).take(&built));
        let last = fs::read_to_string(&built).unwrap();
        assert_eq!(last, format!("component {}", KEPT + 2));
    }

    #[test]
    fn the_active_environment_counts_before_the_folders_own() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(environment(None, dir.path()), None);
        let own = dir.path().join(".venv");
        fs::create_dir_all(own.join("lib/python3.14/site-packages")).unwrap();
        assert_eq!(
            environment(Some(OsStr::new("")), dir.path()),
            Some(own.clone())
        );
        assert_eq!(packages(&own), [own.join("lib/python3.14/site-packages")]);
        let active = environment(Some(OsStr::new("/active")), dir.path());
        assert_eq!(active, Some(PathBuf::from("/active")));
    }
}
