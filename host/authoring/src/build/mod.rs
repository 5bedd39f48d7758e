//! Builds a plugin: one command for each language, once its tools are known to be there.

mod c;
mod cache;
mod job;
mod js;
mod python;
mod rust;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use self::job::{Job, read};
use crate::error::AuthoringError;
use crate::language::Language;
use crate::manifest::Manifest;
use crate::tools::{self, Tool};

/// A component that was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BuildOutput {
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
/// [`AuthoringError::Failed`] with the output of a tool, and the errors of making a component.
pub fn build(dir: &Path, cache: Option<&Path>) -> Result<BuildOutput, AuthoringError> {
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
    Ok(BuildOutput {
        component,
        bytes,
        unchanged,
    })
}
