//! The two steps between a compiler and a component, done here so that authors need no tool for them.

use std::fs;
use std::path::Path;

use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::Resolve;
use wit_component::ComponentEncoder;

use crate::error::AuthoringError;

/// The world of a plugin, in its `wit/world.wit`.
const WORLD: &str = "plugin";
/// The first part of the names that the C bindings declare, and of their files.
const PREFIX: &str = "clawhost";
const WASI: &[u8] = b"wasi_snapshot_preview1";

/// Writes the C bindings of the world in a plugin's folder `wit`.
pub(crate) fn c_bindings(wit: &Path, out: &Path) -> Result<(), AuthoringError> {
    let bad = |reason: String| AuthoringError::Wit {
        path: wit.to_owned(),
        reason,
    };
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(wit).map_err(|e| bad(format!("{e:#}")))?;
    let world = resolve
        .select_world(&[package], Some(WORLD))
        .map_err(|e| bad(format!("{e:#}")))?;
    let mut generator = wit_bindgen_c::Opts {
        rename_world: Some(PREFIX.to_owned()),
        ..wit_bindgen_c::Opts::default()
    }
    .build();
    let mut files = Files::default();
    generator
        .generate(&mut resolve, world, &mut files)
        .map_err(|e| bad(format!("{e:#}")))?;
    fs::create_dir_all(out).map_err(|source| AuthoringError::Write {
        path: out.to_owned(),
        source,
    })?;
    for (name, text) in files.iter() {
        let path = out.join(name);
        fs::write(&path, text).map_err(|source| AuthoringError::Write { path, source })?;
    }
    Ok(())
}

/// Makes a component of a module that carries the type of its world.
pub(crate) fn from_module(module: &[u8]) -> Result<Vec<u8>, AuthoringError> {
    let functions = wasi_functions(module);
    if !functions.is_empty() {
        return Err(AuthoringError::UsesWasi {
            functions: functions.join(", "),
        });
    }
    let bad = |e: &dyn std::fmt::Display| AuthoringError::NotAComponent {
        reason: format!("{e:#}"),
    };
    ComponentEncoder::default()
        .validate(true)
        .module(module)
        .map_err(|e| bad(&e))?
        .encode()
        .map_err(|e| bad(&e))
}

/// Functions that a module imports from WASI. In an import, the name of the function stands behind
/// that of its module, after one byte with its length.
fn wasi_functions(module: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for start in 0..module.len() {
        let Some(rest) = module.get(start..).and_then(|rest| rest.strip_prefix(WASI)) else {
            continue;
        };
        let name = rest
            .split_first()
            .and_then(|(length, rest)| rest.get(..usize::from(*length)))
            .and_then(|name| std::str::from_utf8(name).ok())
            .filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            found.push(name.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_is_used_of_wasi() {
        let mut module = b"\0asm\x01\0\0\0\x16wasi_snapshot_preview1\x08fd_write\0\x01".to_vec();
        assert_eq!(wasi_functions(&module), ["fd_write"]);
        let refused = from_module(&module).unwrap_err().to_string();
        assert!(
            refused.contains("fd_write") && refused.contains("clawhost_log"),
            "{refused}"
        );
        module.truncate(20);
        assert!(wasi_functions(&module).is_empty());
    }

    #[test]
    fn refuses_what_is_no_module() {
        for module in [&b""[..], b"\0asm", b"int main(void) {}"] {
            assert!(from_module(module).is_err());
        }
    }
}
