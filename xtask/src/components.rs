//! Builds the first-party components and verifies the checked-in artifacts.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::author;
use crate::guest::{TARGET, Toolchain};
use crate::manifest::{Entry, Manifest};
use crate::sha256;
use crate::sources::{self, BuildMethod, COMPONENTS, Component};

/// Environment variable with the origin of the guests' standard library to use; any by default.
pub const STD_ORIGIN: &str = "CLAWHOST_GUEST_STD";

/// Builds every component into the repository. Without zig, C components stay as they are if their sources have not
/// changed.
pub fn build(root: &Path) -> Result<(), String> {
    let dir = artifacts_dir(root);
    let recorded = match fs::read_to_string(dir.join("components.toml")) {
        Ok(text) => Manifest::from_toml(&text),
        Err(error) if error.kind() == ErrorKind::NotFound => Manifest::default(),
        Err(error) => return Err(format!("components.toml: {error}")),
    };
    let toolchain = Toolchain::find(std::env::var(STD_ORIGIN).ok().as_deref())?;
    let zig = author::zig_version();
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut manifest = Manifest {
        rustc: toolchain.rustc.clone(),
        std: toolchain.std.clone(),
        zig: zig.clone().unwrap_or(recorded.zig.clone()),
        entries: Vec::new(),
    };
    for component in COMPONENTS {
        let name = component.name;
        if let (BuildMethod::C, Err(reason)) = (component.method, &zig) {
            manifest
                .entries
                .push(unchanged_entry(root, component, &recorded, reason)?);
            continue;
        }
        let bytes = build_one(root, &toolchain, component)?;
        let path = dir.join(format!("{name}.wasm"));
        fs::write(&path, &bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        let entry = entry(root, component, &bytes)?;
        println!("{name}  {} bytes  {}", bytes.len(), entry.sha256);
        manifest.entries.push(entry);
    }
    let path = dir.join("components.toml");
    fs::write(&path, manifest.to_toml()).map_err(|e| format!("{}: {e}", path.display()))
}

/// The recorded entry of a component that cannot be built here but whose sources have not changed.
fn unchanged_entry(
    root: &Path,
    component: &Component,
    recorded: &Manifest,
    reason: &str,
) -> Result<Entry, String> {
    let name = component.name;
    let sources = sources::digest(root, component)?;
    let entry = recorded
        .entry(name)
        .filter(|entry| entry.sources == sources);
    let entry = entry.ok_or_else(|| format!("{name} must be rebuilt, but: {reason}"))?;
    println!("{name}  unchanged; {reason}");
    Ok(entry.clone())
}

/// Fails when a checked-in artifact differs from the one built from its sources.
pub fn check(root: &Path) -> Result<(), String> {
    let dir = artifacts_dir(root);
    let text = fs::read_to_string(dir.join("components.toml"))
        .map_err(|e| format!("components.toml: {e}; run `cargo xtask components`"))?;
    let manifest = Manifest::from_toml(&text);
    for component in COMPONENTS {
        let name = component.name;
        let Some(recorded) = manifest.entry(name) else {
            return Err(format!(
                "{name} is not in components.toml; run `cargo xtask components`"
            ));
        };
        let bytes = sources::read(&dir.join(format!("{name}.wasm")))?;
        let actual = entry(root, component, &bytes)?;
        if actual.sha256 != recorded.sha256 {
            return Err(format!(
                "{name}.wasm has sha256 {}, but components.toml records {}",
                actual.sha256, recorded.sha256
            ));
        }
        if actual.sources != recorded.sources {
            return Err(format!(
                "{name}.wasm is out of date: its sources changed since it was built; run `cargo xtask components`"
            ));
        }
    }
    let rust = Toolchain::find(Some(&manifest.std)).and_then(|toolchain| {
        let same = toolchain.rustc == manifest.rustc && toolchain.std == manifest.std;
        let differs = || {
            format!(
                "the artifacts were built with {} and std from {}, but this machine has {} and std from {}",
                manifest.rustc, manifest.std, toolchain.rustc, toolchain.std
            )
        };
        if same { Ok(toolchain) } else { Err(differs()) }
    });
    let zig = author::zig_version().and_then(|zig| {
        if zig == manifest.zig {
            return Ok(());
        }
        Err(format!(
            "the C artifacts were built with zig {}, but this machine has zig {zig}",
            manifest.zig
        ))
    });
    let mut skipped = Vec::new();
    for component in COMPONENTS {
        let name = component.name;
        let bytes = match (component.method, &rust, &zig) {
            (BuildMethod::C, _, Err(reason))
            | (BuildMethod::Package | BuildMethod::Example, Err(reason), _) => {
                skipped.push((name, reason.clone()));
                continue;
            }
            (BuildMethod::C, _, Ok(())) => author::build(root, name)?,
            (_, Ok(toolchain), _) => build_one(root, toolchain, component)?,
        };
        let recorded = manifest.entry(name).map(|entry| entry.sha256.as_str());
        let actual = sha256::hex(&bytes);
        if recorded != Some(actual.as_str()) {
            return Err(format!(
                "{name}.wasm differs from its sources: built sha256 {actual}, checked in {}",
                recorded.unwrap_or("none")
            ));
        }
        println!("{name}  {actual}  ok");
    }
    report_skipped(&skipped)
}

/// Reports components whose sources match but which could not be rebuilt and compared. This prints a warning, and fails
/// in CI.
fn report_skipped(skipped: &[(&str, String)]) -> Result<(), String> {
    let Some((_, reason)) = skipped.first() else {
        return Ok(());
    };
    let mut reasons = reason.clone();
    for (_, other) in skipped {
        if !reasons.contains(other.as_str()) {
            reasons.push('\n');
            reasons.push_str(other);
        }
    }
    let names: Vec<&str> = skipped.iter().map(|(name, _)| *name).collect();
    let message = format!(
        "{} COMPONENTS WERE NOT REBUILT: {}. Their sources have not changed since they were built, but the bytes could \
         not be compared:\n{reasons}",
        names.len(),
        names.join(", ")
    );
    if std::env::var("CI").is_ok_and(|ci| ci == "true") {
        return Err(message);
    }
    eprintln!("xtask: {message}");
    Ok(())
}

fn entry(root: &Path, component: &Component, bytes: &[u8]) -> Result<Entry, String> {
    Ok(Entry {
        name: component.name.to_owned(),
        sha256: sha256::hex(bytes),
        sources: sources::digest(root, component)?,
    })
}

fn build_one(root: &Path, toolchain: &Toolchain, component: &Component) -> Result<Vec<u8>, String> {
    // cargo does not detect a changed standard library, so each one gets its own target directory.
    let id = sha256::hex(format!("{}\n{}", toolchain.rustc, toolchain.std).as_bytes());
    let target_dir = root.join(format!("target/guest-{}", &id[..8]));
    let out = target_dir.join(TARGET).join("guest");
    let name = component.name;
    let file = format!("{}.wasm", name.replace('-', "_"));
    let (args, path) = match component.method {
        BuildMethod::C => return author::build(root, name),
        BuildMethod::Package => (["-p", name, "--lib"].to_vec(), out.join(file)),
        BuildMethod::Example => (
            ["-p", "clawhost-sdk", "--example", name].to_vec(),
            out.join("examples").join(file),
        ),
    };
    toolchain.cargo_build(root, &target_dir, &args)?;
    sources::read(&path)
}

fn artifacts_dir(root: &Path) -> PathBuf {
    root.join("plugins/artifacts")
}
