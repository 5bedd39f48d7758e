//! `plugin.toml` beside a component: what the plugin says that it wants, and how little it gets by with.
//!
//! A manifest only ever narrows. It grants nothing, it raises no limit, and a component without one gets what its
//! digest was granted. That is why it may be written by whoever wrote the plugin.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::call::Limits;
use crate::grants::{Capability, Grants, Origin};
use crate::regular_file::{FileError, read_regular_file};

/// The name of the file.
const FILE: &str = "plugin.toml";

/// Most bytes of the file.
const MAX_BYTES: u64 = 1 << 20;

/// Folders above a component's own in which its manifest is looked for: builds leave components some levels below
/// the plugin's folder.
const LEVELS: usize = 4;

/// What a plugin says about its needs. The default says nothing and narrows nothing.
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
    /// Read by the author's tools. Here it only says which component is meant.
    plugin: About,
    wants: Wants,
    limits: Budgets,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
struct About {
    component: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wants {
    /// None says nothing about it, and the grants stand alone.
    http: Option<BTreeSet<Origin>>,
    models: Option<BTreeSet<String>>,
}

/// Limits of every call, by the names that they have in the configuration. The smaller of both counts.
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

/// A manifest that cannot be used. Nothing is loaded by it: what it meant to leave out must not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct ManifestError {
    /// The file.
    pub path: PathBuf,
    /// Line, what is wrong, and what to write instead.
    pub message: String,
}

