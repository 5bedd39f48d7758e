//! Who is calling and what they may do: named keys with scopes.
//!
//! Only digests of the secrets are kept, and a presented secret is compared with every key in constant
//! time, so that neither a memory dump nor a stopwatch gives one away. Without any key everybody on
//! this machine is the operator; [`check_bind`] is what keeps that from reaching a network.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use axum::http::{HeaderMap, header};
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::engine::{DecodePaddingMode, Engine as _};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::error::ApiError;
use crate::limits::RateLimit;
use crate::origins::AllowedOrigins;

/// What a key may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Talk to the model, list models, see and end the sessions that this key opened.
    Chat,
    /// Score the replies that this key received, through `/v1/feedback`.
    Feedback,
    /// See, score, end and forget what any key collected; read metrics and the operator page.
    Operator,
}

impl Scope {
    /// All scopes, for a key that may do everything.
    pub const ALL: [Scope; 3] = [Scope::Chat, Scope::Feedback, Scope::Operator];

    /// The name used in configuration files.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Chat => "chat",
            Scope::Feedback => "feedback",
            Scope::Operator => "operator",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Scope::ALL
            .into_iter()
            .find(|scope| scope.as_str() == text)
            .ok_or_else(|| KeyError::UnknownScope(text.to_owned()))
    }
}

/// Why a key or an address was refused at start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A key without a name could not be told apart in logs and sessions.
    #[error("a key needs a name, so that logs and sessions can say whose request it was")]
    EmptyName,
    /// Two keys with one name would share their sessions.
    #[error("two keys are named `{0}`; sessions belong to a key by its name, so give each its own")]
    DuplicateName(String),
    /// An empty secret would let everybody in.
    #[error("the key `{0}` has an empty secret; give it at least 16 random characters")]
    EmptySecret(String),
    /// Not one of the scopes.
    #[error("unknown scope `{0}`; the scopes are chat, feedback and operator")]
    UnknownScope(String),
    /// A public address without a key.
    #[error(
        "will not listen on {0} without a key, since anybody who reaches it could talk to and train the model; \
         configure a key (CLAWHOST_API_KEY) or listen on 127.0.0.1"
    )]
    PublicBind(IpAddr),
    /// A public address with a secret that can be guessed.
    #[error(
        "will not listen on {address} with the key `{name}`: its secret has fewer than {min} characters and \
         could be guessed; give it a random one, for example from `openssl rand -hex 32`, or listen on 127.0.0.1",
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
        "will not listen on {address} while the keys `{first}` and `{second}` have the same secret, since their \
         requests could not be told apart; give each a secret of its own, for example from `openssl rand -hex 32`, \
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
    /// Every web page without a key.
    #[error(
        "server.allowed_origins = [\"*\"] without a key would let every web page that is opened on this machine talk to \
         and train the model; configure a key (CLAWHOST_API_KEY), or name the origins of the pages"
    )]
    AnyOriginWithoutKey,
}

/// Characters that a secret has at least where the network reaches it.
const MIN_SECRET: usize = 16;

/// One key: a name for logs and sessions, the digest of its secret, scopes, a rate limit and an adapter.
#[derive(Clone)]
pub struct ApiKey {
    name: String,
    digest: [u8; 32],
    /// Characters of the secret.
    length: usize,
    scopes: Vec<Scope>,
    rate: Option<RateLimit>,
    adapter: Option<u64>,
}

impl ApiKey {
    /// A key with these scopes and no rate limit. Leading and trailing white space of the secret is
    /// dropped, because HTTP drops it too.
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

    /// The same key with a rate limit of its own. Default: none.
    pub fn with_rate(mut self, rate: RateLimit) -> Self {
        self.rate = Some(rate);
        self
    }

    /// The same key, whose requests are served by this adapter version (0 is the base model) where they name none.
    /// Default: the active one.
    pub fn with_adapter(mut self, version: u64) -> Self {
        self.adapter = Some(version);
        self
    }

    /// The name, which is what sessions and logs keep of the key.
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

/// Says whether these keys can be told apart in the record, which knows them by name.
///
/// # Errors
/// [`KeyError::DuplicateName`] for the first name that is used twice.
pub fn check_names(keys: &[ApiKey]) -> Result<(), KeyError> {
    let mut names = HashSet::new();
    match keys.iter().find(|key| !names.insert(key.name())) {
        Some(key) => Err(KeyError::DuplicateName(key.name.clone())),
        None => Ok(()),
    }
}

/// Checks that a server with these keys may listen on this address. Loopback addresses may be used without a key;
/// others need keys of at least 16 characters, each with a secret of its own.
///
/// # Errors
/// The first key that does not suffice, or that there is none.
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

/// Checks that a server with these keys may be used by pages of these origins: by every page only with a key.
///
/// # Errors
/// [`KeyError::AnyOriginWithoutKey`].
pub fn check_origins(origins: &AllowedOrigins, keys: &[ApiKey]) -> Result<(), KeyError> {
    if keys.is_empty() && *origins == AllowedOrigins::Any {
        return Err(KeyError::AnyOriginWithoutKey);
    }
    Ok(())
}

/// Who sent a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Position of the key in the configuration; `None` when no keys are configured.
    pub(crate) key: Option<usize>,
    name: Option<String>,
    scopes: Vec<Scope>,
    /// Adapter version of the key, if it has one.
    pub(crate) adapter: Option<u64>,
}

