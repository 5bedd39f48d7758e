//! The plugin manifest, `plugin.toml`: the access that a plugin requests and lower limits for its calls.
//!
//! A manifest only narrows: it grants nothing and raises no limit, and a component without one gets everything that its
//! digest was granted. Therefore the plugin's author, who need not be trusted, may write it.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clawhost_config::Limits;
use serde::Deserialize;

use crate::call::TICK;
use crate::grants::{Capability, Grants, Origin};
use crate::regular_file::{FileError, read_regular_file};

/// The name of the file.
const FILE: &str = "plugin.toml";

/// Maximum size of the file.
const MAX_BYTES: u64 = 1 << 20;

/// Parent directories above the component's own that are searched for its manifest, because builds put components some
/// levels below the plugin's directory.
const MAX_PARENTS: usize = 4;

/// A plugin's manifest. The default narrows nothing.
///
/// ```toml
/// [wants]
/// http = ["https://api.example"]
/// models = ["judge"]
///
/// [limits]
/// model_calls = 2
/// wall_ms = 5000
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Manifest {
    /// Used by the author's tools. The host only reads which component the manifest belongs to.
    plugin: PluginSection,
    wants: Wants,
    limits: Budgets,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
struct PluginSection {
    component: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wants {
    /// None does not narrow the granted origins.
    http: Option<BTreeSet<Origin>>,
    /// None does not narrow the granted models.
    models: Option<BTreeSet<String>>,
}

/// Limits of every call. The lower of this and the configured limit applies.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Budgets {
    cpu_ticks: Option<NonZeroU64>,
    fuel: Option<NonZeroU64>,
    wall_ms: Option<NonZeroU64>,
    memory_bytes: Option<NonZeroU64>,
    host_calls: Option<u64>,
    model_calls: Option<u32>,
    model_tokens: Option<u64>,
    http_calls: Option<u32>,
}

/// The manifest is invalid. Its component is not loaded, because it might get access that the manifest meant to exclude.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct ManifestError {
    /// The file.
    pub path: PathBuf,
    /// Line, what is wrong, and what to write instead.
    pub message: String,
}