impl Manifest {
    /// Reads the manifest of a component file: `plugin.toml` in its folder, or in one of the folders above it when
    /// its `[plugin] component` leads to this file. A manifest that names another component is not meant.
    ///
    /// # Errors
    /// [`ManifestError`] when there is one that cannot be read or does not say what it must.
    pub fn of(component: &Path) -> Result<Manifest, ManifestError> {
        let whole = std::path::absolute(component).unwrap_or_else(|_| component.to_owned());
        for (level, folder) in whole.ancestors().skip(1).take(1 + LEVELS).enumerate() {
            let path = folder.join(FILE);
            let failed = |message| ManifestError {
                path: path.clone(),
                message,
            };
            let text = match read_regular_file(&path, MAX_BYTES) {
                Ok(bytes) => String::from_utf8(bytes)
                    .map_err(|error| failed(format!("cannot be read: {error}")))?,
                Err(FileError::Io(error)) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(format!("cannot be read: {error}"))),
            };
            let meant = match claimed(&text).map_err(failed)? {
                Some(claimed) => folder.join(claimed) == whole,
                None => level == 0,
            };
            return if meant {
                Manifest::parse(&text).map_err(failed)
            } else {
                Ok(Manifest::default())
            };
        }
        Ok(Manifest::default())
    }

    /// Reads the text of a manifest.
    ///
    /// # Errors
    /// A sentence with the line and what to write instead.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let manifest: Manifest = toml::from_str(text).map_err(|error| placed(text, &error))?;
        let nothing = |key: &str| {
            format!(
                "line {}: {key} = [] names nothing; name what the plugin reaches, or leave the line out",
                line_of(text, key)
            )
        };
        let wants = &manifest.wants;
        if wants.http.as_ref().is_some_and(BTreeSet::is_empty) {
            return Err(nothing("http"));
        }
        if let Some(models) = &wants.models {
            if models.is_empty() {
                return Err(nothing("models"));
            }
            if models.contains("") {
                return Err(format!(
                    "line {}: a model has no name; write its alias, such as \"judge\"",
                    line_of(text, "models")
                ));
            }
        }
        Ok(manifest)
    }

    /// What is left of the grants when nothing is given that the plugin does not say it wants.
    pub fn narrow(&self, grants: &Grants) -> Grants {
        let mut left = grants.clone();
        if let Some(wanted) = &self.wants.http {
            left.origins.retain(|origin| wanted.contains(origin));
            left.secrets
                .retain(|_, binding| wanted.contains(&binding.origin));
            if left.origins.is_empty() {
                left.allow.remove(&Capability::Http);
            }
        }
        if let Some(wanted) = &self.wants.models
            && left.allow.contains(&Capability::Model)
        {
            if grants.models.is_empty() {
                left.models.clone_from(wanted);
            } else {
                left.models.retain(|model| wanted.contains(model));
            }
            // No alias at all would mean every alias.
            if left.models.is_empty() {
                left.allow.remove(&Capability::Model);
            }
        }
        left
    }

    /// What is granted although the plugin does not say that it wants it, each as an argument of
    /// `clawhost plugin grant`. It has no effect.
    pub fn unwanted(&self, grants: &Grants) -> Vec<String> {
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

    /// What it wants and these grants do not give, of the capabilities that the component imports.
    pub fn lacking<'a>(
        &self,
        imported: impl IntoIterator<Item = &'a Capability>,
        grants: &Grants,
    ) -> Vec<String> {
        let mut lacking = Vec::new();
        for capability in imported {
            let has = grants.covers(*capability);
            match capability {
                Capability::Http if self.wants.http.is_some() => {
                    let wanted = self.wants.http.iter().flatten();
                    let missing = wanted.filter(|origin| !has || !grants.origins.contains(*origin));
                    lacking.extend(missing.map(|origin| format!("http={origin}")));
                }
                Capability::Model if self.wants.models.is_some() => {
                    let given = |model: &String| {
                        has && (grants.models.is_empty() || grants.models.contains(model))
                    };
                    let wanted = self.wants.models.iter().flatten();
                    let missing = wanted.filter(|model| !given(model));
                    lacking.extend(missing.map(|model| format!("model={model}")));
                }
                capability if !has => lacking.push(capability.argument().to_owned()),
                _ => {}
            }
        }
        lacking
    }

    /// All that it says it wants, each as an argument of `clawhost plugin grant`.
    pub fn wants(&self) -> Vec<String> {
        let origins = self.wants.http.iter().flatten();
        let models = self.wants.models.iter().flatten();
        origins
            .map(|origin| format!("http={origin}"))
            .chain(models.map(|model| format!("model={model}")))
            .collect()
    }

    /// Grants of all that it says it wants.
    pub fn everything_wanted(&self) -> Grants {
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
    /// The limits of one call, none of them raised.
    pub(crate) fn narrow(&self, limits: Limits) -> Limits {
        fn least<T: Ord + Copy>(limit: T, own: Option<T>) -> T {
            own.map_or(limit, |own| own.min(limit))
        }
        let positive = |own: Option<NonZeroU64>| own.map(NonZeroU64::get);
        Limits {
            cpu_ticks: least(limits.cpu_ticks, positive(self.cpu_ticks)),
            fuel: least(limits.fuel, positive(self.fuel)),
            wall_ms: least(limits.wall_ms, positive(self.wall_ms)),
            memory_bytes: least(
                limits.memory_bytes,
                positive(self.memory_bytes)
                    .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            ),
            host_calls: least(limits.host_calls, self.host_calls),
            model_calls: least(limits.model_calls, self.model_calls),
            model_tokens: least(limits.model_tokens, self.model_tokens),
            http_calls: least(limits.http_calls, self.http_calls),
            ..limits
        }
    }
}

/// The component that a manifest is about, read before anything else of it is looked at.
fn claimed(text: &str) -> Result<Option<PathBuf>, String> {
    let table: toml::Table = toml::from_str(text).map_err(|error| placed(text, &error))?;
    let component = table.get("plugin").and_then(|about| about.get("component"));
    Ok(component.and_then(|path| path.as_str()).map(PathBuf::from))
}

/// The parser's complaint in one line, with the line of the file.
fn placed(text: &str, error: &toml::de::Error) -> String {
    let line = error
        .span()
        .and_then(|span| text.get(..span.start))
        .map(|before| format!("line {}: ", before.matches('\n').count() + 1))
        .unwrap_or_default();
    format!("{line}{}", error.message().trim_end())
}

