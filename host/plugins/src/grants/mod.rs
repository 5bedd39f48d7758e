//! Grants: what the operator allows a component to access, bound to the component's digest.
//!
//! A grant is never bound to a file name: a new build has a new digest and starts without grants. The imports of a
//! component say what it *requests*; this module decides what it *gets*.

mod file;
mod manifest;
mod origin;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub(crate) use manifest::Budgets;

pub use file::{GrantEditor, GrantEntry, GrantFile, GrantFileError};
pub use manifest::{Manifest, ManifestError};
pub use origin::Origin;

/// The placeholder in a suggested command for an origin that the operator has to fill in.
pub const HTTP_PLACEHOLDER: &str = "http=https://HOST";

/// A host interface that a component can import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Capability {
    /// Log lines. Always granted.
    Log,
    /// Identity and settings of the call. Always granted.
    Context,
    /// Completions and scores from models, under a budget.
    Model,
    /// Durable key-value state of the plugin.
    State,
    /// HTTP exchanges with allow-listed origins.
    Http,
    /// Processes in a sandbox.
    Sandbox,
    /// Screenshots and input of a display.
    Display,
}

impl Capability {
    /// The capability of an interface of `clawhost:plugin`.
    pub(crate) fn from_interface(name: &str) -> Option<Capability> {
        Some(match name {
            "log" => Capability::Log,
            "context" => Capability::Context,
            "model" => Capability::Model,
            "state" => Capability::State,
            "http" => Capability::Http,
            "sandbox" => Capability::Sandbox,
            "display" => Capability::Display,
            _ => return None,
        })
    }

    /// The name of its interface, also used in the grants file.
    pub fn name(self) -> &'static str {
        match self {
            Capability::Log => "log",
            Capability::Context => "context",
            Capability::Model => "model",
            Capability::State => "state",
            Capability::Http => "http",
            Capability::Sandbox => "sandbox",
            Capability::Display => "display",
        }
    }

    /// The argument of `clawhost plugin grant` that grants it.
    pub(crate) fn grant_argument(self) -> &'static str {
        match self {
            Capability::Http => HTTP_PLACEHOLDER,
            other => other.name(),
        }
    }

    /// Whether every component gets it, because it accesses nothing outside the call.
    pub fn is_always_granted(self) -> bool {
        matches!(self, Capability::Log | Capability::Context)
    }
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The grants of one component digest.
///
/// The default grants nothing except logging and the call's context.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Grants {
    /// Capabilities it may import.
    pub allow: BTreeSet<Capability>,
    /// Model aliases it may use; empty means all that the host provides.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub models: BTreeSet<String>,
    /// Origins it may exchange HTTP with; empty means none.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub origins: BTreeSet<Origin>,
    /// Secrets that the host fills into its request headers, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretBinding>,
}

/// A secret that the host sends to one origin only. The component never sees its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretBinding {
    /// The environment variable of the host that holds the value.
    pub env: String,
    /// The only origin that it is sent to.
    pub origin: Origin,
    /// The only header that it is sent in, in lower case. Default `authorization`.
    #[serde(default = "SecretBinding::default_header")]
    pub header: String,
}

impl SecretBinding {
    fn default_header() -> String {
        "authorization".to_owned()
    }

    /// Parses `ENV@ORIGIN` or `ENV@ORIGIN#HEADER`.
    fn parse(text: &str) -> Result<SecretBinding, String> {
        let (env, place) = text
            .split_once('@')
            .ok_or_else(|| format!("{text:?} names no origin"))?;
        if env.is_empty() {
            return Err(format!("{text:?} names no environment variable"));
        }
        let (origin, header) = match place.split_once('#') {
            Some((origin, header)) => (origin, header.to_ascii_lowercase()),
            None => (place, SecretBinding::default_header()),
        };
        let token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if header.is_empty() || !header.bytes().all(token) {
            return Err(format!("{header:?} is not a header name"));
        }
        Ok(SecretBinding {
            env: env.to_owned(),
            origin: origin.parse()?,
            header,
        })
    }
}

impl std::fmt::Display for SecretBinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.env, self.origin)?;
        if self.header != SecretBinding::default_header() {
            write!(f, "#{}", self.header)?;
        }
        Ok(())
    }
}

impl Grants {
    /// Whether these grants allow the capability.
    pub(crate) fn covers(&self, capability: Capability) -> bool {
        capability.is_always_granted() || self.allow.contains(&capability)
    }

    /// The grants in `self` that are not in `other`, as arguments of `clawhost plugin grant`.
    pub fn difference(&self, other: &Grants) -> Vec<String> {
        let mut more: Vec<String> = self
            .allow
            .difference(&other.allow)
            .map(|capability| capability.to_string())
            .collect();
        let all =
            |grants: &Grants| grants.allow.contains(&Capability::Model) && grants.models.is_empty();
        if all(self) && other.allow.contains(&Capability::Model) && !all(other) {
            more.push("model".to_owned());
        }
        if !all(other) {
            more.extend(
                self.models
                    .difference(&other.models)
                    .map(|model| format!("model={model}")),
            );
        }
        more.extend(
            self.origins
                .difference(&other.origins)
                .map(|origin| format!("http={origin}")),
        );
        more.extend(
            self.secrets
                .iter()
                .filter(|(name, binding)| other.secrets.get(*name) != Some(binding))
                .map(|(name, binding)| format!("secret={name}:{binding}")),
        );
        more
    }

