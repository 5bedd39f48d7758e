//! The sources of each component and their digest.
//!
//! The digest detects an outdated artifact without a guest toolchain. It covers the WIT package, the SDK, the plugin
//! itself, the guest profile and the locked versions of the guests' dependencies.

use std::fs;
use std::path::{Path, PathBuf};

use crate::sha256;

/// How a component is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildMethod {
    /// cargo builds the library of the package of this name.
    Package,
    /// cargo builds an example of the Rust SDK.
    Example,
    /// `clawhost plugin build` builds the directory of this name, as for any C plugin.
    C,
}

use BuildMethod::{C, Example, Package};

/// A first-party component.
pub struct Component {
    /// Name of the artifact, without `.wasm`.
    pub name: &'static str,
    /// How it is built.
    pub method: BuildMethod,
    /// The directory of its package; empty for `plugins/NAME`.
    folder: &'static str,
    /// The packages of `plugins/` that it links.
    libraries: &'static [&'static str],
}

impl Component {
    /// Its own source files and directories, and those of its libraries.
    fn own(&self) -> Vec<String> {
        let name = self.name;
        match self.method {
            BuildMethod::Package => self
                .libraries
                .iter()
                .map(|library| format!("plugins/{library}"))
                .chain([self.package_folder()])
                .flat_map(|folder| ["Cargo.toml", "src"].map(|part| format!("{folder}/{part}")))
                .collect(),
            BuildMethod::Example => vec![format!("sdk/rust/examples/{name}.rs")],
            BuildMethod::C => ["plugin.c", "plugin.toml", "wit"]
                .map(|part| format!("plugins/{name}/{part}"))
                .to_vec(),
        }
    }

    /// Where its package is.
    fn package_folder(&self) -> String {
        match self.folder {
            "" => format!("plugins/{}", self.name),
            folder => folder.to_owned(),
        }
    }

    /// The source files and directories of every component with this build method.
    fn common(&self) -> &'static [&'static str] {
        match self.method {
            BuildMethod::Package | BuildMethod::Example => {
                &["sdk/rust/Cargo.toml", "sdk/rust/src", "wit"]
            }
            BuildMethod::C => &[
                "sdk/c/include",
                "wit",
                "host/authoring/src/build/c.rs",
                "host/authoring/src/component.rs",
            ],
        }
    }

    /// Name prefixes of the locked packages that are linked into it or generate code for it.
    fn locked(&self) -> &'static [&'static str] {
        match self.method {
            BuildMethod::Package | BuildMethod::Example => &["wit-bindgen"],
            BuildMethod::C => &["wit-bindgen", "wit-component", "wit-parser"],
        }
    }
}

/// The libraries of environments with machines.
const MACHINE_LIBRARIES: [&str; 2] = ["task-json", "task-machine"];

/// All components, sorted by name.
pub const COMPONENTS: &[Component] = &[
    component("advantage-rloo", Package, &[]),
    component("environment-guess", Package, &[]),
    environment("environment-gui", "environments/gui", &MACHINE_LIBRARIES),
    environment(
        "environment-python",
        "environments/python",
        &MACHINE_LIBRARIES,
    ),
    environment("environment-swe", "environments/swe", &MACHINE_LIBRARIES),
    environment(
        "environment-terminal",
        "environments/terminal",
        &MACHINE_LIBRARIES,
    ),
    environment(
        "environment-toolcall",
        "environments/toolcall",
        &["task-json", "task-question"],
    ),
    environment(
        "environment-toolcall-code",
        "environments/toolcall-code",
        &["task-json", "task-machine", "task-question"],
    ),
    component("filter-minimal", Example, &[]),
    component("gate-minimal", Example, &[]),
    component("group-judge-rank", Package, &["asking"]),
    component("hint-llm", Package, &["asking"]),
    component("hint-next-state", Package, &["reactions"]),
    component("judge-endless", Example, &[]),
    component("judge-length", C, &[]),
    component("judge-llm", Package, &["asking"]),
    component("judge-minimal", Example, &[]),
    component("judge-model", Example, &[]),
    component("judge-next-state", Package, &["reactions"]),
    component("judge-step", Package, &["reactions"]),
    component("judge-tests", Package, &[]),
    component("loss-cispo", Package, &[]),
    component("loss-distill-topk", Package, &[]),
    component("loss-dpo", Package, &[]),
    component("loss-ppo-clip", Package, &[]),
];

const fn component(
    name: &'static str,
    method: BuildMethod,
    libraries: &'static [&'static str],
) -> Component {
    Component {
        name,
        method,
        folder: "",
        libraries,
    }
}

/// An environment that reads tasks, whose package is in `folder`.
const fn environment(
    name: &'static str,
    folder: &'static str,
    libraries: &'static [&'static str],
) -> Component {
    Component {
        name,
        method: Package,
        folder,
        libraries,
    }
}

/// The digest of all sources of a component.
pub fn digest(root: &Path, component: &Component) -> Result<String, String> {
    let mut files = Vec::new();
    let own = component.own();
    for path in component
        .common()
        .iter()
        .copied()
        .chain(own.iter().map(String::as_str))
    {
        collect(&root.join(path), &mut files)?;
    }
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let name = file.strip_prefix(root).expect("sources are in the root");
        let name = name.to_string_lossy();
        let bytes = read(&file)?;
        // Ignore line endings, which differ between checkouts.
        let text: Vec<u8> = bytes.into_iter().filter(|byte| *byte != b'\r').collect();
        all.extend(format!("{name}\n{}\n", sha256::hex(&text)).into_bytes());
    }
    if component.method != BuildMethod::C {
        let manifest = text(&root.join("Cargo.toml"))?;
        all.extend(section(&manifest, "[profile.guest]").into_bytes());
    }
    let lock = text(&root.join("Cargo.lock"))?;
    for package in lock.split("[[package]]") {
        let name = package
            .lines()
            .find_map(|line| line.strip_prefix("name = "));
        if name.is_some_and(|name| {
            let name = name.trim_matches('"');
            component
                .locked()
                .iter()
                .any(|locked| name.starts_with(locked))
        }) {
            all.extend(package.trim().as_bytes());
            all.push(b'\n');
        }
    }
    Ok(sha256::hex(&all))
}

/// The lines of a TOML table, without comments.
fn section(toml: &str, header: &str) -> String {
    toml.lines()
        .skip_while(|line| line.trim() != header)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .map(|line| line.split('#').next().unwrap_or("").trim())
        .filter(|line| !line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect()
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    if path.is_dir() {
        let entries = fs::read_dir(path).map_err(|e| format!("{}: {e}", path.display()))?;
        for entry in entries {
            let entry = entry.map_err(|e| format!("{}: {e}", path.display()))?;
            collect(&entry.path(), files)?;
        }
    } else {
        files.push(path.to_owned());
    }
    Ok(())
}

pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_at_the_next_one_and_excludes_comments() {
        let toml = "[a]\nx = 1\n\n[profile.guest]\n# why\nlto = true # yes\n\n[b]\ny = 2\n";
        assert_eq!(section(toml, "[profile.guest]"), "lto = true\n");
    }
}
