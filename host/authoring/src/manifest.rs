//! `plugin.toml`: what a plugin's folder says about itself.

use std::fs;
use std::path::{Component, Path, PathBuf};

use clawhost_plugins::Kind;
use serde::Deserialize;

use crate::error::AuthoringError;
use crate::language::Language;
use crate::parse::kind_from_name;

/// The name of the file.
pub const MANIFEST: &str = "plugin.toml";

/// The table `[plugin]` of `plugin.toml`. Other tables are left to others.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The plugin's name.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// What it is written in.
    pub language: Language,
    /// Where a build leaves the component, from the plugin's folder.
    pub component: PathBuf,
}

#[derive(Deserialize)]
struct File {
    plugin: Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    kind: String,
    language: String,
    component: PathBuf,
}

impl Manifest {
    /// Reads the manifest of a plugin's folder.
    ///
    /// # Errors
    /// [`AuthoringError::NoManifest`] when there is none, [`AuthoringError::BadManifest`] with the
    /// line when it does not say what it must.
    pub fn read(dir: &Path) -> Result<Manifest, AuthoringError> {
        let path = dir.join(MANIFEST);
        let text = fs::read_to_string(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => AuthoringError::NoManifest {
                dir: dir.to_owned(),
            },
            _ => AuthoringError::Read {
                path: path.clone(),
                source,
            },
        })?;
        let bad = |reason: String| AuthoringError::BadManifest {
            path: path.clone(),
            reason,
        };
        let File { plugin } = toml::from_str(&text).map_err(|e| bad(e.to_string()))?;
        crate::name::check(&plugin.name).map_err(|e| bad(e.to_string()))?;
        let inside = plugin
            .component
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if !inside || plugin.component.as_os_str().is_empty() {
            return Err(bad(format!(
                "component = {:?} must be a path inside the plugin's folder",
                plugin.component
            )));
        }
        Ok(Manifest {
            kind: kind_from_name(&plugin.kind).map_err(|e| bad(e.to_string()))?,
            language: plugin
                .language
                .parse()
                .map_err(|e: AuthoringError| bad(e.to_string()))?,
            name: plugin.name,
            component: plugin.component,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Manifest, AuthoringError> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(MANIFEST), text).unwrap();
        Manifest::read(dir.path())
    }

    #[test]
    fn reads_its_own_table_and_leaves_the_others() {
        let text = "[plugin]\nname = \"j\"\nkind = \"hint\"\nlanguage = \"c\"\ncomponent = \"build/j.wasm\"\n[budget]\ncalls = 2\n";
        let manifest = read(text).unwrap();
        assert_eq!(manifest.kind, Kind::Hint);
        assert_eq!(manifest.language, Language::C);
        assert_eq!(manifest.component, Path::new("build/j.wasm"));
    }

    #[test]
    fn says_what_is_wrong() {
        let with = |line: &str| {
            let lines = [
                "name = \"j\"",
                "kind = \"judge\"",
                "language = \"c\"",
                "component = \"j.wasm\"",
            ];
            let key = line.split(' ').next().unwrap_or("");
            let kept = lines.iter().filter(|kept| !kept.starts_with(key));
            let table: Vec<&str> = kept.copied().chain([line]).collect();
            read(&format!("[plugin]\n{}\n", table.join("\n")))
                .unwrap_err()
                .to_string()
        };
        assert!(with("kind = \"judgement\"").contains("group-judge"));
        assert!(with("language = \"perl\"").contains("rust, python, js and c"));
        assert!(with("component = \"../j.wasm\"").contains("inside"));
        assert!(with("component = \"/j.wasm\"").contains("inside"));
        assert!(with("color = \"red\"").contains("color"));
        assert!(with("name = \"J\"").contains("my-judge"));
        let none = Manifest::read(Path::new("/nowhere")).unwrap_err();
        assert!(none.to_string().contains("clawhost plugin new"), "{none}");
    }
}
