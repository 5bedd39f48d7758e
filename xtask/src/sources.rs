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

/// A first-party component.
pub struct Component {
    /// Name of the artifact, without `.wasm`.
    pub name: &'static str,
    /// How it is built.
    pub method: BuildMethod,
    /// Its source files and directories, in addition to the common ones.
    own: &'static [&'static str],
}

impl Component {
    const fn example(name: &'static str, own: &'static [&'static str]) -> Component {
        let method = BuildMethod::Example;
        Component { name, method, own }
    }

    /// A Rust plugin with its own package.
    const fn plugin(name: &'static str, own: &'static [&'static str]) -> Component {
        let method = BuildMethod::Package;
        Component { name, method, own }
    }

    /// A C plugin with its own directory.
    const fn in_c(name: &'static str, own: &'static [&'static str]) -> Component {
        let method = BuildMethod::C;
        Component { name, method, own }
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

/// All components, sorted by name. A component that depends on a library in `plugins/` lists the library's sources too.
pub const COMPONENTS: &[Component] = &[
    Component::plugin(
        "advantage-rloo",
        &[
            "plugins/advantage-rloo/Cargo.toml",
            "plugins/advantage-rloo/src",
        ],
    ),
    Component::plugin(
        "environment-guess",
        &[
            "plugins/environment-guess/Cargo.toml",
            "plugins/environment-guess/src",
        ],
    ),
    Component::plugin(
        "group-judge-rank",
        &[
            "plugins/group-judge-rank/Cargo.toml",
            "plugins/group-judge-rank/src",
            "plugins/asking/Cargo.toml",
            "plugins/asking/src",
        ],
    ),
    Component::plugin(
        "hint-llm",
        &[
            "plugins/hint-llm/Cargo.toml",
            "plugins/hint-llm/src",
            "plugins/asking/Cargo.toml",
            "plugins/asking/src",
        ],
    ),
    Component::plugin(
        "hint-next-state",
        &[
            "plugins/hint-next-state/Cargo.toml",
            "plugins/hint-next-state/src",
        ],
    ),
    Component::example("judge-endless", &["sdk/rust/examples/judge-endless.rs"]),
    Component::in_c(
        "judge-length",
        &[
            "plugins/judge-length/plugin.c",
            "plugins/judge-length/plugin.toml",
            "plugins/judge-length/wit",
        ],
    ),
    Component::plugin(
        "judge-llm",
        &[
            "plugins/judge-llm/Cargo.toml",
            "plugins/judge-llm/src",
            "plugins/asking/Cargo.toml",
            "plugins/asking/src",
        ],
    ),
    Component::example("judge-minimal", &["sdk/rust/examples/judge-minimal.rs"]),
    Component::example("judge-model", &["sdk/rust/examples/judge-model.rs"]),
    Component::plugin(
        "judge-next-state",
        &[
            "plugins/judge-next-state/Cargo.toml",
            "plugins/judge-next-state/src",
        ],
    ),
    Component::plugin(
        "judge-tests",
        &["plugins/judge-tests/Cargo.toml", "plugins/judge-tests/src"],
    ),
    Component::plugin(
        "loss-cispo",
        &["plugins/loss-cispo/Cargo.toml", "plugins/loss-cispo/src"],
    ),
    Component::plugin(
        "loss-distill-topk",
        &[
            "plugins/loss-distill-topk/Cargo.toml",
            "plugins/loss-distill-topk/src",
        ],
    ),
    Component::plugin(
        "loss-ppo-clip",
        &[
            "plugins/loss-ppo-clip/Cargo.toml",
            "plugins/loss-ppo-clip/src",
        ],
    ),
];

/// The digest of all sources of a component.
pub fn digest(root: &Path, component: &Component) -> Result<String, String> {
    let mut files = Vec::new();
    for path in component.common().iter().chain(component.own) {
        collect(&root.join(path), &mut files)?;
    }
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy();
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
