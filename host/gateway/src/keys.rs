//! API keys: names, scopes and secrets, and what a server with these keys may listen on.
//!
//! Only digests of the secrets are stored, so that a memory dump reveals none.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

pub(crate) use clawhost_config::Scope;
use sha2::{Digest, Sha256};

use crate::limits::RateLimit;
use crate::origins::AllowedOrigins;

/// An invalid combination of keys, listen address and origins at start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A key without a name.
    #[error("an API key has no name; sessions and logs identify keys by their name")]
    EmptyName,
    /// Two keys with one name would share their sessions.
    #[error(
        "two API keys have the name `{0}`; sessions belong to a key by its name, so give each key its own"
    )]
    DuplicateName(String),
    /// An empty secret would match every client.
    #[error("the key `{0}` has an empty secret; give it at least 16 random characters")]
    EmptySecret(String),
    /// A public address without a key.
    #[error(
        "refusing to listen on {0} without an API key: every client on the network could use and train the model; \
         configure a key (CLAWHOST_API_KEY) or listen on 127.0.0.1"
    )]
    PublicBind(IpAddr),
    /// A public address with a short secret.
    #[error(
        "refusing to listen on {address}: the secret of the key `{name}` has fewer than {min} characters; \
         use a random one, for example from `openssl rand -hex 32`, or listen on 127.0.0.1",
        min = MIN_SECRET
    )]
    ShortSecret {
        /// The key.
        name: String,
        /// The address.
        address: IpAddr,
    },
    /// A public address with one secret for two keys.
    #[error(
        "refusing to listen on {address}: the keys `{first}` and `{second}` have the same secret, so their requests \
         cannot be distinguished; give each a secret of its own, for example from `openssl rand -hex 32`, \
         or remove one of them"
    )]
    SharedSecret {
        /// A key.
        first: String,
        /// The other key.
        second: String,
        /// The address.
        address: IpAddr,
    },
    /// `*` as allowed origin without a key.
    #[error(
        "server.allowed_origins = [\"*\"] without an API key lets every web page that is opened on this machine use \
         and train the model; configure a key (CLAWHOST_API_KEY), or list the origins of the pages"
    )]
    AnyOriginWithoutKey,
}

/// Smallest length of a secret, in characters, for public addresses.
const MIN_SECRET: usize = 16;

/// An API key: a name for logs and sessions, the digest of its secret, scopes, a rate limit and an adapter version.
#[derive(Clone)]
pub struct ApiKey {
    name: String,
    pub(crate) digest: [u8; 32],
    /// Length of the secret in characters.
    length: usize,
    pub(crate) scopes: Vec<Scope>,
    rate: Option<RateLimit>,
    pub(crate) adapter: Option<u64>,
}

impl ApiKey {
    /// A key with these scopes and no rate limit. White space around the secret is trimmed, because HTTP trims header
    /// values too.
    pub fn new(
        name: impl Into<String>,
        secret: &str,
        scopes: impl IntoIterator<Item = Scope>,
    ) -> Result<Self, KeyError> {
        let name = name.into();
        if name.trim().is_empty() {
            return Err(KeyError::EmptyName);
        }
        if secret.trim().is_empty() {
            return Err(KeyError::EmptySecret(name));
        }
        Ok(Self {
            name,
            digest: digest(secret.trim()),
            length: secret.trim().chars().count(),
            scopes: scopes.into_iter().collect(),
            rate: None,
            adapter: None,
        })
    }

    /// Sets the rate limit of the key. Default: none.
    pub fn with_rate(mut self, rate: RateLimit) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Sets the adapter version (0 is the base model) of requests that do not name one. Default: the active version.
    pub fn with_adapter(mut self, version: u64) -> Self {
        self.adapter = Some(version);
        self
    }

    /// The name, which sessions and logs use to identify the key.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn rate(&self) -> Option<RateLimit> {
        self.rate
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey")
            .field("name", &self.name)
            .field("scopes", &self.scopes)
            .field("rate", &self.rate)
            .field("adapter", &self.adapter)
            .finish_non_exhaustive()
    }
}

/// Checks that the names of the keys are unique; the journal identifies keys by name.
///
/// # Errors
/// [`KeyError::DuplicateName`] for the first name that is used twice.
pub fn check_key_names(keys: &[ApiKey]) -> Result<(), KeyError> {
    let mut names = HashSet::new();
    match keys.iter().find(|key| !names.insert(key.name())) {
        Some(key) => Err(KeyError::DuplicateName(key.name.clone())),
        None => Ok(()),
    }
}

