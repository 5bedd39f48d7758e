//! Builds a plugin: one command for each language, once its tools are known to be there.

mod c;
mod cache;
mod js;
mod python;
mod rust;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use crate::component;
use crate::embedded;
use crate::error::AuthoringError;
use crate::language::Language;
use crate::manifest::Manifest;
use crate::scaffold::write;
use crate::tools::{self, Tool};

/// Directory of the entry modules, which call the author's, in the plugin's directory.
const ENTRY: &str = "build/entry";
/// Most bytes of a tool's words that an error repeats.
const WORDS: usize = 16 << 10;

/// A component that was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Built {
    /// Where it is.
    pub component: PathBuf,
    /// Its size.
    pub bytes: usize,
    /// It came from the cache: it was built from the same files with the same tool before.
    pub unchanged: bool,
}

/// Builds the plugin in `dir` and leaves the component where its `plugin.toml` says.
///
/// Runs the language's compiler, which may download what the plugin itself depends on. Takes
/// seconds to minutes: call it off the threads that serve.
///
/// Builds in Rust and C are reproducible. The tools of Python and JavaScript are not; their components are cached in the
/// directory `cache`, keyed by a digest of the inputs. None disables the cache.
///
/// # Errors
/// [`AuthoringError::NoManifest`], [`AuthoringError::MissingTools`] before anything is run,
/// [`AuthoringError::Failed`] with the words of a tool, and the errors of making a component.
pub fn build(dir: &Path, cache: Option<&Path>) -> Result<Built, AuthoringError> {
    let manifest = Manifest::read(dir)?;
    let tools = tools::tools(manifest.language, dir);
    let missing: Vec<Tool> = tools
        .iter()
        .filter(|tool| !tool.is_here())
        .cloned()
        .collect();
    if !missing.is_empty() {
        return Err(AuthoringError::MissingTools {
            language: manifest.language,
            missing,
        });
    }
    let component = dir.join(&manifest.component);
    if let Some(folder) = component.parent() {
        fs::create_dir_all(folder).map_err(|source| AuthoringError::Write {
            path: folder.to_owned(),
            source,
        })?;
    }
    let job = Job {
        dir,
        manifest: &manifest,
        tools: &tools,
        cache,
    };
    let mut unchanged = false;
    match manifest.language {
        Language::Rust => rust::build(&job)?,
        Language::Python => unchanged = python::build(&job)?,
        Language::Js => unchanged = js::build(&job)?,
        Language::C => c::build(&job)?,
    }
    let bytes = read(&component)?.len();
    Ok(Built {
        component,
        bytes,
        unchanged,
    })
}

/// What is built, and with what.
struct Job<'a> {
    dir: &'a Path,
    manifest: &'a Manifest,
    tools: &'a [Tool],
    cache: Option<&'a Path>,
}

impl Job<'_> {
    /// Runs the tool of this name in the plugin's folder.
    fn run<A: Into<OsString>>(
        &self,
        tool: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<(), AuthoringError> {
        self.run_with(tool, arguments, None)
    }

    /// As [`Job::run`], with a variable of the environment.
    fn run_with<A: Into<OsString>>(
        &self,
        tool: &str,
        arguments: impl IntoIterator<Item = A>,
        variable: Option<(&str, &Path)>,
    ) -> Result<(), AuthoringError> {
        let line: Vec<OsString> = self
            .tools
            .iter()
            .filter(|found| found.name == tool)
            .flat_map(|found| found.command.clone())
            .chain(arguments.into_iter().map(Into::into))
            .collect();
        let shown = || {
            let words: Vec<_> = line.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        let (program, arguments) = line.split_first().unzip();
        let mut command = Command::new(program.cloned().unwrap_or_default());
        command
            .args(arguments.unwrap_or_default())
            .current_dir(self.dir)
            // A build must not depend on what the author's shell builds otherwise.
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("CARGO_BUILD_TARGET")
            .envs(variable);
        let output = command.output().map_err(|source| AuthoringError::Start {
            command: shown(),
            source,
        })?;
        if output.status.success() {
            return Ok(());
        }
        let mut words = String::from_utf8_lossy(&output.stdout).into_owned();
        words.push_str(&String::from_utf8_lossy(&output.stderr));
        let start = words.ceil_char_boundary(words.len().saturating_sub(WORDS));
        Err(AuthoringError::Failed {
            command: shown(),
            output: words.split_off(start).trim_end().to_owned(),
        })
    }

    /// Writes embedded files, with one string replaced, into an empty directory of the build, and returns its path.
    ///
    /// They come from this program and not from the SDK in the plugin's directory, so that plugins created with an older
    /// version get them too.
    fn write_entry(
        &self,
        from: &str,
        files: &[&str],
        (old, new): (&str, &str),
    ) -> Result<&'static str, AuthoringError> {
        let folder = self.dir.join(ENTRY);
        match fs::remove_dir_all(&folder) {
            Ok(()) => {}
            Err(none) if none.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(AuthoringError::Write {
                    path: folder,
                    source,
                });
            }
        }
        for file in files {
            let text = embedded::file(&format!("{from}/{file}")).unwrap_or_default();
            write(&folder.join(file), &text.replace(old, new))?;
        }
        Ok(ENTRY)
    }

    /// Turns the module that a compiler left into the plugin's component.
    fn finish(&self, module: &Path) -> Result<(), AuthoringError> {
        let component = component::from_module(&read(module)?)?;
        let path = self.dir.join(&self.manifest.component);
        fs::write(&path, component).map_err(|source| AuthoringError::Write { path, source })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, AuthoringError> {
    fs::read(path).map_err(|source| AuthoringError::Read {
        path: path.to_owned(),
        source,
    })
}
