//! What keeps foreign web pages out while no keys are configured.
//!
//! A server on a loopback address is reachable by every page that the user's browser opens: by a plain
//! cross-origin request, or under a name that an attacker resolves to 127.0.0.1 (DNS rebinding). So, as
//! long as there is no key to prove who is calling, the `Host` must be a name of this machine and an
//! `Origin`, where a browser sent one, must be too.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};

use crate::error::ApiError;
use crate::origins::AllowedOrigins;

/// Refuses requests that a foreign web page could have caused. `allowed` are further host names that
/// the operator trusts (for example the one of a reverse proxy), `origins` the pages that may use the server.
pub(crate) fn check(
    headers: &HeaderMap,
    uri: &Uri,
    allowed: &[String],
    origins: &AllowedOrigins,
) -> Result<(), ApiError> {
    // A target in absolute form replaces the Host header.
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
                "no keys are configured, so only requests to a loopback name are served, not to {}; \
                 use 127.0.0.1 or localhost, or configure a key",
                host.map_or_else(
                    || "an unnamed host".to_owned(),
                    |host| format!("`{}`", short(host))
                )
            ),
        ));
    }
    for value in headers.get_all(header::ORIGIN) {
        let origin = value.to_str().unwrap_or("");
        let from_here = origin
            .split_once("://")
            .is_some_and(|(_, authority)| trusted(host_of_authority(authority)));
        if !from_here && !origins.contains(value) {
            return Err(ApiError::forbidden(
                "origin_not_allowed",
                format!(
                    "no keys are configured, so requests from other web pages (`{0}`) are refused; to allow this \
                     page, add its origin to the configuration: server.allowed_origins = [\"{0}\"]",
                    short(origin)
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

fn short(text: &str) -> String {
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
    fn names_of_this_machine_pass() {
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
    fn every_other_name_is_refused() {
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
    fn a_target_in_absolute_form_is_what_counts() {
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
    fn pages_of_other_origins_are_refused() {
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
