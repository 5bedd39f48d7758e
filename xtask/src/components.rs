//! Builds the first-party components and keeps the checked-in artefacts honest.

use std::fs;
use std::path::{Path, PathBuf};

use crate::guest::{TARGET, Toolchain};
use crate::manifest::{Entry, Manifest};
use crate::sha256;
use crate::sources::{self, COMPONENTS, Component};

/// Builds every component into the repository.
pub fn build(root: &Path) -> Result<(), String> {
    let wanted = std::env::var("CLAWHOST_GUEST_STD").ok();
    let toolchain = Toolchain::find(wanted.as_deref())?;
    let built = build_all(root, &toolchain)?;
    let dir = artefacts(root);
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut manifest = Manifest {
        rustc: toolchain.rustc,
        std: toolchain.std,
        entries: Vec::new(),
    };
    for (component, bytes) in built {
        let path = dir.join(format!("{}.wasm", component.name));
        fs::write(&path, &bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        let entry = entry(root, component, &bytes)?;
        println!(
            "{}  {} bytes  {}",
            component.name,
            bytes.len(),
            entry.sha256
        );
        manifest.entries.push(entry);
    }
    let path = dir.join("components.toml");
    fs::write(&path, manifest.to_toml()).map_err(|e| format!("{}: {e}", path.display()))
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
    let toolchain = match Toolchain::find(Some(&manifest.std)) {
        Ok(toolchain) => toolchain,
        Err(reason) => return not_checked(&reason),
    };
    if toolchain.rustc != manifest.rustc || toolchain.std != manifest.std {
        return not_checked(&format!(
            "the artefacts were built with {} and std from {}; here are {} and std from {}",
            manifest.rustc, manifest.std, toolchain.rustc, toolchain.std
        ));
    }
    for (component, bytes) in build_all(root, &toolchain)? {
        let name = component.name;
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
    Ok(())
}

/// The sources fit the artefacts, but the bytes could not be compared. That must never pass
/// unseen, and never pass in CI.
fn not_checked(reason: &str) -> Result<(), String> {
    let message = format!(
        "THE COMPONENTS WERE NOT REBUILT. Their sources are unchanged since they were built, but \
         the bytes could not be compared:\n{reason}"
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

fn build_all(
    root: &Path,
    toolchain: &Toolchain,
) -> Result<Vec<(&'static Component, Vec<u8>)>, String> {
    // cargo does not notice another standard library, so each has a folder of its own.
    let id = sha256::hex(format!("{}\n{}", toolchain.rustc, toolchain.std).as_bytes());
    let target_dir = root.join(format!("target/guest-{}", id.get(..8).unwrap_or("")));
    let mut built = Vec::new();
    for component in COMPONENTS {
        let mut args = vec!["-p", component.package];
        if component.is_example {
            args.extend(["--example", component.name]);
        } else {
            args.push("--lib");
        }
        toolchain.cargo_build(root, &target_dir, &args)?;
        let out = target_dir.join(TARGET).join("guest");
        let file = format!("{}.wasm", component.name.replace('-', "_"));
        let path = if component.is_example {
            out.join("examples").join(file)
        } else {
            out.join(file)
        };
        built.push((component, sources::read(&path)?));
    }
    Ok(built)
}

fn artefacts(root: &Path) -> PathBuf {
    root.join("plugins/artifacts")
}
