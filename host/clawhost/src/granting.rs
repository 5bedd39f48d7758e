//! The refusal of a component that wants more than it was granted, with the command that grants it.
//!
//! The plugin host knows what is wanted; where the component lies and where grants are written down is known here.
//! What is printed can be pasted into a shell in the same folder. Only where nothing says which origin is meant does
//! it hold a place to fill in, and the sentence says so.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clawhost_plugins::{Capability, HTTP_PLACE, Manifest, PluginError};

use crate::config::{Config, ServerConfig};

/// Loads a component with what its manifest says, and tells a missing grant with the command. No file means one of
/// those in this program, which have no manifest.
///
/// # Errors
/// Why it is refused, in one sentence.
pub(crate) fn loaded<T>(
    file: Option<&Path>,
    config: &Config,
    load: impl FnOnce(&Manifest) -> Result<T, PluginError>,
) -> Result<T> {
    let manifest = file.map(Manifest::of).transpose()?.unwrap_or_default();
    load(&manifest).map_err(|error| match file {
        Some(file) => told(error, file, config),
        None => error.into(),
    })
}

/// The refusal of a measurement, in which no grant would help.
pub(crate) fn withheld(error: PluginError) -> anyhow::Error {
    let PluginError::NotGranted { name, missing, .. } = error else {
        return error.into();
    };
    anyhow!(
        "{name} imports {}, and a measurement grants nothing: what its calls cost while a server judges is shown by `clawhost plugin top`",
        listed(&missing)
    )
}

/// The refusal with the command that would lift it.
fn told(error: PluginError, file: &Path, config: &Config) -> anyhow::Error {
    let PluginError::NotGranted {
        name,
        missing,
        digest,
        arguments,
    } = error
    else {
        return error.into();
    };
    let open = arguments.iter().any(|argument| argument == HTTP_PLACE);
    let how = if open {
        "this grants it, with the host that it may reach in place of HOST"
    } else {
        "this grants it"
    };
    anyhow!(
        "{name} imports {}, which is not granted to sha256 {digest}; {how}: {}",
        listed(&missing),
        command(file, &arguments, config)
    )
}

fn listed(capabilities: &[Capability]) -> String {
    let names: Vec<&str> = capabilities.iter().map(|one| one.name()).collect();
    names.join(", ")
}

/// `clawhost plugin grant` for this file, into the grants that this configuration reads.
fn command(file: &Path, arguments: &[String], config: &Config) -> String {
    // A name that begins with a hyphen would be read as a flag.
    let file = if file.as_os_str().as_encoded_bytes().starts_with(b"-") {
        Path::new(".").join(file)
    } else {
        file.to_owned()
    };
    let mut words = vec![file.display().to_string()];
    words.extend(arguments.iter().cloned());
    words.extend(place(config));
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    format!("clawhost plugin grant {}", words.join(" "))
}

/// The flags that lead `clawhost plugin grant` to the same grants, however this configuration was led to them.
fn place(config: &Config) -> Vec<String> {
    let flag = |name: &str, path: &PathBuf| vec![name.to_owned(), path.display().to_string()];
    match &config.grants {
        Some(grants) => flag("--grants", grants),
        None if config.server.data == ServerConfig::default().data => Vec::new(),
        None => flag("--data", &config.server.data),
    }
}

/// A word as a POSIX shell reads it.
fn quoted(word: &str) -> String {
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
        told(error, Path::new(file), config).to_string()
    }

    #[test]
    fn the_command_names_file_grants_and_place() {
        let mut config = Config::default();
        let open = refusal("j.wasm", &["state", HTTP_PLACE], &config);
        assert_eq!(
            open,
            "j imports state, http, which is not granted to sha256 abc; this grants it, with the host that it may \
             reach in place of HOST: clawhost plugin grant j.wasm state http=https://HOST"
        );
        config.server.data = "/srv/claw data".into();
        let exact = refusal("-j.wasm", &["http=http://[::1]:80"], &config);
        assert!(
            exact.ends_with(
                "; this grants it: clawhost plugin grant ./-j.wasm 'http=http://[::1]:80' --data '/srv/claw data'"
            ),
            "{exact}"
        );
        config.grants = Some("it's.toml".into());
        let apart = refusal("a/j.wasm", &["state"], &config);
        assert!(
            apart.ends_with(r"clawhost plugin grant a/j.wasm state --grants 'it'\''s.toml'"),
            "{apart}"
        );
    }

    #[test]
    fn other_refusals_are_told_as_they_are() {
        let told = told(PluginError::CoreModule, Path::new("j"), &Config::default());
        assert_eq!(told.to_string(), PluginError::CoreModule.to_string());
    }
}