    /// Adds the grants of `other`. If either allows all models, the result does.
    pub fn merge(&mut self, other: &Grants) {
        let all = [&*self, other]
            .into_iter()
            .any(|grants| grants.allow.contains(&Capability::Model) && grants.models.is_empty());
        self.allow.extend(&other.allow);
        self.models.extend(other.models.iter().cloned());
        if all {
            self.models.clear();
        }
        self.origins.extend(other.origins.iter().cloned());
        let secrets = other.secrets.iter();
        self.secrets
            .extend(secrets.map(|(name, binding)| (name.clone(), binding.clone())));
    }

    /// Adds one argument of `clawhost plugin grant`: `model`, `model=ALIAS`, `state`,
    /// `http=ORIGIN`, `secret=NAME:ENV@ORIGIN[#HEADER]`, `sandbox`, `display`.
    ///
    /// # Errors
    /// A message with the accepted forms.
    pub fn add(&mut self, argument: &str) -> Result<(), String> {
        let (what, value) = match argument.split_once('=') {
            Some((what, value)) => (what, Some(value)),
            None => (argument, None),
        };
        let forms = "expected model, model=ALIAS, state, http=ORIGIN, secret=NAME:ENV@ORIGIN[#HEADER], sandbox or display";
        match (what, value) {
            ("secret", Some(value)) => {
                let (name, rest) = value
                    .split_once(':')
                    .ok_or_else(|| format!("{argument:?} is not a secret; {forms}"))?;
                if !is_secret_name(name) {
                    return Err(format!("{argument:?} is not a secret; {forms}"));
                }
                let binding =
                    SecretBinding::parse(rest).map_err(|reason| format!("{reason}; {forms}"))?;
                self.secrets.insert(name.to_owned(), binding);
            }
            ("http", Some(_)) if argument == HTTP_PLACEHOLDER => {
                return Err(format!(
                    "HOST in {argument} is a placeholder: write the origin that the plugin may access, such as http=https://api.example"
                ));
            }
            ("http", Some(origin)) => {
                self.origins.insert(origin.parse()?);
                self.allow.insert(Capability::Http);
            }
            ("http", None) => {
                return Err("http needs an origin: http=https://api.example".to_owned());
            }
            ("model", Some(alias)) if !alias.is_empty() => {
                self.models.insert(alias.to_owned());
                self.allow.insert(Capability::Model);
            }
            (name, None) => match Capability::from_interface(name) {
                Some(capability) => {
                    self.allow.insert(capability);
                }
                None => return Err(format!("{name:?} is not a capability; {forms}")),
            },
            _ => return Err(format!("{argument:?} is not a grant; {forms}")),
        }
        Ok(())
    }
}

/// Whether the name can be used in `{{secret:NAME}}`: 1 to 64 letters, digits, `_` and `-`.
pub(crate) fn is_secret_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_arguments_round_trip() {
        let mut grants = Grants::default();
        for argument in [
            "state",
            "model=judge",
            "http=https://api.example",
            "secret=KEY:API_KEY@https://api.example",
            "secret=OTHER:API_KEY@https://api.example#X-Api-Key",
        ] {
            grants.add(argument).unwrap();
        }
        assert!(grants.covers(Capability::Model) && grants.covers(Capability::Http));
        assert!(grants.covers(Capability::Log) && !grants.covers(Capability::Sandbox));
        assert_eq!(
            grants.difference(&Grants::default()),
            [
                "model",
                "state",
                "http",
                "model=judge",
                "http=https://api.example",
                "secret=KEY:API_KEY@https://api.example",
                "secret=OTHER:API_KEY@https://api.example#x-api-key"
            ]
        );
        assert!(grants.difference(&grants).is_empty());
        for wrong in [
            "http",
            "http=https://HOST",
            "http=ftp://x",
            "http=https://x/path",
            "model=",
            "secret=A",
            "secret=A:B",
            "secret=a b:C@https://x",
            "secret=A:B@https://x#",
            "secret=A:B@https://x#a b",
            "root",
            "state=1",
        ] {
            assert!(grants.add(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn granting_all_models_includes_each_alias() {
        let grants_of = |arguments: &[&str]| {
            let mut grants = Grants::default();
            for argument in arguments {
                grants.add(argument).unwrap();
            }
            grants
        };
        let (all, some) = (grants_of(&["model"]), grants_of(&["model=judge"]));
        assert_eq!(all.difference(&some), ["model"]);
        assert!(some.difference(&all).is_empty());
        let mut merged = some.clone();
        merged.merge(&grants_of(&[
            "model=teacher",
            "http=https://api.example",
            "secret=A:B@https://c",
        ]));
        assert_eq!(
            merged.difference(&some),
            [
                "http",
                "model=teacher",
                "http=https://api.example",
                "secret=A:B@https://c"
            ]
        );
        merged.merge(&all);
        assert!(merged.difference(&some).contains(&"model".to_owned()));
        assert!(merged.models.is_empty());
    }

    #[test]
    fn grants_round_trip_through_json() {
        let mut grants = Grants::default();
        grants.add("http=http://127.0.0.1:8080").unwrap();
        let text = serde_json::to_string(&grants).unwrap();
        assert_eq!(serde_json::from_str::<Grants>(&text).unwrap(), grants);
        assert!(text.contains("http://127.0.0.1:8080"), "{text}");
    }
}