impl Manifest {
    /// Finds and reads the manifest of a component file: `plugin.toml` in its directory, or in a parent directory if its
    /// `[plugin] component` is this file. A manifest that names another component is ignored.
    ///
    /// # Errors
    /// [`ManifestError`] when the manifest cannot be read or is invalid.
    pub fn find_for(component: &Path) -> Result<Manifest, ManifestError> {
        let component = std::path::absolute(component).unwrap_or_else(|_| component.to_owned());
        let directories = component.ancestors().skip(1).take(1 + MAX_PARENTS);
        for (level, directory) in directories.enumerate() {
            let path = directory.join(FILE);
            let failed = |message| ManifestError {
                path: path.clone(),
                message,
            };
            let text = match read_regular_file(&path, MAX_BYTES) {
                Ok(bytes) => String::from_utf8(bytes)
                    .map_err(|error| failed(format!("cannot read the manifest: {error}")))?,
                Err(FileError::Io(error)) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(format!("cannot read the manifest: {error}"))),
            };
            let applies = match component_path(&text).map_err(failed)? {
                Some(path) => directory.join(path) == component,
                None => level == 0,
            };
            return if applies {
                Manifest::parse(&text).map_err(failed)
            } else {
                Ok(Manifest::default())
            };
        }
        Ok(Manifest::default())
    }

    /// Parses the text of a manifest.
    ///
    /// # Errors
    /// A message with the line and what to write instead.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let manifest: Manifest = toml::from_str(text).map_err(|error| error_line(text, &error))?;
        let empty = |key: &str| {
            format!(
                "line {}: {key} = [] is empty; list what the plugin accesses, or remove the line",
                line_of(text, key)
            )
        };
        let wants = &manifest.wants;
        if wants.http.as_ref().is_some_and(BTreeSet::is_empty) {
            return Err(empty("http"));
        }
        if let Some(models) = &wants.models {
            if models.is_empty() {
                return Err(empty("models"));
            }
            if models.contains("") {
                return Err(format!(
                    "line {}: empty model name; write the model's alias, such as \"judge\"",
                    line_of(text, "models")
                ));
            }
        }
        Ok(manifest)
    }

    /// The grants without those that the manifest does not request.
    pub fn narrow(&self, grants: &Grants) -> Grants {
        let mut narrowed = grants.clone();
        if let Some(wanted) = &self.wants.http {
            narrowed.origins.retain(|origin| wanted.contains(origin));
            narrowed
                .secrets
                .retain(|_, binding| wanted.contains(&binding.origin));
            if narrowed.origins.is_empty() {
                narrowed.allow.remove(&Capability::Http);
            }
        }
        if let Some(wanted) = &self.wants.models
            && narrowed.allow.contains(&Capability::Model)
        {
            if grants.models.is_empty() {
                narrowed.models.clone_from(wanted);
            } else {
                narrowed.models.retain(|model| wanted.contains(model));
            }
            // An empty set would mean every alias.
            if narrowed.models.is_empty() {
                narrowed.allow.remove(&Capability::Model);
            }
        }
        narrowed
    }

    /// Grants that the manifest does not request, as arguments of `clawhost plugin grant`. They have no effect.
    pub fn unrequested_grants(&self, grants: &Grants) -> Vec<String> {
        let origins = grants.origins.iter().filter(|origin| {
            let wanted = self.wants.http.as_ref();
            wanted.is_some_and(|wanted| !wanted.contains(*origin))
        });
        let models = grants.models.iter().filter(|model| {
            let wanted = self.wants.models.as_ref();
            wanted.is_some_and(|wanted| !wanted.contains(*model))
        });
        origins
            .map(|origin| format!("http={origin}"))
            .chain(models.map(|model| format!("model={model}")))
            .collect()
    }

    /// The requests of the manifest that these grants do not cover, limited to the capabilities that the component
    /// imports, as arguments of `clawhost plugin grant`.
    pub fn missing_grants<'a>(
        &self,
        imported: impl IntoIterator<Item = &'a Capability>,
        grants: &Grants,
    ) -> Vec<String> {
        let mut missing_grants = Vec::new();
        for capability in imported {
            let has = grants.covers(*capability);
            match capability {
                Capability::Http if self.wants.http.is_some() => {
                    let wanted = self.wants.http.iter().flatten();
                    let missing = wanted.filter(|origin| !has || !grants.origins.contains(*origin));
                    missing_grants.extend(missing.map(|origin| format!("http={origin}")));
                }
                Capability::Model if self.wants.models.is_some() => {
                    let granted = |model: &String| {
                        has && (grants.models.is_empty() || grants.models.contains(model))
                    };
                    let wanted = self.wants.models.iter().flatten();
                    let missing = wanted.filter(|model| !granted(model));
                    missing_grants.extend(missing.map(|model| format!("model={model}")));
                }
                capability if !has => missing_grants.push(capability.grant_argument().to_owned()),
                _ => {}
            }
        }
        missing_grants
    }

    /// All requests of the manifest, as arguments of `clawhost plugin grant`.
    pub fn wants(&self) -> Vec<String> {
        let origins = self.wants.http.iter().flatten();
        let models = self.wants.models.iter().flatten();
        origins
            .map(|origin| format!("http={origin}"))
            .chain(models.map(|model| format!("model={model}")))
            .collect()
    }

    /// Grants of everything that the manifest requests.
    pub fn all_requested_grants(&self) -> Grants {
        Grants {
            origins: self.wants.http.clone().unwrap_or_default(),
            models: self.wants.models.clone().unwrap_or_default(),
            ..Grants::default()
        }
    }

    pub(crate) fn budgets(&self) -> Budgets {
        self.limits.clone()
    }
}

