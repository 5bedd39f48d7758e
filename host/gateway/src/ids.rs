//! Unguessable ids of replies and requests.

use axum::http::HeaderMap;

/// A new reply id, which clients send back with feedback. `prefix` is the dialect's, such as `chatcmpl-`.
pub(crate) fn response_id(prefix: &str) -> String {
    format!("{prefix}{:032x}", rand::random::<u128>())
}

/// The id of a request: the client's `x-request-id` if it is short and printable, so that the logs of both sides match,
/// else a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> String {
    printable_header(headers, "x-request-id")
        .unwrap_or_else(|| format!("req_{:032x}", rand::random::<u128>()))
}

/// The client's own request id, which its retries repeat: `idempotency-key`, else `x-request-id`.
pub(crate) fn client_request_id(headers: &HeaderMap) -> Option<String> {
    printable_header(headers, "idempotency-key")
        .or_else(|| printable_header(headers, "x-request-id"))
}

/// The value of a header if it is at most 128 printable ASCII characters.
fn printable_header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .filter(|id| !id.is_empty() && id.len() <= 128 && id.bytes().all(|b| b.is_ascii_graphic()))
        .map(str::to_owned)
}

/// The trace id of a W3C `traceparent` header, which is the same for all requests of one agent run.
pub(crate) fn trace_id(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let id = text.split('-').nth(1)?;
    let valid = id.len() == 32
        && id.bytes().all(|byte| byte.is_ascii_hexdigit())
        && id.bytes().any(|byte| byte != b'0');
    valid.then(|| id.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn ids_are_unique() {
        assert_ne!(response_id("x-"), response_id("x-"));
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }

    #[test]
    fn short_printable_client_request_id_is_kept() {
        assert_eq!(request_id(&headers("x-request-id", "abc-1")), "abc-1");
        assert_ne!(request_id(&headers("x-request-id", "a b")), "a b");
        let long = "a".repeat(129);
        assert_ne!(request_id(&headers("x-request-id", &long)), long);
        let both = |name: &'static str| client_request_id(&headers(name, "abc-1"));
        assert_eq!(both("x-request-id").as_deref(), Some("abc-1"));
        assert_eq!(both("idempotency-key").as_deref(), Some("abc-1"));
        assert_eq!(both("x-other"), None);
    }

    #[test]
    fn trace_id_is_parsed_from_traceparent() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let parent = format!("00-{id}-00f067aa0ba902b7-01");
        assert_eq!(
            trace_id(&headers("traceparent", &parent)).as_deref(),
            Some(id)
        );
        for bad in [
            "",
            "00-xyz-1-01",
            "00-00000000000000000000000000000000-1-01",
        ] {
            assert_eq!(trace_id(&headers("traceparent", bad)), None, "{bad}");
        }
    }
}
