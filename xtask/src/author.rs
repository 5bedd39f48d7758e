//! First-party plugins that are not Rust, built as any author builds one: by `clawhost plugin build`.
//!
//! The plugin's folder is copied to a place of its own with the contract and the SDK beside it, as
//! `clawhost plugin new` lays them out, so that the repository holds each of them once. The C
//! compiler is zig: one release, the same bytes on every machine.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guest::{output, run};
use crate::sources;

/// Environment variable with a built `clawhost`. Without it one is built, which compiles the dependencies again where
/// the last build was for tests: those switch on more of their features.
const PROGRAM: &str = "CLAWHOST_PROGRAM";

/// The release of zig on the PATH. The error says how to get one.
pub fn zig() -> Result<String, String> {
    let version = output("zig", &["version"]).map_err(|_| {
        "plugins in C are built with zig, which is not on the PATH; `.ci/author-tools` installs it and prints the \
         folder to put there"
            .to_owned()
    })?;
    Ok(version.trim().to_owned())
}

/// Builds the plugin in `plugins/NAME` and returns the component.
pub fn build(root: &Path, name: &str) -> Result<Vec<u8>, String> {
    let place = root.join("target/guest-c").join(name);
    let show = |e: std::io::Error| format!("{}: {e}", place.display());
    if place.exists() {
        fs::remove_dir_all(&place).map_err(show)?;
    }
    copy(&root.join("plugins").join(name), &place)?;
    copy(&root.join("wit"), &place.join("wit/deps/clawhost-plugin"))?;
    copy(&root.join("sdk/c/include"), &place.join("sdk/c/include"))?;
    let mut command = match std::env::var_os(PROGRAM) {
        Some(program) => Command::new(program),
        None => {
            let mut cargo =
                Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.args(["run", "--quiet", "--locked", "--bin", "clawhost", "--"]);
            cargo
        }
    };
    command
        .current_dir(root)
        // The other compiler of C plugins gives other bytes.
        .env_remove("WASI_SDK_PATH")
        .args(["plugin", "build"].map(OsString::from))
        .arg(&place);
    run(command)?;
    sources::read(&place.join("build").join(format!("{name}.wasm")))
}

/// Copies a folder, less what a build left there.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(|e| format!("{}: {e}", to.display()))?;
    let entries = fs::read_dir(from).map_err(|e| format!("{}: {e}", from.display()))?;
    for entry in entries {
        let path: PathBuf = entry
            .map_err(|e| format!("{}: {e}", from.display()))?
            .path();
        let Some(name) = path.file_name().filter(|name| *name != "build") else {
            continue;
        };
        if path.is_dir() {
            copy(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name)).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    Ok(())
}
