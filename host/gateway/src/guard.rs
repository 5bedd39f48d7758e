//! Protects a server without API keys from web pages of other origins.
//!
//! Every page that the user's browser opens can reach a server on a loopback address: by a cross-origin request, or under
//! a name that an attacker resolves to 127.0.0.1 (DNS rebinding). Without API keys, `Host` must therefore be a loopback or
//! configured name, and so must `Origin`, if present.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};

use crate::error::ApiError;
use crate::origins::AllowedOrigins;

/// Rejects requests that a web page of another origin could have sent. `allowed` are additional trusted host names (for
/// example of a reverse proxy), `origins` the allowed CORS origins.
pub(crate) fn check(
    headers: &HeaderMap,
    uri: &Uri,
    allowed: &[String],
    origins: &AllowedOrigins,
) -> Result<(), ApiError> {
    // A target in absolute form takes precedence over the Host header.
    let host = match uri.host() {
        Some(host) => Some(host),
        None => headers
            .get(header::HOST)
            .and_then(|value| value.to_str().ok())
            .map(host_of_authority),
    };
    let trusted = |host: &str| {
        is_loopback_name(host) || allowed.iter().any(|name| name.eq_ignore_ascii_case(host))
    };
    if !host.is_some_and(trusted) {
        return Err(ApiError::forbidden(
            "host_not_allowed",
            format!(
                "host {} is not allowed: without API keys only loopback names are served; \
                 use 127.0.0.1 or localhost, or configure a key",
                host.map_or_else(
                    || "an unnamed host".to_owned(),
                    |host| format!("`{}`", truncate(host))
                )
            ),
        ));
    }
    for value in headers.get_all(header::ORIGIN) {
        let origin = value.to_str().unwrap_or("");
        let is_trusted = origin
            .split_once("://")
            .is_some_and(|(_, authority)| trusted(host_of_authority(authority)));
        if !is_trusted && !origins.contains(value) {
            return Err(ApiError::forbidden(
                "origin_not_allowed",
                format!(
                    "origin `{0}` is not allowed: without API keys requests from other web pages are rejected; to allow \
                     this page, add its origin to the configuration: server.allowed_origins = [\"{0}\"]",
                    truncate(origin)
                ),
            ));
        }
    }
    Ok(())
}

/// The host of `host`, `host:port` or `[v6]:port`.
fn host_of_authority(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(host, _)| host);
    }
    authority
        .rsplit_once(':')
        .map_or(authority, |(host, _)| host)
}

fn is_loopback_name(host: &str) -> bool {
    let host = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    if let Ok(address) = host.parse::<IpAddr>() {
        return address.to_canonical().is_loopback();
    }
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

fn truncate(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn request(host: Option<&str>, origin: Option<&str>) -> Result<(), ApiError> {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        check(
            &headers,
            &Uri::from_static("/v1/models"),
            &["gate.lan".into()],
            &AllowedOrigins::parse(&["https://app.example"]).unwrap(),
        )
    }

    #[test]
    fn loopback_and_configured_hosts_are_allowed() {
        for host in [
            "127.0.0.1:30000",
            "127.0.0.1",
            "127.8.9.1:1",
            "localhost:30000",
            "LOCALHOST",
            "localhost.",
            "app.localhost:3",
            "[::1]:30000",
            "[::1]",
            "gate.lan:80",
        ] {
            assert!(request(Some(host), None).is_ok(), "{host}");
        }
    }

    #[test]
    fn other_hosts_are_rejected() {
        for host in [
            "evil.example:30000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "0.0.0.0:30000",
            "192.168.0.7",
            "notlocalhost",
            "",
            "[::2]:1",
            "[::1",
        ] {
            assert!(request(Some(host), None).is_err(), "{host}");
        }
        assert!(request(None, None).is_err());
    }

    #[test]
    fn absolute_target_overrides_host_header() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
        let check = |target| {
            let origins = AllowedOrigins::None;
            check(&headers, &Uri::from_static(target), &[], &origins)
        };
        assert!(check("http://evil.example/").is_err());
        assert!(check("http://[::1]:3/").is_ok());
    }

    #[test]
    fn other_origins_are_rejected() {
        let host = Some("localhost:30000");
        for origin in [
            "http://localhost:5173",
            "http://127.0.0.1:3",
            "http://[::1]",
            "https://app.example",
        ] {
            assert!(request(host, Some(origin)).is_ok(), "{origin}");
        }
        for origin in [
            "https://evil.example",
            "null",
            "http://localhost.evil.example",
            "https://app.example:8443",
            "",
        ] {
            let error = request(host, Some(origin)).unwrap_err().to_string();
            assert!(error.contains("server.allowed_origins"), "{error}");
        }
    }
}
