//! The error for a plugin that imports capabilities it has not been granted, with the command that grants them.
//!
//! The plugin host knows what is missing; the component's path and the grants file are known here. The printed command
//! can be pasted into a shell in the same directory. Where nothing names the HTTP origin, it contains a placeholder,
//! and the message says so.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clawhost_plugins::{Capability, HTTP_PLACEHOLDER, Manifest, PluginError};

use crate::config::{Config, ServerConfig};
use crate::plugin_file::PluginFiles;

/// Loads a component with its manifest; a missing grant becomes an error with the `grant` command. No file means an
/// embedded component, which has no manifest.
///
/// # Errors
/// Why the component was rejected, in one line.
pub(crate) fn load_with_manifest<T>(
    file: Option<&Path>,
    files: &PluginFiles,
    config: &Config,
    load: impl FnOnce(&Manifest) -> Result<T, PluginError>,
) -> Result<T> {
    let manifest = file
        .map(|file| files.manifest(file))
        .transpose()?
        .unwrap_or_default();
    load(&manifest).map_err(|error| match file {
        Some(file) => missing_grant_error(error, file, config),
        None => error.into(),
    })
}

/// The error of a benchmark, where a grant would not help.
pub(crate) fn benchmark_error(error: PluginError) -> anyhow::Error {
    let PluginError::NotGranted { name, missing, .. } = error else {
        return error.into();
    };
    anyhow!(
        "{name} imports {}, which a benchmark does not grant; `clawhost plugin top` shows what its calls cost in a running server",
        join_names(&missing)
    )
}

/// The error with the command that grants what is missing.
fn missing_grant_error(error: PluginError, file: &Path, config: &Config) -> anyhow::Error {
    let PluginError::NotGranted {
        name,
        missing,
        digest,
        arguments,
    } = error
    else {
        return error.into();
    };
    let has_placeholder = arguments
        .iter()
        .any(|argument| argument == HTTP_PLACEHOLDER);
    let how = if has_placeholder {
        "to grant it, replace HOST with the host it may reach and run"
    } else {
        "to grant it, run"
    };
    anyhow!(
        "{name} imports {}, which has not been granted to sha256 {digest}; {how}: {}",
        join_names(&missing),
        command(file, &arguments, config)
    )
}

fn join_names(capabilities: &[Capability]) -> String {
    let names: Vec<&str> = capabilities.iter().map(|one| one.name()).collect();
    names.join(", ")
}

/// The `clawhost plugin grant` command for this file and the grants file of this configuration.
fn command(file: &Path, arguments: &[String], config: &Config) -> String {
    // A file name that starts with a hyphen would be read as a flag.
    let file = if file.as_os_str().as_encoded_bytes().starts_with(b"-") {
        Path::new(".").join(file)
    } else {
        file.to_owned()
    };
    let mut words = vec![file.display().to_string()];
    words.extend(arguments.iter().cloned());
    words.extend(location_flags(config));
    let words: Vec<String> = words.iter().map(|word| shell_quote(word)).collect();
    format!("clawhost plugin grant {}", words.join(" "))
}

/// The flags with which `clawhost plugin grant` finds the same grants file.
fn location_flags(config: &Config) -> Vec<String> {
    let flag = |name: &str, path: &PathBuf| vec![name.to_owned(), path.display().to_string()];
    match &config.plugins.grants_file {
        Some(grants) => flag("--grants", grants),
        None if config.server.data_dir == ServerConfig::default().data_dir => Vec::new(),
        None => flag("--data", &config.server.data_dir),
    }
}

/// Quotes a word for a POSIX shell.
pub(crate) fn shell_quote(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(file: &str, arguments: &[&str], config: &Config) -> String {
        let error = PluginError::NotGranted {
            name: "j".to_owned(),
            missing: vec![Capability::State, Capability::Http],
            digest: "abc".to_owned(),
            arguments: arguments.iter().map(|one| (*one).to_owned()).collect(),
        };
        missing_grant_error(error, Path::new(file), config).to_string()
    }

    #[test]
    fn the_command_names_file_capabilities_and_grants_file() {
        let mut config = Config::default();
        let message = refusal("j.wasm", &["state", HTTP_PLACEHOLDER], &config);
        assert_eq!(
            message,
            "j imports state, http, which has not been granted to sha256 abc; to grant it, replace HOST with the \
             host it may reach and run: clawhost plugin grant j.wasm state http=https://HOST"
        );
        config.server.data_dir = "/srv/claw data".into();
        let exact = refusal("-j.wasm", &["http=http://[::1]:80"], &config);
        assert!(
            exact.ends_with(
                "; to grant it, run: clawhost plugin grant ./-j.wasm 'http=http://[::1]:80' --data '/srv/claw data'"
            ),
            "{exact}"
        );
        config.plugins.grants_file = Some("it's.toml".into());
        let apart = refusal("a/j.wasm", &["state"], &config);
        assert!(
            apart.ends_with(r"clawhost plugin grant a/j.wasm state --grants 'it'\''s.toml'"),
            "{apart}"
        );
    }

    #[test]
    fn other_errors_are_returned_unchanged() {
        let error =
            missing_grant_error(PluginError::CoreModule, Path::new("j"), &Config::default());
        assert_eq!(error.to_string(), PluginError::CoreModule.to_string());
    }
}