impl Budgets {
    /// The lower of each limit and the manifest's limit.
    pub(crate) fn narrow(&self, limits: Limits) -> Limits {
        fn lower<T: Ord + Copy>(limit: T, own: Option<T>) -> T {
            own.map_or(limit, |own| own.min(limit))
        }
        let positive = |own: Option<NonZeroU64>| own.map(NonZeroU64::get);
        Limits {
            cpu_time: lower(
                limits.cpu_time,
                self.cpu_ticks
                    .map(|n| TICK.saturating_mul(u32::try_from(n.get()).unwrap_or(u32::MAX))),
            ),
            fuel: lower(limits.fuel, positive(self.fuel)),
            wall_time: lower(
                limits.wall_time,
                self.wall_ms.map(|n| Duration::from_millis(n.get())),
            ),
            memory: lower(
                limits.memory,
                positive(self.memory_bytes)
                    .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            ),
            host_calls: lower(limits.host_calls, self.host_calls),
            model_calls: lower(limits.model_calls, self.model_calls),
            model_tokens: lower(limits.model_tokens, self.model_tokens),
            http_calls: lower(limits.http_calls, self.http_calls),
            ..limits
        }
    }
}

/// The component that a manifest belongs to, read without validating the rest of it.
fn component_path(text: &str) -> Result<Option<PathBuf>, String> {
    let table: toml::Table = toml::from_str(text).map_err(|error| error_line(text, &error))?;
    let component = table.get("plugin").and_then(|about| about.get("component"));
    Ok(component.and_then(|path| path.as_str()).map(PathBuf::from))
}

/// Formats a parse error on one line, with the line number in the file.
fn error_line(text: &str, error: &toml::de::Error) -> String {
    let line = error
        .span()
        .and_then(|span| text.get(..span.start))
        .map(|before| format!("line {}: ", before.matches('\n').count() + 1))
        .unwrap_or_default();
    format!("{line}{}", error.message().trim_end())
}

