//! One OpenAI-compatible endpoint, with retries.
//!
//! A request is repeated only where nothing was done for it: no connection was established, or the endpoint returned
//! 429 or 503. The client waits as long as `Retry-After` says, within the timeout of the request. Any other failure may
//! have cost something already and is returned at once.

use std::time::{Duration, Instant};

use reqwest::Client;

use super::network::{internet_client, read_body};

/// Maximum size of a response in bytes.
const MAX_RESPONSE: usize = 64 << 20;
/// Attempts per request.
const ATTEMPTS: u32 = 3;
/// Backoff before the second attempt, where the endpoint does not say; doubles.
const BACKOFF: Duration = Duration::from_millis(500);
/// Maximum backoff that an endpoint can ask for.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error("the endpoint did not answer in time")]
    Timeout,
    #[error("the endpoint cannot be reached: {0}")]
    Unreachable(String),
    #[error("the endpoint answered {status}: {message}")]
    Status { status: u16, message: String },
}

/// A failed attempt.
struct Failure {
    error: EndpointError,
    /// Whether the request may be repeated.
    repeatable: bool,
    /// The endpoint's `Retry-After`.
    retry_after: Option<Duration>,
}

/// A client of one endpoint.
pub(crate) struct Endpoint {
    url: String,
    key: Option<String>,
    client: Client,
    timeout: Duration,
}

impl Endpoint {
    /// `url` is the base with `/v1`, `key` the value of the bearer key, `timeout` the limit of a request with its
    /// retries.
    pub(crate) fn new(url: &str, key: Option<String>, timeout: Duration) -> Self {
        Self {
            url: url.trim_end_matches('/').to_owned(),
            key,
            client: internet_client()
                .build()
                .expect("the options of the client are valid"),
            timeout,
        }
    }

    /// Its base address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Posts JSON and returns the body of a successful response. Dropping the future closes the connection, so that the
    /// endpoint stops generating.
    pub(crate) async fn post(&self, path: &str, body: &str) -> Result<Vec<u8>, EndpointError> {
        let deadline = Instant::now() + self.timeout;
        let mut backoff = BACKOFF;
        for attempt in 1.. {
            let left = deadline.saturating_duration_since(Instant::now());
            let failure = match self.attempt(path, body, left).await {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => failure,
            };
            let wait = failure.retry_after.unwrap_or(backoff).min(MAX_BACKOFF);
            let last = attempt == ATTEMPTS || Instant::now() + wait >= deadline;
            if last || !failure.repeatable {
                return Err(failure.error);
            }
            tokio::time::sleep(wait).await;
            backoff *= 2;
        }
        unreachable!("the last attempt returns")
    }

    async fn attempt(&self, path: &str, body: &str, limit: Duration) -> Result<Vec<u8>, Failure> {
        let mut request = self
            .client
            .post(format!("{}/{path}", self.url))
            .timeout(limit)
            .header("content-type", "application/json")
            .body(body.to_owned());
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await.map_err(|error| failure(&error))?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get("retry-after")
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let body = read_body(response, MAX_RESPONSE).await;
        let bytes = body.map_err(|error| Failure {
            repeatable: false,
            ..failure(&error)
        })?;
        let bytes = bytes.ok_or_else(|| Failure {
            error: EndpointError::Unreachable(format!(
                "its response is longer than {MAX_RESPONSE} bytes"
            )),
            repeatable: false,
            retry_after: None,
        })?;
        if status.is_success() {
            return Ok(bytes);
        }
        let text = String::from_utf8_lossy(&bytes);
        Err(Failure {
            error: EndpointError::Status {
                status: status.as_u16(),
                message: clawhost_http::error_message(&text),
            },
            repeatable: matches!(status.as_u16(), 429 | 503),
            retry_after,
        })
    }
}

fn failure(error: &reqwest::Error) -> Failure {
    Failure {
        repeatable: error.is_connect() && !error.is_timeout(),
        error: if error.is_timeout() {
            EndpointError::Timeout
        } else {
            EndpointError::Unreachable(clawhost_http::root_cause(error))
        },
        retry_after: None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Maps head and body of a request to status line with further headers, and body.
    type Respond = Box<dyn Fn(&str, &str) -> (String, String) + Send>;

    /// A server that answers one connection after the other.
    pub(in crate::capabilities) struct Peer {
        pub(in crate::capabilities) url: String,
        /// Bodies of the requests.
        pub(in crate::capabilities) requests: Arc<Mutex<Vec<String>>>,
    }

    pub(in crate::capabilities) fn peer(
        answer: impl Fn(&str, &str) -> (String, String) + Send + 'static,
    ) -> Peer {
        let answer: Respond = Box::new(answer);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if line.trim().is_empty() {
                        break;
                    }
                    let lower = line.to_ascii_lowercase();
                    if let Some(value) = lower.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    head += &line;
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let body = String::from_utf8(body).unwrap();
                seen.lock().unwrap().push(body.clone());
                let (status, text) = answer(&head, &body);
                let text = format!(
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
                    text.len()
                );
                // A client that has gone does not wait for it.
                let _ = stream.write_all(text.as_bytes());
            }
        });
        Peer { url, requests }
    }

    fn endpoint(url: &str) -> Endpoint {
        Endpoint::new(url, Some("s3cret".to_owned()), Duration::from_secs(20))
    }

    #[tokio::test]
    async fn a_busy_endpoint_is_retried_and_a_failing_one_is_not() {
        let count = Arc::new(Mutex::new(0));
        let times = Arc::clone(&count);
        let busy = peer(move |head, _| {
            assert!(head.contains("Bearer s3cret"), "{head}");
            let mut times = times.lock().unwrap();
            *times += 1;
            match *times {
                1 => ("429 Busy\r\nretry-after: 0".to_owned(), "later".to_owned()),
                _ => ("200 OK".to_owned(), "now".to_owned()),
            }
        });
        assert_eq!(
            endpoint(&busy.url).post("x", "{}").await,
            Ok(b"now".to_vec())
        );
        assert_eq!(*count.lock().unwrap(), 2);
        let broken = peer(|_, _| ("500 Oops".to_owned(), "no".to_owned()));
        let failure = EndpointError::Status {
            status: 500,
            message: "no".to_owned(),
        };
        assert_eq!(endpoint(&broken.url).post("x", "{}").await, Err(failure));
        assert_eq!(broken.requests.lock().unwrap().len(), 1);
    }
}
