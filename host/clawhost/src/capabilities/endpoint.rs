//! One OpenAI-compatible endpoint: a question, and what is done while it has no time.
//!
//! A question is asked again only where nothing was done for it: nobody answered the connection, or the endpoint said
//! 429 or 503. It is waited as long as `Retry-After` says, within the time that the question has. Whatever else goes
//! wrong may have cost something already, and is told at once.

use std::time::{Duration, Instant};

use ureq::{Agent, Error};

use super::network::outward;

/// Most bytes of an answer.
const MAX_ANSWER: u64 = 64 << 20;
/// Times that a question is asked.
const TRIES: u32 = 3;
/// Wait before the second time, where the endpoint does not say; doubles.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest wait that is taken from an endpoint.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Longest excerpt of what an endpoint said.
const EXCERPT: usize = 300;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error("the endpoint did not answer in time")]
    Timeout,
    #[error("the endpoint cannot be reached: {0}")]
    Unreachable(String),
    #[error("the endpoint answered {status}: {said}")]
    Status { status: u16, said: String },
}

/// Where to ask.
pub(crate) struct Endpoint {
    url: String,
    key: Option<String>,
    agent: Agent,
    timeout: Duration,
}

/// Closes the connections of a question when it is dropped.
pub(crate) struct Abort(Option<Agent>);

impl Drop for Abort {
    fn drop(&mut self) {
        if let Some(agent) = self.0.take() {
            agent.shutdown();
        }
    }
}

impl Endpoint {
    /// `url` is the base with `/v1`, `key` the value of the bearer key.
    pub(crate) fn new(url: &str, key: Option<String>, timeout: Duration) -> Self {
        Self {
            url: url.trim_end_matches('/').to_owned(),
            key,
            agent: outward(timeout).build().into(),
            timeout,
        }
    }

    /// The same endpoint for one question, over a connection of its own, and what ends the question when it is dropped:
    /// the connection is closed, so that the endpoint stops generating.
    pub(crate) fn for_one_question(&self) -> (Self, Abort) {
        let agent: Agent = outward(self.timeout).build().into();
        let one = Self {
            url: self.url.clone(),
            key: self.key.clone(),
            agent: agent.clone(),
            timeout: self.timeout,
        };
        (one, Abort(Some(agent)))
    }

    /// Its base address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Asks, and gives the bytes of a successful answer.
    pub(crate) fn ask(&self, path: &str, body: &str) -> Result<Vec<u8>, NoAnswer> {
        let deadline = Instant::now() + self.timeout;
        let mut pause = PAUSE;
        let mut tries = 1;
        loop {
            let (failure, wait) = match self.ask_once(path, body) {
                Ok(bytes) => return Ok(bytes),
                Err((failure, wait)) => (failure, wait),
            };
            let Some(asked) = wait.filter(|_| tries < TRIES) else {
                return Err(failure);
            };
            let wait = asked.unwrap_or(pause).min(LONGEST_PAUSE);
            if Instant::now() + wait >= deadline {
                return Err(failure);
            }
            #[allow(
                clippy::disallowed_methods,
                reason = "the endpoint asked for this pause; there is nothing here to wait on"
            )]
            std::thread::sleep(wait);
            pause *= 2;
            tries += 1;
        }
    }

    /// With an error: whether it may be asked again, and after what wait the endpoint said.
    fn ask_once(
        &self,
        path: &str,
        body: &str,
    ) -> Result<Vec<u8>, (NoAnswer, Option<Option<Duration>>)> {
        let mut asked = self
            .agent
            .post(format!("{}/{path}", self.url))
            .header("content-type", "application/json");
        if let Some(key) = &self.key {
            asked = asked.header("authorization", format!("Bearer {key}"));
        }
        let failed = |error: Error| match error {
            Error::Timeout(_) => (NoAnswer::Timeout, None),
            Error::ConnectionFailed | Error::HostNotFound => {
                (NoAnswer::Unreachable(error.to_string()), Some(None))
            }
            Error::Io(cause) if cause.kind() == std::io::ErrorKind::ConnectionRefused => {
                (NoAnswer::Unreachable(cause.to_string()), Some(None))
            }
            other => (NoAnswer::Unreachable(other.to_string()), None),
        };
        let answer = asked.send(body).map_err(failed)?;
        let status = answer.status();
        let wait = answer
            .headers()
            .get("retry-after")
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let bytes = answer
            .into_body()
            .with_config()
            .limit(MAX_ANSWER)
            .read_to_vec()
            .map_err(failed)?;
        if status.is_success() {
            return Ok(bytes);
        }
        let said = String::from_utf8_lossy(&bytes);
        let said = said.chars().take(EXCERPT).collect();
        let status = status.as_u16();
        let again = matches!(status, 429 | 503).then_some(wait);
        Err((NoAnswer::Status { status, said }, again))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What was asked, and how to answer it: status line, further headers and body.
    type Answering = Box<dyn Fn(&str, &str) -> (String, String) + Send>;

    /// A server that answers one connection after the other.
    pub(in crate::capabilities) struct Peer {
        pub(in crate::capabilities) url: String,
        /// Bodies of the questions.
        pub(in crate::capabilities) asked: Arc<Mutex<Vec<String>>>,
    }

    pub(in crate::capabilities) fn peer(
        answer: impl Fn(&str, &str) -> (String, String) + Send + 'static,
    ) -> Peer {
        let answer: Answering = Box::new(answer);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
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
                let (status, said) = answer(&head, &body);
                let text = format!(
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{said}",
                    said.len()
                );
                // A client that has gone does not wait for it.
                let _ = stream.write_all(text.as_bytes());
            }
        });
        Peer { url, asked }
    }

    fn endpoint(url: &str) -> Endpoint {
        Endpoint::new(url, Some("s3cret".to_owned()), Duration::from_secs(20))
    }

    #[test]
    fn a_busy_endpoint_is_asked_again_and_a_failing_one_is_not() {
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
        assert_eq!(endpoint(&busy.url).ask("x", "{}"), Ok(b"now".to_vec()));
        assert_eq!(*count.lock().unwrap(), 2);
        let broken = peer(|_, _| ("500 Oops".to_owned(), "no".to_owned()));
        let failure = NoAnswer::Status {
            status: 500,
            said: "no".to_owned(),
        };
        assert_eq!(endpoint(&broken.url).ask("x", "{}"), Err(failure));
        assert_eq!(broken.asked.lock().unwrap().len(), 1);
    }
}