impl Caller {
    fn local() -> Self {
        Self {
            key: None,
            name: None,
            scopes: Scope::ALL.to_vec(),
            adapter: None,
        }
    }

    /// Somebody who gave no key where none is needed; may do nothing else.
    pub(crate) fn nobody() -> Self {
        Self {
            key: None,
            name: None,
            scopes: Vec::new(),
            adapter: None,
        }
    }

    /// Whether faults are shown with the files and hosts that they are about: only to who proves to be the operator,
    /// also where everybody on this machine may do all.
    pub(crate) fn sees_details(&self) -> bool {
        self.key.is_some() && self.may(Scope::Operator)
    }

    /// The name of the key, which is what the journal keeps.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    pub(crate) fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.may(scope) {
            return Ok(());
        }
        Err(ApiError::forbidden(
            "missing_scope",
            format!(
                "the key `{}` lacks the scope `{scope}` that this path needs",
                self.name().unwrap_or("-")
            ),
        ))
    }

    /// Whether a session or turn of this key may be shown to, scored or changed by the caller; whoever calls this has
    /// checked the scope of the path. What may not be reached is answered as if it did not exist.
    pub(crate) fn may_reach(&self, owner: Option<&str>) -> bool {
        self.may(Scope::Operator) || self.owns(owner)
    }

    /// Whether this key is the caller's own.
    pub(crate) fn owns(&self, owner: Option<&str>) -> bool {
        match &self.name {
            Some(name) => owner == Some(name),
            // Without keys there is one owner, and what keys brought before is not theirs.
            None => owner.is_none() && self.may(Scope::Operator),
        }
    }
}

/// Finds the caller of a request. `basic` also accepts HTTP Basic with the key as the password, which
/// is the only way a browser can be asked for one; it is for pages that change nothing.
pub(crate) fn identify(
    keys: &[ApiKey],
    headers: &HeaderMap,
    basic: bool,
) -> Result<Caller, ApiError> {
    if keys.is_empty() {
        return Ok(Caller::local());
    }
    let Some(secret) = presented_secret(headers, basic) else {
        return Err(ApiError::unauthorized(
            "no key given; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
        ));
    };
    let found = find(keys, &secret).and_then(|position| Some((position, keys.get(position)?)));
    match found {
        Some((position, key)) => Ok(Caller {
            key: Some(position),
            name: Some(key.name.clone()),
            scopes: key.scopes.clone(),
            adapter: key.adapter,
        }),
        None => Err(ApiError::unauthorized(
            "the key given is not one of the keys of this server",
        )),
    }
}

/// Position of the key with this secret. Looks at every key whatever it finds, so that the time taken
/// says nothing.
fn find(keys: &[ApiKey], secret: &str) -> Option<usize> {
    let presented = digest(secret);
    let mut position = u32::MAX;
    for (index, key) in keys.iter().enumerate() {
        let same = key.digest.ct_eq(&presented);
        position.conditional_assign(&u32::try_from(index).unwrap_or(u32::MAX), same);
    }
    (position != u32::MAX).then_some(position as usize)
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

fn presented_secret(headers: &HeaderMap, basic: bool) -> Option<String> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let text = value.to_str().ok()?.trim();
        let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(rest.trim().to_owned());
        }
        if basic && scheme.eq_ignore_ascii_case("basic") {
            let decoded = String::from_utf8(decode_base64(rest.trim())?).ok()?;
            return decoded
                .split_once(':')
                .map(|(_, password)| password.trim().to_owned());
        }
        return None;
    }
    headers
        .get("x-api-key")
        .and_then(|value| value.to_str().ok())
        .map(|text| text.trim().to_owned())
}