/// Checks that a server with these keys may listen on this address. Loopback addresses need no key; others need keys with
/// distinct secrets of at least 16 characters.
///
/// # Errors
/// The first key that is not sufficient, or [`KeyError::PublicBind`] without keys.
pub fn check_bind(address: IpAddr, keys: &[ApiKey]) -> Result<(), KeyError> {
    if address.to_canonical().is_loopback() {
        return Ok(());
    }
    if keys.is_empty() {
        return Err(KeyError::PublicBind(address));
    }
    if let Some(short) = keys.iter().find(|key| key.length < MIN_SECRET) {
        return Err(KeyError::ShortSecret {
            name: short.name.clone(),
            address,
        });
    }
    for (index, second) in keys.iter().enumerate() {
        let mut before = keys.iter().take(index);
        if let Some(first) = before.find(|first| first.digest == second.digest) {
            return Err(KeyError::SharedSecret {
                first: first.name.clone(),
                second: second.name.clone(),
                address,
            });
        }
    }
    Ok(())
}

/// Checks that a server with these keys may allow these origins: `*` requires a key.
///
/// # Errors
/// [`KeyError::AnyOriginWithoutKey`].
pub fn check_origins(origins: &AllowedOrigins, keys: &[ApiKey]) -> Result<(), KeyError> {
    if keys.is_empty() && *origins == AllowedOrigins::Any {
        return Err(KeyError::AnyOriginWithoutKey);
    }
    Ok(())
}

/// The digest by which a secret is stored and compared.
pub(crate) fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_address_requires_a_key() {
        assert!(check_bind("127.0.0.1".parse().unwrap(), &[]).is_ok());
        assert!(check_bind("::1".parse().unwrap(), &[]).is_ok());
        assert!(check_bind("::ffff:127.0.0.1".parse().unwrap(), &[]).is_ok());
        assert!(check_bind("0.0.0.0".parse().unwrap(), &[]).is_err());
        assert!(check_bind("192.168.1.2".parse().unwrap(), &[]).is_err());
        let key = ApiKey::new("app", "0123456789abcdef", [Scope::Chat]).unwrap();
        assert!(check_bind("0.0.0.0".parse().unwrap(), &[key]).is_ok());
    }

    #[test]
    fn public_address_requires_long_distinct_secrets() {
        let key = |name: &str, secret: &str| ApiKey::new(name, secret, Scope::ALL).unwrap();
        let refused = |address: &str, keys: &[ApiKey]| {
            let bound = check_bind(address.parse().unwrap(), keys);
            bound.err().map(|error| error.to_string())
        };
        let short = [
            key("long", "0123456789abcdef"),
            key("short", " 0123456789abcde "),
        ];
        let same = [
            key("a", "0123456789abcdef"),
            key("b", "another-secret-here"),
            key("c", " 0123456789abcdef"),
        ];
        for (keys, parts) in [
            (&short[..], ["`short`", "16 characters", "openssl rand"]),
            (
                &same[..],
                ["`a` and `c`", "same secret", "secret of its own"],
            ),
        ] {
            for address in ["0.0.0.0", "192.168.1.2", "::"] {
                let error = refused(address, keys).unwrap();
                for part in parts {
                    assert!(error.contains(part), "{part} is missing in: {error}");
                }
            }
            for address in ["127.0.0.1", "::1"] {
                assert_eq!(refused(address, keys), None, "{address}");
            }
        }
        assert_eq!(refused("0.0.0.0", &short[..1]), None);
    }

    #[test]
    fn wildcard_origin_requires_a_key() {
        let origins = |list: &[&str]| AllowedOrigins::parse(list).unwrap();
        assert!(check_origins(&origins(&["*"]), &[]).is_err());
        let keys = [ApiKey::new("app", "x", [Scope::Chat]).unwrap()];
        assert!(check_origins(&origins(&["*"]), &keys).is_ok());
        assert!(check_origins(&origins(&["https://app.example"]), &[]).is_ok());
    }

    #[test]
    fn invalid_keys_are_rejected_and_secrets_never_printed() {
        assert_eq!(ApiKey::new(" ", "x", []).unwrap_err(), KeyError::EmptyName);
        assert!(matches!(
            ApiKey::new("a", " ", []).unwrap_err(),
            KeyError::EmptySecret(_)
        ));
        let shown = format!("{:?}", ApiKey::new("app", "secret-of-app", []));
        assert!(!shown.contains("secret-of-app"), "{shown}");
    }
}
