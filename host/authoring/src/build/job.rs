//! One build: runs the language's tools in the plugin's folder.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::component;
use crate::embedded;
use crate::error::AuthoringError;
use crate::manifest::Manifest;
use crate::scaffold::write;
use crate::tools::Tool;

/// Directory of the entry modules, which call the author's, in the plugin's directory.
const ENTRY: &str = "build/entry";
/// Maximum bytes of a tool's output in an error.
const OUTPUT_BYTES: usize = 16 << 10;

/// What is built, and with what.
pub(super) struct Job<'a> {
    pub(super) dir: &'a Path,
    pub(super) manifest: &'a Manifest,
    pub(super) tools: &'a [Tool],
    pub(super) cache: Option<&'a Path>,
}

impl Job<'_> {
    /// Runs the tool of this name in the plugin's folder.
    pub(super) fn run<A: Into<OsString>>(
        &self,
        tool: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<(), AuthoringError> {
        self.run_with(tool, arguments, None)
    }

    /// As [`Job::run`], with a variable of the environment.
    pub(super) fn run_with<A: Into<OsString>>(
        &self,
        tool: &str,
        arguments: impl IntoIterator<Item = A>,
        variable: Option<(&str, &Path)>,
    ) -> Result<(), AuthoringError> {
        let found = self.tools.iter().find(|found| found.name == tool);
        let mut line = found.expect("the language needs this tool").command.clone();
        line.extend(arguments.into_iter().map(Into::into));
        let shown = || {
            let words: Vec<_> = line.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        let mut command = Command::new(&line[0]);
        command
            .args(&line[1..])
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
        let start = words.ceil_char_boundary(words.len().saturating_sub(OUTPUT_BYTES));
        Err(AuthoringError::Failed {
            command: shown(),
            output: words.split_off(start).trim_end().to_owned(),
        })
    }

    /// Writes embedded files, with one string replaced, into an empty directory of the build, and returns its path.
    ///
    /// They come from this program and not from the SDK in the plugin's directory, so that plugins created with an older
    /// version get them too.
    pub(super) fn write_entry(
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
            let text = embedded::file(&format!("{from}/{file}"));
            write(&folder.join(file), &text.replace(old, new))?;
        }
        Ok(ENTRY)
    }

    /// Turns the module that a compiler left into the plugin's component.
    pub(super) fn finish(&self, module: &Path) -> Result<(), AuthoringError> {
        let component = component::from_module(&read(module)?)?;
        let path = self.dir.join(&self.manifest.component);
        fs::write(&path, component).map_err(|source| AuthoringError::Write { path, source })
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, AuthoringError> {
    fs::read(path).map_err(|source| AuthoringError::Read {
        path: path.to_owned(),
        source,
    })
}
