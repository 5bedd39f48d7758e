//! Authentication and authorization: named API keys with scopes.
//!
//! Only digests of the secrets are stored, and a secret is compared with every key in constant time, so that neither a
//! memory dump nor timing reveals one. Without API keys every local client has the operator scope; [`check_bind`] then
//! rejects public addresses.

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

/// A permission of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Generate replies, list models, view and end the sessions of this key.
    Chat,
    /// Score the replies of this key through `/v1/feedback`.
    Feedback,
    /// View, score, end and delete the sessions of any key; read metrics and the operator page.
    Operator,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 3] = [Scope::Chat, Scope::Feedback, Scope::Operator];

    /// The name in configuration files.
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
    /// An unknown scope.
    #[error("unknown scope `{0}`; the scopes are chat, feedback and operator")]
    UnknownScope(String),
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
    digest: [u8; 32],
    /// Length of the secret in characters.
    length: usize,
    scopes: Vec<Scope>,
    rate: Option<RateLimit>,
    adapter: Option<u64>,
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

/// The client of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Index of the key in the configuration; `None` without API keys.
    pub(crate) key: Option<usize>,
    name: Option<String>,
    scopes: Vec<Scope>,
    /// Adapter version of the key, if set.
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

    /// A client without a key on a public path; has no scopes.
    pub(crate) fn anonymous() -> Self {
        Self {
            key: None,
            name: None,
            scopes: Vec::new(),
            adapter: None,
        }
    }

    /// Whether error details with file paths and hosts are shown: only with an operator's key, not to local clients
    /// without one.
    pub(crate) fn can_see_details(&self) -> bool {
        self.key.is_some() && self.has_scope(Scope::Operator)
    }

    /// The name of the key, which the journal records.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn has_scope(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    pub(crate) fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.has_scope(scope) {
            return Ok(());
        }
        Err(ApiError::forbidden(
            "missing_scope",
            format!(
                "the key `{}` does not have the scope `{scope}`, which this path requires",
                self.name().unwrap_or("-")
            ),
        ))
    }

    /// Whether the caller can access a session or turn of the key `owner`. The scope of the path is checked separately.
    /// Inaccessible records are reported as not found.
    pub(crate) fn can_access(&self, owner: Option<&str>) -> bool {
        self.has_scope(Scope::Operator) || self.owns(owner)
    }

    /// Whether the record belongs to the caller's key.
    pub(crate) fn owns(&self, owner: Option<&str>) -> bool {
        match &self.name {
            Some(name) => owner == Some(name),
            // Without API keys there is one owner; records of keys configured earlier do not belong to it.
            None => owner.is_none() && self.has_scope(Scope::Operator),
        }
    }
}

/// Authenticates a request. `basic` also accepts HTTP Basic with the key as the password, because browsers can prompt for
/// that; it is used for read-only pages only.
pub(crate) fn authenticate(
    keys: &[ApiKey],
    headers: &HeaderMap,
    basic: bool,
) -> Result<Caller, ApiError> {
    if keys.is_empty() {
        return Ok(Caller::local());
    }
    let Some(secret) = secret_from_headers(headers, basic) else {
        return Err(ApiError::unauthorized(
            "missing API key; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
        ));
    };
    let matching_key =
        find_key(keys, &secret).and_then(|position| Some((position, keys.get(position)?)));
    match matching_key {
        Some((position, key)) => Ok(Caller {
            key: Some(position),
            name: Some(key.name.clone()),
            scopes: key.scopes.clone(),
            adapter: key.adapter,
        }),
        None => Err(ApiError::unauthorized("invalid API key")),
    }
}

/// Index of the key with this secret. Compares every key, so that the duration does not depend on the result.
fn find_key(keys: &[ApiKey], secret: &str) -> Option<usize> {
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

fn secret_from_headers(headers: &HeaderMap, basic: bool) -> Option<String> {
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
    fn key_is_found_by_its_secret() {
        let caller = authenticate(
            &keys(),
            &headers("authorization", "bearer  secret-of-ops"),
            false,
        )
        .unwrap();
        assert_eq!((caller.key, caller.name()), (Some(1), Some("ops")));
        let caller = authenticate(&keys(), &headers("x-api-key", "secret-of-app"), false).unwrap();
        assert_eq!((caller.key, caller.name()), (Some(0), Some("app")));
    }

    #[test]
    fn invalid_missing_and_malformed_keys_are_rejected() {
        for value in [
            "Bearer nope",
            "Bearer",
            "Bearer ",
            "secret-of-app",
            "Basic YTpzZWNyZXQtb2YtYXBw",
            "Bearer secret-of-ap",
        ] {
            let error = authenticate(&keys(), &headers("authorization", value), false).unwrap_err();
            assert_eq!(error.status(), StatusCode::UNAUTHORIZED, "{value}");
        }
        assert!(authenticate(&keys(), &HeaderMap::new(), false).is_err());
    }

    #[test]
    fn basic_auth_is_accepted_for_read_only_pages() {
        // "a:secret-of-app"
        let headers = headers("authorization", "Basic YTpzZWNyZXQtb2YtYXBw");
        assert_eq!(
            authenticate(&keys(), &headers, true).unwrap().name(),
            Some("app")
        );
    }

    #[test]
    fn local_caller_has_all_scopes_without_keys() {
        let caller = authenticate(&[], &HeaderMap::new(), false).unwrap();
        assert_eq!(caller.name(), None);
        assert!(Scope::ALL.iter().all(|scope| caller.has_scope(*scope)));
    }

    #[test]
    fn scopes_and_ownership_are_enforced() {
        let caller = authenticate(&keys(), &headers("x-api-key", "secret-of-app"), false).unwrap();
        assert!(caller.require(Scope::Chat).is_ok());
        let error = caller.require(Scope::Operator).unwrap_err();
        assert_eq!(error.status(), StatusCode::FORBIDDEN);
        assert!(error.to_string().contains("operator"), "{error}");
        for (owner, own) in [(Some("app"), true), (Some("ops"), false), (None, false)] {
            assert_eq!((caller.can_access(owner), caller.owns(owner)), (own, own));
        }
        let operator =
            authenticate(&keys(), &headers("x-api-key", "secret-of-ops"), false).unwrap();
        assert!(operator.can_access(Some("app")) && operator.can_access(None));
        assert!(!operator.owns(Some("app")) && !operator.owns(None));
        let local = Caller::local();
        assert!(local.can_access(Some("app")) && local.owns(None) && !local.owns(Some("app")));
        assert!(!Caller::anonymous().owns(None) && !Caller::anonymous().can_access(None));
    }

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
        assert!(check_origins(&origins(&["*"]), &keys()).is_ok());
        assert!(check_origins(&origins(&["https://app.example"]), &[]).is_ok());
    }

    #[test]
    fn invalid_keys_are_rejected_and_secrets_never_printed() {
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
    fn base64_decoding_is_lenient_about_padding() {
        assert_eq!(decode_base64("YTpi").unwrap(), b"a:b");
        assert_eq!(decode_base64("YTpiYw==").unwrap(), b"a:bc");
        assert_eq!(decode_base64("YTpiYw").unwrap(), b"a:bc");
        assert!(decode_base64("Y!pi").is_none());
    }
}
