//! Reads JSON bodies with a size limit and a timeout.
//!
//! A body over the limit is rejected with 413. If it is only somewhat too large, the rest is read and discarded, so that
//! the client receives the response and can reuse the connection.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::error::ApiError;

/// How much of a body over the limit is read and discarded, in bytes.
const MAX_DISCARD: usize = 32 << 20;
/// The same for a request that was rejected before its body was read, for example without a key.
const MAX_DISCARD_REJECTED: usize = 1 << 20;
/// Timeout of discarding a body.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the body as one JSON value of at most `max` bytes within `timeout`.
pub(crate) async fn read_json(
    request: Request,
    max: usize,
    timeout: Duration,
) -> Result<Value, ApiError> {
    let checked = check_content_type(request.headers())
        .and_then(|()| check_content_encoding(request.headers()));
    if let Err(error) = checked {
        discard(request).await;
        return Err(error);
    }
    let (parts, body) = request.into_parts();
    let deadline = Instant::now() + timeout;
    let length_hint = content_length(&parts.headers);
    if length_hint.is_some_and(|length| length > max.saturating_add(MAX_DISCARD))
        || (length_hint.is_some_and(|length| length > max)
            && parts.headers.contains_key(header::EXPECT))
    {
        // Too much to discard, or the client waits for `100 Continue` before it sends the body.
        return Err(too_large(max));
    }
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::with_capacity(length_hint.unwrap_or(0).min(max).min(1 << 20));
    loop {
        match next_chunk(&mut stream, deadline).await? {
            None => break,
            Some(chunk) if bytes.len() + chunk.len() <= max => bytes.extend_from_slice(&chunk),
            Some(chunk) => {
                let mut received = bytes.len() + chunk.len();
                drop(bytes);
                while let Ok(Some(chunk)) = next_chunk(&mut stream, deadline).await {
                    received += chunk.len();
                    if received > max.saturating_add(MAX_DISCARD) {
                        break;
                    }
                }
                return Err(too_large(max));
            }
        }
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::bad_request(
            "the body is empty; send one JSON object",
        ));
    }
    serde_json::from_slice(&bytes).map_err(|error| {
        ApiError::bad_request(format!("the body is not valid JSON: {error}")).code("invalid_json")
    })
}

/// Reads and discards the body of a rejected request up to a limit. A server that responds without reading the body has
/// to close the connection, often before the client has read the response.
pub(crate) async fn discard(request: Request) {
    let (parts, body) = request.into_parts();
    let length_hint = content_length(&parts.headers);
    if length_hint.is_some_and(|length| length > MAX_DISCARD_REJECTED)
        || parts.headers.contains_key(header::EXPECT)
    {
        return;
    }
    let deadline = Instant::now() + DISCARD_TIMEOUT;
    let mut stream = body.into_data_stream();
    let mut received = 0;
    while let Ok(Some(chunk)) = next_chunk(&mut stream, deadline).await {
        received += chunk.len();
        if received > MAX_DISCARD_REJECTED {
            break;
        }
    }
}

async fn next_chunk<S>(stream: &mut S, deadline: Instant) -> Result<Option<Bytes>, ApiError>
where
    S: futures_util::Stream<Item = Result<Bytes, axum::Error>> + Unpin,
{
    match timeout_at(deadline, stream.next()).await {
        Ok(None) => Ok(None),
        Ok(Some(Ok(chunk))) => Ok(Some(chunk)),
        Ok(Some(Err(error))) => Err(ApiError::bad_request(format!(
            "the body ended early: {error}"
        ))
        .code("incomplete_body")),
        Err(_) => Err(ApiError::with_status(
            StatusCode::REQUEST_TIMEOUT,
            "request_timeout",
            "timed out reading the request body",
        )),
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let essence = value
        .split(';')
        .next()
        .unwrap_or("")
        .trim()
        .to_ascii_lowercase();
    if essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
    {
        return Ok(());
    }
    let shown: String = value.chars().take(80).collect();
    Err(ApiError::with_status(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        format!("the body must be JSON with `Content-Type: application/json`, not `{shown}`"),
    ))
}

/// Rejects a content encoding that the decompression layer does not support.
fn check_content_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let value = headers.get(header::CONTENT_ENCODING);
    let Some(value) = value.filter(|value| *value != "identity") else {
        return Ok(());
    };
    let shown: String = String::from_utf8_lossy(value.as_bytes())
        .chars()
        .take(80)
        .collect();
    Err(ApiError::with_status(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_content_encoding",
        format!("bodies with `Content-Encoding: {shown}` cannot be read; send gzip, br or none"),
    ))
}

fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

fn too_large(max: usize) -> ApiError {
    ApiError::with_status(
        StatusCode::PAYLOAD_TOO_LARGE,
        "request_too_large",
        format!("the body is larger than the limit of {max} bytes"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    async fn read(content_type: &str, body: impl Into<Body>) -> Result<Value, ApiError> {
        let request = Request::builder()
            .header("content-type", content_type)
            .body(body.into())
            .unwrap();
        read_json(request, 64, Duration::from_secs(5)).await
    }

    #[tokio::test]
    async fn json_body_is_parsed() {
        let value = read("application/json; charset=utf-8", r#" {"a": [1]} "#)
            .await
            .unwrap();
        assert_eq!(value["a"][0], 1);
        assert!(read("application/vnd.api+json", "1").await.is_ok());
    }

    #[tokio::test]
    async fn invalid_json_is_rejected_with_its_position() {
        let error = read("application/json", "{\"a\": }").await.unwrap_err();
        assert_eq!(error.status(), StatusCode::BAD_REQUEST);
        assert!(error.to_string().contains("line 1 column 7"), "{error}");
        assert!(read("application/json", "").await.is_err());
        assert!(
            read("application/json", b"\xff\xfe".to_vec())
                .await
                .is_err()
        );
        let deep = "[".repeat(60);
        assert!(read("application/json", deep).await.is_err());
    }

    #[tokio::test]
    async fn other_content_types_are_rejected() {
        for content_type in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "",
            "json",
        ] {
            let error = read(content_type, "{}").await.unwrap_err();
            assert_eq!(
                error.status(),
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "{content_type}"
            );
        }
    }

    #[tokio::test]
    async fn oversized_body_is_rejected_with_and_without_content_length() {
        let error = read("application/json", "1".repeat(65)).await.unwrap_err();
        assert_eq!(error.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let chunks = (0..70).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"1")));
        let body = Body::from_stream(futures_util::stream::iter(chunks));
        let error = read("application/json", body).await.unwrap_err();
        assert_eq!(error.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn missing_body_times_out() {
        let body =
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        let error = read("application/json", body).await.unwrap_err();
        assert_eq!(error.status(), StatusCode::REQUEST_TIMEOUT);
    }
}
