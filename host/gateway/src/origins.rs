//! Allowed origins for cross-origin resource sharing (CORS).
//!
//! A browser lets a page of another origin send JSON or read a response only if the server allows the origin. Preflight
//! requests carry no API key, so the CORS layer runs before admission.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// How long a browser may cache a preflight response.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// Origins of web pages that may use this server. Default: none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AllowedOrigins {
    /// No page of another origin.
    #[default]
    None,
    /// Pages of these origins, in the form that browsers send.
    List(Vec<HeaderValue>),
    /// Every page.
    Any,
}

/// An invalid origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an origin; write scheme://host or scheme://host:port with nothing after it, such as \
     https://app.example or http://localhost:5173, or only \"*\" for every page"
)]
pub struct OriginError(String);

impl AllowedOrigins {
    /// Parses a list of origins; a single `*` allows every page.
    ///
    /// # Errors
    /// An entry is not the origin of a web page, or `*` is not the only entry.
    pub fn parse<S: AsRef<str>>(listed: &[S]) -> Result<Self, OriginError> {
        let listed: Vec<&str> = listed.iter().map(AsRef::as_ref).collect();
        match listed.as_slice() {
            [] => Ok(Self::None),
            ["*"] => Ok(Self::Any),
            _ => listed
                .into_iter()
                .map(|text| parse_origin(text).ok_or_else(|| OriginError(text.to_owned())))
                .collect::<Result<_, _>>()
                .map(Self::List),
        }
    }

    /// Whether pages of this origin may use the server.
    pub(crate) fn contains(&self, origin: &HeaderValue) -> bool {
        match self {
            Self::None => false,
            Self::List(list) => list.contains(origin),
            Self::Any => true,
        }
    }

    /// The CORS layer; `None` if no other origin is allowed.
    pub(crate) fn layer(&self) -> Option<CorsLayer> {
        let origin = match self {
            Self::None => return None,
            Self::List(list) => AllowOrigin::list(list.iter().cloned()),
            Self::Any => AllowOrigin::any(),
        };
        let exposed = [
            header::RETRY_AFTER,
            HeaderName::from_static("request-id"),
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("x-clawhost-adapter"),
            HeaderName::from_static("x-clawhost-collected"),
            HeaderName::from_static("x-clawhost-session"),
            HeaderName::from_static("x-clawhost-turn"),
        ];
        let layer = CorsLayer::new()
            .allow_origin(origin)
            .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
            // SDKs send their own headers, which differ between versions.
            .allow_headers(AllowHeaders::mirror_request())
            .allow_private_network(true)
            .expose_headers(exposed)
            .max_age(MAX_AGE);
        Some(layer)
    }
}

/// Parses an origin into the form that browsers send: lower case, without the default port of the scheme.
fn parse_origin(text: &str) -> Option<HeaderValue> {
    let text = text.to_ascii_lowercase();
    let (scheme, authority) = text.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let is_authority = !authority.is_empty()
        && authority
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
    if !is_scheme || !is_authority {
        return None;
    }
    let default_port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => "",
    };
    let authority = authority.strip_suffix(default_port).unwrap_or(authority);
    HeaderValue::from_str(&format!("{scheme}://{authority}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_normalized_like_browsers_do() {
        let origins =
            AllowedOrigins::parse(&["HTTPS://App.example:443", "http://localhost:5173"]).unwrap();
        for (origin, allowed) in [
            ("https://app.example", true),
            ("http://localhost:5173", true),
            ("http://app.example", false),
            ("https://app.example:8443", false),
            ("https://app.example.evil.example", false),
            ("http://localhost", false),
            ("null", false),
        ] {
            let value = HeaderValue::from_static(origin);
            assert_eq!(origins.contains(&value), allowed, "{origin}");
        }
        assert!(origins.layer().is_some());
        assert!(AllowedOrigins::default().layer().is_none());
        let any = AllowedOrigins::parse(&["*"]).unwrap();
        assert!(any.contains(&HeaderValue::from_static("null")));
    }

    #[test]
    fn invalid_origins_are_rejected_with_the_expected_format() {
        for wrong in [
            "app.example",
            "https://app.example/",
            "https://app.example/chat",
            "https://",
            "https://a b",
            "null",
            "",
        ] {
            let error = AllowedOrigins::parse(&[wrong]).unwrap_err();
            assert!(error.to_string().contains("scheme://host"), "{error}");
        }
        assert!(AllowedOrigins::parse(&["*", "https://app.example"]).is_err());
    }
}