/// Standard base64 with or without padding; `None` for anything else.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let lenient = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&alphabet::STANDARD, lenient)
        .decode(text)
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderValue, StatusCode};

    fn keys() -> Vec<ApiKey> {
        vec![
            ApiKey::new("app", "secret-of-app", [Scope::Chat]).unwrap(),
            ApiKey::new("ops", "secret-of-ops", Scope::ALL).unwrap(),
        ]
    }

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn finds_the_key_by_its_secret() {
        let caller = identify(
            &keys(),
            &headers("authorization", "bearer  secret-of-ops"),
            false,
        )
        .unwrap();
        assert_eq!((caller.key, caller.name()), (Some(1), Some("ops")));
        let caller = identify(&keys(), &headers("x-api-key", "secret-of-app"), false).unwrap();
        assert_eq!((caller.key, caller.name()), (Some(0), Some("app")));
    }

    #[test]
    fn refuses_wrong_missing_and_malformed_keys() {
        for value in [
            "Bearer nope",
            "Bearer",
            "Bearer ",
            "secret-of-app",
            "Basic YTpzZWNyZXQtb2YtYXBw",
            "Bearer secret-of-ap",
        ] {
            let error = identify(&keys(), &headers("authorization", value), false).unwrap_err();
            assert_eq!(error.status(), StatusCode::UNAUTHORIZED, "{value}");
        }
        assert!(identify(&keys(), &HeaderMap::new(), false).is_err());
    }

    #[test]
    fn a_browser_may_use_basic_where_nothing_changes() {
        // "a:secret-of-app"
        let headers = headers("authorization", "Basic YTpzZWNyZXQtb2YtYXBw");
        assert_eq!(
            identify(&keys(), &headers, true).unwrap().name(),
            Some("app")
        );
    }

    #[test]
    fn without_keys_everybody_here_is_the_operator() {
        let caller = identify(&[], &HeaderMap::new(), false).unwrap();
        assert_eq!(caller.name(), None);
        assert!(Scope::ALL.iter().all(|scope| caller.may(*scope)));
    }

    #[test]
    fn scopes_are_enforced_and_owners_see_their_own() {
        let caller = identify(&keys(), &headers("x-api-key", "secret-of-app"), false).unwrap();
        assert!(caller.require(Scope::Chat).is_ok());
        let error = caller.require(Scope::Operator).unwrap_err();
        assert_eq!(error.status(), StatusCode::FORBIDDEN);
        assert!(error.to_string().contains("operator"), "{error}");
        for (owner, own) in [(Some("app"), true), (Some("ops"), false), (None, false)] {
            assert_eq!((caller.may_reach(owner), caller.owns(owner)), (own, own));
        }
        let operator = identify(&keys(), &headers("x-api-key", "secret-of-ops"), false).unwrap();
        assert!(operator.may_reach(Some("app")) && operator.may_reach(None));
        assert!(!operator.owns(Some("app")) && !operator.owns(None));
        let local = Caller::local();
        assert!(local.may_reach(Some("app")) && local.owns(None) && !local.owns(Some("app")));
        assert!(!Caller::nobody().owns(None) && !Caller::nobody().may_reach(None));
    }

    #[test]
    fn a_public_address_needs_a_key() {
        assert!(check_bind("127.0.0.1".parse().unwrap(), &[]).is_ok());
        assert!(check_bind("::1".parse().unwrap(), &[]).is_ok());
        assert!(check_bind("::ffff:127.0.0.1".parse().unwrap(), &[]).is_ok());
        assert!(check_bind("0.0.0.0".parse().unwrap(), &[]).is_err());
        assert!(check_bind("192.168.1.2".parse().unwrap(), &[]).is_err());
        let key = ApiKey::new("app", "0123456789abcdef", [Scope::Chat]).unwrap();
        assert!(check_bind("0.0.0.0".parse().unwrap(), &[key]).is_ok());
    }

    #[test]
    fn a_public_address_needs_long_secrets_that_differ() {
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
    fn every_page_needs_a_key() {
        let origins = |list: &[&str]| AllowedOrigins::parse(list).unwrap();
        assert!(check_origins(&origins(&["*"]), &[]).is_err());
        assert!(check_origins(&origins(&["*"]), &keys()).is_ok());
        assert!(check_origins(&origins(&["https://app.example"]), &[]).is_ok());
    }

    #[test]
    fn bad_keys_are_refused_when_configured_and_never_printed() {
        assert_eq!(ApiKey::new(" ", "x", []).unwrap_err(), KeyError::EmptyName);
        assert!(matches!(
            ApiKey::new("a", " ", []).unwrap_err(),
            KeyError::EmptySecret(_)
        ));
        assert!("admin".parse::<Scope>().is_err());
        let shown = format!("{:?}", keys());
        assert!(!shown.contains("secret-of-app"), "{shown}");
    }

    #[test]
    fn base64_is_decoded_or_refused() {
        assert_eq!(decode_base64("YTpi").unwrap(), b"a:b");
        assert_eq!(decode_base64("YTpiYw==").unwrap(), b"a:bc");
        assert_eq!(decode_base64("YTpiYw").unwrap(), b"a:bc");
        assert!(decode_base64("Y!pi").is_none());
    }
}
