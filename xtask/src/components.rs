//! Builds the first-party components and keeps the checked-in artefacts honest.

use std::fs;
use std::path::{Path, PathBuf};

use crate::author;
use crate::guest::{TARGET, Toolchain};
use crate::manifest::{Entry, Manifest};
use crate::sha256;
use crate::sources::{self, COMPONENTS, Component, Made};

/// Names the origin of the guests' standard library that is wanted; any by default.
pub const WANTED_STD: &str = "CLAWHOST_GUEST_STD";

/// Builds every component into the repository. Those in C are kept as they are where there is no zig
/// and their sources are what they were made from.
pub fn build(root: &Path) -> Result<(), String> {
    let recorded = fs::read_to_string(artefacts(root).join("components.toml"));
    let recorded = Manifest::from_toml(&recorded.unwrap_or_default());
    let toolchain = Toolchain::find(std::env::var(WANTED_STD).ok().as_deref())?;
    let zig = author::zig();
    let dir = artefacts(root);
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut manifest = Manifest {
        rustc: toolchain.rustc.clone(),
        std: toolchain.std.clone(),
        zig: zig.clone().unwrap_or(recorded.zig.clone()),
        entries: Vec::new(),
    };
    for component in COMPONENTS {
        let name = component.name;
        if let (Made::InC, Err(reason)) = (component.made, &zig) {
            manifest
                .entries
                .push(kept(root, component, &recorded, reason)?);
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

/// The entry of a component that cannot be built here and need not be.
fn kept(
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
    let entry = entry.ok_or_else(|| format!("{name} has to be built again: {reason}"))?;
    println!("{name}  kept as it is; {reason}");
    Ok(entry.clone())
}

/// Fails when a checked-in artefact is not what the sources give.
pub fn check(root: &Path) -> Result<(), String> {
    let dir = artefacts(root);
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
                "{name}.wasm has sha256 {}, components.toml says {}",
                actual.sha256, recorded.sha256
            ));
        }
        if actual.sources != recorded.sources {
            return Err(format!(
                "{name}.wasm is out of date: its sources have changed since it was built; run `cargo xtask components`"
            ));
        }
    }
    let rust = Toolchain::find(Some(&manifest.std)).and_then(|toolchain| {
        let same = toolchain.rustc == manifest.rustc && toolchain.std == manifest.std;
        let differs = || {
            format!(
                "the artefacts were built with {} and std from {}; here are {} and std from {}",
                manifest.rustc, manifest.std, toolchain.rustc, toolchain.std
            )
        };
        if same { Ok(toolchain) } else { Err(differs()) }
    });
    let zig = author::zig().and_then(|zig| {
        if zig == manifest.zig {
            return Ok(());
        }
        Err(format!(
            "the artefacts in C were built with zig {}; here is zig {zig}",
            manifest.zig
        ))
    });
    let mut left_out = Vec::new();
    for component in COMPONENTS {
        let name = component.name;
        let bytes = match (component.made, &rust, &zig) {
            (Made::InC, _, Err(reason)) | (Made::Package | Made::Example, Err(reason), _) => {
                left_out.push((name, reason.clone()));
                continue;
            }
            (Made::InC, _, Ok(())) => author::build(root, name)?,
            (_, Ok(toolchain), _) => build_one(root, toolchain, component)?,
        };
        let recorded = manifest.entry(name).map(|entry| entry.sha256.as_str());
        let actual = sha256::hex(&bytes);
        if recorded != Some(actual.as_str()) {
            return Err(format!(
                "{name}.wasm is not what its sources give: sha256 {actual} here, {} checked in",
                recorded.unwrap_or("none")
            ));
        }
        println!("{name}  {actual}  as checked in");
    }
    not_checked(&left_out)
}

/// The sources fit the artefacts, but the bytes could not be compared. That must never pass
/// unseen, and never pass in CI.
fn not_checked(left_out: &[(&str, String)]) -> Result<(), String> {
    let Some((_, reason)) = left_out.first() else {
        return Ok(());
    };
    let mut reasons = reason.clone();
    for (_, other) in left_out {
        if !reasons.contains(other.as_str()) {
            reasons.push('\n');
            reasons.push_str(other);
        }
    }
    let names: Vec<&str> = left_out.iter().map(|(name, _)| *name).collect();
    let message = format!(
        "{} COMPONENTS WERE NOT REBUILT: {}. Their sources are unchanged since they were built, but \
         the bytes could not be compared:\n{reasons}",
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
    // cargo does not notice another standard library, so each has a folder of its own.
    let id = sha256::hex(format!("{}\n{}", toolchain.rustc, toolchain.std).as_bytes());
    let target_dir = root.join(format!("target/guest-{}", id.get(..8).unwrap_or("")));
    let out = target_dir.join(TARGET).join("guest");
    let name = component.name;
    let file = format!("{}.wasm", name.replace('-', "_"));
    let (args, path) = match component.made {
        Made::InC => return author::build(root, name),
        Made::Package => (["-p", name, "--lib"].to_vec(), out.join(file)),
        Made::Example => (
            ["-p", "clawhost-sdk", "--example", name].to_vec(),
            out.join("examples").join(file),
        ),
    };
    toolchain.cargo_build(root, &target_dir, &args)?;
    sources::read(&path)
}

fn artefacts(root: &Path) -> PathBuf {
    root.join("plugins/artifacts")
}
