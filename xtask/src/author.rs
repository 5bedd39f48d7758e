//! Builds first-party plugins that are not written in Rust with `clawhost plugin build`, as a plugin author does.
//!
//! The plugin's directory is copied together with the WIT package and the SDK, in the layout of `clawhost plugin new`,
//! so that the repository contains each of them only once. The C compiler is zig: the same release gives the same bytes
//! on every machine.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guest::{output, run};
use crate::sources;

/// Environment variable with the path of a built `clawhost`. Without it, `cargo run` builds one, which may compile the
/// dependencies again: test builds enable more of their features.
const PROGRAM: &str = "CLAWHOST_PROGRAM";

/// The version of zig on the PATH. The error says how to install it.
pub fn zig_version() -> Result<String, String> {
    let version = output("zig", &["version"]).map_err(|_| {
        "C plugins are built with zig, which is not on the PATH; run `.ci/author-tools`, which installs it and prints \
         the directory to add to the PATH"
            .to_owned()
    })?;
    Ok(version.trim().to_owned())
}

/// Builds the plugin in `plugins/NAME` and returns the component.
pub fn build(root: &Path, name: &str) -> Result<Vec<u8>, String> {
    let dir = root.join("target/guest-c").join(name);
    let io_error = |e: std::io::Error| format!("{}: {e}", dir.display());
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(io_error)?;
    }
    copy_dir(&root.join("plugins").join(name), &dir)?;
    copy_dir(&root.join("wit"), &dir.join("wit/deps/clawhost-plugin"))?;
    copy_dir(&root.join("sdk/c/include"), &dir.join("sdk/c/include"))?;
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
        // The WASI SDK compiler gives other bytes.
        .env_remove("WASI_SDK_PATH")
        .args(["plugin", "build"].map(OsString::from))
        .arg(&dir);
    run(command)?;
    sources::read(&dir.join("build").join(format!("{name}.wasm")))
}

/// Copies a directory except for its `build` directories.
fn copy_dir(from: &Path, to: &Path) -> Result<(), String> {
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
            copy_dir(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name)).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    Ok(())
}
