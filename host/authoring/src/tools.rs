//! The tools that a language needs: where they are, which version, how to get them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use crate::language::Language;

/// The release of componentize-py that the SDK is tested with.
pub(crate) const COMPONENTIZE_PY: &str = "0.25.1";
/// The release of componentize-qjs that the SDK is tested with.
pub(crate) const COMPONENTIZE_QJS: &str = "0.4.5";
/// The target of Rust guests: no WASI, the smallest surface.
pub(crate) const RUST_TARGET: &str = "wasm32-unknown-unknown";
/// Where cargo looks for flags of rustc for that target.
const RUST_FLAGS: &str = "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS";

/// A tool, found or missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tool {
    /// What it is.
    pub name: &'static str,
    /// Where it is; none when it is missing.
    pub path: Option<PathBuf>,
    /// Its version line; none when it is missing or prints none.
    pub version: Option<String>,
    /// One sentence on how to get it.
    pub how_to_get: String,
    /// The command line that it starts with.
    #[serde(skip)]
    pub(crate) command: Vec<OsString>,
}

impl Tool {
    /// Whether it is here.
    pub fn is_here(&self) -> bool {
        self.path.is_some()
    }

    fn new(name: &'static str, how_to_get: String) -> Tool {
        Tool {
            name,
            path: None,
            version: None,
            how_to_get,
            command: Vec::new(),
        }
    }

    /// The tool at this path, when there is one; `arguments` come before all others.
    fn at(mut self, path: Option<PathBuf>, arguments: &[&str]) -> Tool {
        if let Some(path) = path {
            self.command = vec![path.clone().into()];
            self.command.extend(arguments.iter().map(OsString::from));
            self.path = Some(path);
        }
        self
    }

    fn with_version(mut self, version: impl FnOnce(&Path) -> Option<String>) -> Tool {
        self.version = self.path.as_deref().and_then(version);
        self
    }
}

/// The tools that building in a language needs, for the plugin in `dir`: its own
/// (`.venv`, `node_modules`) come before those on the PATH. Runs each once to ask for its version.
pub fn tools(language: Language, dir: &Path) -> Vec<Tool> {
    match language {
        Language::Rust => vec![cargo(), rust_target()],
        Language::Python => vec![componentize_py(dir)],
        Language::Js => vec![node(), componentize_qjs(dir)],
        Language::C => vec![c_compiler(dir)],
    }
}

fn cargo() -> Tool {
    let get = "install Rust from https://rustup.rs".to_owned();
    Tool::new("cargo", get)
        .at(on_path("cargo"), &[])
        .with_version(|path| first_line(path, &["--version"]))
}

fn rust_target() -> Tool {
    let get = format!("run `rustup target add {RUST_TARGET}`");
    // Flags that cargo will hand to rustc for this target may name another sysroot.
    let flags = env::var(RUST_FLAGS).unwrap_or_default();
    let mut arguments: Vec<&str> = flags.split_whitespace().collect();
    arguments.extend(["--print", "target-libdir", "--target", RUST_TARGET]);
    let folder = on_path("rustc")
        .and_then(|rustc| first_line(&rustc, &arguments))
        .map(PathBuf::from)
        .filter(|folder| folder.is_dir());
    Tool::new("the standard library for WebAssembly", get).at(folder, &[])
}

fn componentize_py(dir: &Path) -> Tool {
    let get = format!(
        "run `python3 -m venv .venv && .venv/bin/pip install componentize-py=={COMPONENTIZE_PY}` in the plugin's folder"
    );
    let own = file(dir.join(".venv/bin/componentize-py"));
    Tool::new("componentize-py", get)
        .at(own.or_else(|| on_path("componentize-py")), &[])
        .with_version(|path| first_line(path, &["--version"]))
}

fn node() -> Tool {
    let get = "install Node.js 20 or newer from https://nodejs.org".to_owned();
    Tool::new("node", get)
        .at(on_path("node"), &[])
        .with_version(|path| first_line(path, &["--version"]))
}

fn componentize_qjs(dir: &Path) -> Tool {
    let get =
        format!("run `npm install componentize-qjs@{COMPONENTIZE_QJS}` in the plugin's folder");
    let own = file(dir.join("node_modules/.bin/componentize-qjs"));
    Tool::new("componentize-qjs", get)
        .at(own.or_else(|| on_path("componentize-qjs")), &[])
        .with_version(package_version)
}

fn c_compiler(dir: &Path) -> Tool {
    let get = "run `pip install ziglang`, or install zig from https://ziglang.org, or unpack wasi-sdk and set \
               WASI_SDK_PATH to its folder"
        .to_owned();
    let tool = Tool::new("a C compiler for WebAssembly", get);
    let sdk =
        env::var_os("WASI_SDK_PATH").and_then(|sdk| file(PathBuf::from(sdk).join("bin/clang")));
    if sdk.is_some() {
        return tool
            .at(sdk, &[])
            .with_version(|path| first_line(path, &["--version"]));
    }
    let zig = on_path("zig");
    if zig.is_some() {
        let zig = tool.at(zig, &["cc"]);
        return zig.with_version(|path| first_line(path, &["version"]).map(|v| format!("zig {v}")));
    }
    for python in [file(dir.join(".venv/bin/python")), on_path("python3")] {
        let Some(path) = python else { continue };
        if let Some(version) = first_line(&path, &["-m", "ziglang", "version"]) {
            let mut zig = tool.at(Some(path), &["-m", "ziglang", "cc"]);
            zig.version = Some(format!("zig {version}"));
            return zig;
        }
    }
    tool
}

/// The first line of a tool's output, when it succeeds.
fn first_line(tool: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(tool).args(arguments).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(|line| line.trim().to_owned())
}

/// The version of the npm package that a program belongs to.
fn package_version(program: &Path) -> Option<String> {
    let real = program.canonicalize().ok()?;
    let package = real.parent()?.parent()?.join("package.json");
    let text = std::fs::read_to_string(package).ok()?;
    let package: serde_json::Value = serde_json::from_str(&text).ok()?;
    package.get("version")?.as_str().map(str::to_owned)
}

fn on_path(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).find_map(|folder| file(folder.join(name.as_ref())))
}

/// The path, made absolute because tools are started in other folders, when a file is there.
fn file(path: PathBuf) -> Option<PathBuf> {
    if path.is_file() {
        std::path::absolute(path).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_says_how_to_get_it() {
        for language in Language::ALL {
            for tool in tools(language, Path::new("/nowhere")) {
                assert!(tool.how_to_get.len() > 10, "{tool:?}");
                assert_eq!(tool.is_here(), !tool.command.is_empty(), "{tool:?}");
            }
        }
    }

    #[test]
    fn a_plugins_own_tools_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("node_modules/.bin/componentize-qjs");
        std::fs::create_dir_all(own.parent().unwrap()).unwrap();
        std::fs::write(&own, "").unwrap();
        let found = componentize_qjs(dir.path());
        assert_eq!(found.path.as_deref(), Some(&*own));
        assert_eq!(found.version, None);
    }
}
