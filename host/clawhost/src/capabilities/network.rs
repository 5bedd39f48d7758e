//! The way out for plugins: one exchange with an address that was checked before.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use clawhost_plugins::{Answer, InboundResponse, Network, NetworkError, OutboundRequest};
use ureq::config::{Config, ConfigBuilder};
use ureq::http::{Request, Uri};
use ureq::typestate::AgentScope;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

/// Exchanges over the machine's network. It follows no redirect, uses no proxy and keeps no
/// connection, so an exchange reaches the address that was checked or none.
pub(crate) struct Internet;

/// A client that goes nowhere by itself: no redirects, no proxy from the environment.
pub(super) fn outward(timeout: Duration) -> ConfigBuilder<AgentScope> {
    Agent::config_builder()
        .max_redirects(0)
        .proxy(None)
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_global(Some(timeout))
}

impl Network for Internet {
    fn resolve(&self, name: String) -> Answer<Result<Vec<IpAddr>, String>> {
        Box::pin(async move {
            let found = tokio::task::spawn_blocking(move || {
                (name.as_str(), 0)
                    .to_socket_addrs()
                    .map(|all| all.map(|one| one.ip()).collect())
                    .map_err(|error| format!("{name} cannot be resolved: {error}"))
            });
            found.await.map_err(|error| error.to_string())?
        })
    }

    fn exchange(&self, request: OutboundRequest) -> Answer<Result<InboundResponse, NetworkError>> {
        Box::pin(async move {
            tokio::task::spawn_blocking(move || exchange(request))
                .await
                .unwrap_or_else(|error| Err(NetworkError::Transport(error.to_string())))
        })
    }
}

/// Answers every name with the address that was checked.
#[derive(Debug)]
struct Checked(SocketAddr);

impl Resolver for Checked {
    fn resolve(
        &self,
        _uri: &Uri,
        _config: &Config,
        _timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let mut addresses = self.empty();
        addresses.push(self.0);
        Ok(addresses)
    }
}

fn exchange(request: OutboundRequest) -> Result<InboundResponse, NetworkError> {
    let config = outward(request.timeout).max_idle_connections(0).build();
    let agent = Agent::with_parts(
        config,
        DefaultConnector::default(),
        Checked(request.address),
    );
    let mut asked = Request::builder()
        .method(request.method.as_str())
        .uri(&request.url);
    for (name, value) in &request.headers {
        asked = asked.header(name, value);
    }
    // A body that nobody wrote is not sent, so that GET stays a plain GET.
    let answer = if request.body.is_empty() {
        agent.run(asked.body(()).map_err(unusable)?)
    } else {
        agent.run(asked.body(request.body).map_err(unusable)?)
    };
    let answer = answer.map_err(failed)?;
    let status = answer.status().as_u16();
    let headers = answer
        .headers()
        .iter()
        .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
        .collect();
    let body = answer
        .into_body()
        .with_config()
        .limit(request.max_response_bytes as u64)
        .read_to_vec()
        .map_err(failed)?;
    Ok(InboundResponse {
        status,
        headers,
        body,
    })
}

fn unusable(error: ureq::http::Error) -> NetworkError {
    NetworkError::Transport(format!("the request cannot be sent: {error}"))
}

fn failed(error: Error) -> NetworkError {
    match error {
        Error::Timeout(_) => NetworkError::Timeout,
        Error::BodyExceedsLimit(_) => NetworkError::TooLarge,
        other => NetworkError::Transport(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Answers one request with these bytes and hands back what was asked.
    fn answering(bytes: Vec<u8>) -> (SocketAddr, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = vec![0; 4096];
            let read = stream.read(&mut asked).unwrap();
            // The reader may have had enough before everything is written.
            let _ = stream.write_all(&bytes);
            String::from_utf8_lossy(asked.get(..read).unwrap_or_default()).into_owned()
        });
        (address, served)
    }

    fn request(url: String, address: SocketAddr) -> OutboundRequest {
        OutboundRequest {
            method: "GET".into(),
            url,
            address,
            headers: vec![("x-test".into(), "1".into())],
            body: Vec::new(),
            timeout: Duration::from_secs(20),
            max_response_bytes: 1000,
        }
    }

    #[tokio::test]
    async fn a_name_leads_to_the_address_that_was_checked() {
        let (address, served) =
            answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi".to_vec());
        let url = format!("http://api.example:{}/v1", address.port());
        let answer = Internet.exchange(request(url, address)).await.unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"hi"[..]));
        let asked = served.join().unwrap();
        assert!(
            asked.contains("api.example") && asked.contains("x-test: 1"),
            "{asked}"
        );
    }

    #[tokio::test]
    async fn a_redirect_is_an_answer_and_a_long_body_is_refused() {
        let (address, served) = answering(
            b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"
                .to_vec(),
        );
        let url = format!("http://{address}/");
        let answer = Internet.exchange(request(url, address)).await.unwrap();
        assert_eq!(answer.status, 302);
        served.join().unwrap();

        let mut long = b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n".to_vec();
        long.extend(vec![b'x'; 5000]);
        let (address, served) = answering(long);
        let url = format!("http://{address}/");
        let answer = Internet.exchange(request(url, address)).await;
        assert_eq!(answer, Err(NetworkError::TooLarge));
        served.join().unwrap();
    }
}
