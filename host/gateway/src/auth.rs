//! Authentication and authorization of requests.
//!
//! A secret is compared with every key in constant time, so that timing reveals none. Without API keys every local client
//! has the operator scope; [`check_bind`](crate::check_bind) then rejects public addresses.

use axum::http::{HeaderMap, header};
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::engine::{DecodePaddingMode, Engine as _};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::error::ApiError;
use crate::keys::{ApiKey, Scope, digest};

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
    let position =
        find_key(keys, &secret).ok_or_else(|| ApiError::unauthorized("invalid API key"))?;
    let key = &keys[position];
    Ok(Caller {
        key: Some(position),
        name: Some(key.name().to_owned()),
        scopes: key.scopes.clone(),
        adapter: key.adapter,
    })
}

/// Index of the key with this secret. Compares every key, so that the duration does not depend on the result.
fn find_key(keys: &[ApiKey], secret: &str) -> Option<usize> {
    let presented = digest(secret);
    let mut position = u32::MAX;
    for (index, key) in keys.iter().enumerate() {
        let same = key.digest.ct_eq(&presented);
        position.conditional_assign(
            &u32::try_from(index).expect("fewer keys than u32::MAX"),
            same,
        );
    }
    (position != u32::MAX).then_some(position as usize)
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
    fn base64_decoding_is_lenient_about_padding() {
        assert_eq!(decode_base64("YTpi").unwrap(), b"a:b");
        assert_eq!(decode_base64("YTpiYw==").unwrap(), b"a:bc");
        assert_eq!(decode_base64("YTpiYw").unwrap(), b"a:bc");
        assert!(decode_base64("Y!pi").is_none());
    }
}