/// The number of the line that sets a key.
fn line_of(text: &str, key: &str) -> usize {
    let sets = |line: &str| {
        let rest = line.trim_start().strip_prefix(key);
        rest.is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    text.lines().position(sets).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(arguments: &[&str]) -> Grants {
        let mut grants = Grants::default();
        for argument in arguments {
            grants.add(argument).unwrap();
        }
        grants
    }

    const WANTS: &str =
        "[wants]\nhttp = [\"https://api.example\"]\nmodels = [\"judge\", \"teacher\"]\n";

    #[test]
    fn grants_are_narrowed_to_what_the_manifest_requests() {
        let manifest = Manifest::parse(WANTS).unwrap();
        let granted = grants(&[
            "state",
            "model=judge",
            "model=policy",
            "http=https://api.example",
            "http=https://evil.example",
            "secret=A:A@https://api.example",
            "secret=B:B@https://evil.example",
        ]);
        let left = manifest.narrow(&granted);
        assert_eq!(
            left,
            grants(&[
                "state",
                "model=judge",
                "http=https://api.example",
                "secret=A:A@https://api.example"
            ])
        );
        assert_eq!(
            manifest.unrequested_grants(&granted),
            ["http=https://evil.example", "model=policy"]
        );
        assert_eq!(manifest.narrow(&left), left);
        // A grant of all models is narrowed to the requested ones; no match removes the capability.
        let all = manifest.narrow(&grants(&["model"]));
        assert_eq!(all, grants(&["model=judge", "model=teacher"]));
        let other = manifest.narrow(&grants(&["model=policy", "http=https://evil.example"]));
        assert_eq!(other, Grants::default());
        // A manifest without requests narrows nothing.
        assert_eq!(Manifest::default().narrow(&granted), granted);
        let empty = Manifest::parse("[wants]\n").unwrap();
        assert_eq!(empty.narrow(&granted), granted);
    }

    #[test]
    fn missing_grants_are_listed_as_grant_arguments() {
        let manifest = Manifest::parse(WANTS).unwrap();
        let imported = [
            Capability::Log,
            Capability::Model,
            Capability::State,
            Capability::Http,
        ];
        let missing = |manifest: &Manifest, arguments: &[&str]| {
            manifest.missing_grants(&imported, &grants(arguments))
        };
        let wanted = [
            "model=judge",
            "model=teacher",
            "state",
            "http=https://api.example",
        ];
        assert_eq!(missing(&manifest, &[]), wanted);
        assert_eq!(
            missing(
                &manifest,
                &["state", "model=judge", "http=https://b.example"]
            ),
            ["model=teacher", "http=https://api.example"]
        );
        assert!(missing(&manifest, &wanted).is_empty());
        assert!(missing(&manifest, &["state", "model", "http=https://api.example"]).is_empty());
        let empty = Manifest::default();
        assert_eq!(
            missing(&empty, &[]),
            ["model", "state", "http=https://HOST"]
        );
    }

    #[test]
    fn limits_are_lowered_and_never_raised() {
        let text = "[limits]\nwall_ms = 5\nmodel_calls = 0\nmodel_tokens = 999999999\n";
        let narrowed = Manifest::parse(text)
            .unwrap()
            .budgets()
            .narrow(Limits::default());
        assert_eq!(narrowed.wall_time, Duration::from_millis(5));
        assert_eq!(narrowed.model_calls, 0);
        assert_eq!(narrowed.model_tokens, Limits::default().model_tokens);
        let unchanged = Budgets::default().narrow(Limits::default());
        assert_eq!(unchanged, Limits::default());
    }

    #[test]
    fn an_invalid_manifest_is_reported_with_its_line_and_a_remedy() {
        for (text, line, remedy) in [
            ("[wants]\nhtpp = []", "line 2", "`http`"),
            ("[want]\nhttp = []", "line 1", "`wants`"),
            (
                "\n[wants]\nhttp = [\"api.example\"]",
                "line 3",
                "https://api.example",
            ),
            ("[wants]\nhttp = \"https://a\"", "line 2", "sequence"),
            ("[wants]\n\nhttp = []", "line 3", "remove the line"),
            ("[wants]\nmodels = []", "line 2", "remove the line"),
            ("[wants]\nmodels = [\"\"]", "line 2", "\"judge\""),
            ("[limits]\nwall = 3", "line 2", "`wall_ms`"),
            ("[limits]\nwall_ms = 0", "line 2", "nonzero"),
            ("[limits]\nfuel = -1", "line 2", "nonzero"),
            ("[wants", "line 1", "]"),
        ] {
            let error = Manifest::parse(text).unwrap_err();
            assert!(
                error.starts_with(line) && error.contains(remedy),
                "{text}: {error}"
            );
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let authors = "[plugin]\nname = \"j\"\nlanguage = \"c\"\n[wants]\nmodels = [\"judge\"]";
        assert_eq!(Manifest::parse(authors).unwrap().wants(), ["model=judge"]);
    }

    #[test]
    fn a_manifest_is_found_beside_the_component_and_in_parent_directories() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let wants = |path: &str| Manifest::find_for(&dir.path().join(path)).map(|m| m.wants());
        write("beside/plugin.toml", "[wants]\nmodels = [\"a\"]");
        assert_eq!(wants("beside/j.wasm").unwrap(), ["model=a"]);
        // It does not apply to subdirectories unless it names the component.
        assert!(wants("beside/below/j.wasm").unwrap().is_empty());
        let named = "[plugin]\ncomponent = \"build/j.wasm\"\n[wants]\nmodels = [\"b\"]";
        write("mine/plugin.toml", named);
        assert_eq!(wants("mine/build/j.wasm").unwrap(), ["model=b"]);
        assert!(wants("mine/build/k.wasm").unwrap().is_empty());
        assert!(wants("mine/j.wasm").unwrap().is_empty());
        write(
            "bad/plugin.toml",
            "[plugin]\ncomponent = \"build/j.wasm\"\n[wants]\nx = 1",
        );
        let error = wants("bad/build/j.wasm").unwrap_err().to_string();
        assert!(error.contains("plugin.toml: line 4"), "{error}");
        // An invalid manifest of another component is ignored.
        assert!(wants("bad/build/k.wasm").unwrap().is_empty());
        assert!(wants("none/j.wasm").unwrap().is_empty());
    }
}