/// The line on which a key is set.
fn line_of(text: &str, key: &str) -> usize {
    let sets = |line: &str| {
        let rest = line.trim_start().strip_prefix(key);
        rest.is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    text.lines().position(sets).map_or(1, |at| at + 1)
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
    fn nothing_is_left_that_is_not_both_granted_and_wanted() {
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
            manifest.unwanted(&granted),
            ["http=https://evil.example", "model=policy"]
        );
        assert_eq!(manifest.narrow(&left), left);
        // All models are narrowed to those that are wanted, and none is never all.
        let all = manifest.narrow(&grants(&["model"]));
        assert_eq!(all, grants(&["model=judge", "model=teacher"]));
        let other = manifest.narrow(&grants(&["model=policy", "http=https://evil.example"]));
        assert_eq!(other, Grants::default());
        // Who says nothing is left as he is.
        assert_eq!(Manifest::default().narrow(&granted), granted);
        let silent = Manifest::parse("[wants]\n").unwrap();
        assert_eq!(silent.narrow(&granted), granted);
    }

    #[test]
    fn what_is_lacking_is_told_as_it_would_be_granted() {
        let manifest = Manifest::parse(WANTS).unwrap();
        let imported = [
            Capability::Log,
            Capability::Model,
            Capability::State,
            Capability::Http,
        ];
        let lacking = |manifest: &Manifest, arguments: &[&str]| {
            manifest.lacking(&imported, &grants(arguments))
        };
        let wanted = [
            "model=judge",
            "model=teacher",
            "state",
            "http=https://api.example",
        ];
        assert_eq!(lacking(&manifest, &[]), wanted);
        assert_eq!(
            lacking(
                &manifest,
                &["state", "model=judge", "http=https://b.example"]
            ),
            ["model=teacher", "http=https://api.example"]
        );
        assert!(lacking(&manifest, &wanted).is_empty());
        assert!(lacking(&manifest, &["state", "model", "http=https://api.example"]).is_empty());
        let silent = Manifest::default();
        assert_eq!(
            lacking(&silent, &[]),
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
        assert_eq!((narrowed.wall_ms, narrowed.model_calls), (5, 0));
        assert_eq!(narrowed.model_tokens, Limits::default().model_tokens);
        let kept = Budgets::default().narrow(Limits::default());
        assert_eq!(kept, Limits::default());
    }

    #[test]
    fn a_bad_manifest_is_told_by_its_line_and_its_cure() {
        for (text, line, cure) in [
            ("[wants]\nhtpp = []", "line 2", "`http`"),
            ("[want]\nhttp = []", "line 1", "`wants`"),
            (
                "\n[wants]\nhttp = [\"api.example\"]",
                "line 3",
                "https://api.example",
            ),
            ("[wants]\nhttp = \"https://a\"", "line 2", "sequence"),
            ("[wants]\n\nhttp = []", "line 3", "leave the line out"),
            ("[wants]\nmodels = []", "line 2", "leave the line out"),
            ("[wants]\nmodels = [\"\"]", "line 2", "\"judge\""),
            ("[limits]\nwall = 3", "line 2", "`wall_ms`"),
            ("[limits]\nwall_ms = 0", "line 2", "nonzero"),
            ("[limits]\nfuel = -1", "line 2", "nonzero"),
            ("[wants", "line 1", "]"),
        ] {
            let told = Manifest::parse(text).unwrap_err();
            assert!(
                told.starts_with(line) && told.contains(cure),
                "{text}: {told}"
            );
            assert_eq!(told.lines().count(), 1, "{told}");
        }
        let authors = "[plugin]\nname = \"j\"\nlanguage = \"c\"\n[wants]\nmodels = [\"judge\"]";
        assert_eq!(Manifest::parse(authors).unwrap().wants(), ["model=judge"]);
    }

    #[test]
    fn a_manifest_is_found_beside_its_component_and_above_a_build() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let wants = |path: &str| Manifest::of(&dir.path().join(path)).map(|m| m.wants());
        write("beside/plugin.toml", "[wants]\nmodels = [\"a\"]");
        assert_eq!(wants("beside/j.wasm").unwrap(), ["model=a"]);
        // Not of folders below, unless it names the component.
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
        let told = wants("bad/build/j.wasm").unwrap_err().to_string();
        assert!(told.contains("plugin.toml: line 4"), "{told}");
        // Somebody else's is no concern of this component.
        assert!(wants("bad/build/k.wasm").unwrap().is_empty());
        assert!(wants("none/j.wasm").unwrap().is_empty());
    }
}
