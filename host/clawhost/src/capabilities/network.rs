//! The network of plugins: one exchange with an address that was checked before.

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use clawhost_plugins::{Answer, InboundResponse, Network, NetworkError, OutboundRequest};
use reqwest::dns::{Name, Resolve, Resolving};
use reqwest::{ClientBuilder, Method, Response};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// Time for a connection to be established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the I/O of plugins: their threads are busy with guests, have a low priority and no I/O driver.
pub(super) static NETWORK_RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("network")
        .enable_all()
        .build()
        .expect("the system has a thread and an epoll descriptor left")
});

/// Runs `work` on [`NETWORK_RUNTIME`]. Dropping the future ends it.
pub(super) async fn on_network<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    let mut task = JoinSet::new();
    task.spawn_on(work, NETWORK_RUNTIME.handle());
    match task.join_next().await.expect("a task was spawned") {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Exchanges over the machine's network. It follows no redirect, uses no proxy and keeps no
/// connection, so an exchange reaches the address that was checked or none.
pub(crate) struct Internet;

/// A client of servers on the internet.
pub(super) fn internet_client() -> ClientBuilder {
    clawhost_http::client().connect_timeout(CONNECT_TIMEOUT)
}

/// Reads a body of at most `limit` bytes; `None` if it is longer.
pub(super) async fn read_body(
    mut response: Response,
    limit: usize,
) -> reqwest::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > limit {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

impl Network for Internet {
    fn resolve(&self, name: String) -> Answer<Result<Vec<IpAddr>, String>> {
        Box::pin(on_network(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await;
            found
                .map(|addresses| addresses.map(|address| address.ip()).collect())
                .map_err(|error| format!("{name} cannot be resolved: {error}"))
        }))
    }

    fn exchange(&self, request: OutboundRequest) -> Answer<Result<InboundResponse, NetworkError>> {
        Box::pin(on_network(exchange(request)))
    }
}

/// Resolves every name to one address.
struct PinnedAddress(SocketAddr);

impl Resolve for PinnedAddress {
    fn resolve(&self, _name: Name) -> Resolving {
        let address = self.0;
        Box::pin(async move { Ok(Box::new(std::iter::once(address)) as _) })
    }
}

async fn exchange(request: OutboundRequest) -> Result<InboundResponse, NetworkError> {
    let method = Method::from_bytes(request.method.as_bytes())
        .map_err(|error| NetworkError::Transport(error.to_string()))?;
    let client = internet_client()
        .dns_resolver(PinnedAddress(request.address))
        .pool_max_idle_per_host(0)
        .timeout(request.timeout)
        .build()
        .map_err(network_error)?;
    let mut outbound = client.request(method, &request.url);
    for (name, value) in &request.headers {
        outbound = outbound.header(name, value);
    }
    // An empty body is not sent, so that GET stays a plain GET.
    if !request.body.is_empty() {
        outbound = outbound.body(request.body);
    }
    let response = outbound.send().await.map_err(network_error)?;
    let status = response.status().as_u16();
    let headers = response
        .headers()
        .iter()
        .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
        .collect();
    let body = read_body(response, request.max_response_bytes).await;
    Ok(InboundResponse {
        status,
        headers,
        body: body.map_err(network_error)?.ok_or(NetworkError::TooLarge)?,
    })
}

fn network_error(error: reqwest::Error) -> NetworkError {
    let cause = clawhost_http::root_cause(&error);
    if error.is_timeout() {
        NetworkError::Timeout
    } else if error.is_builder() {
        NetworkError::Transport(format!("the request cannot be sent: {cause}"))
    } else {
        NetworkError::Transport(cause)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Answers one request with these bytes and returns the request.
    fn respond_once(bytes: Vec<u8>) -> (SocketAddr, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = vec![0; 4096];
            let read = stream.read(&mut received).unwrap();
            // The reader may have had enough before everything is written.
            let _ = stream.write_all(&bytes);
            String::from_utf8_lossy(&received[..read]).into_owned()
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
            respond_once(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi".to_vec());
        let url = format!("http://api.example:{}/v1", address.port());
        let answer = Internet.exchange(request(url, address)).await.unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"hi"[..]));
        let received = served.join().unwrap();
        assert!(
            received.contains("api.example") && received.contains("x-test: 1"),
            "{received}"
        );
    }

    #[tokio::test]
    async fn a_redirect_is_an_answer_and_a_long_body_is_refused() {
        let (address, served) = respond_once(
            b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"
                .to_vec(),
        );
        let url = format!("http://{address}/");
        let answer = Internet.exchange(request(url, address)).await.unwrap();
        assert_eq!(answer.status, 302);
        served.join().unwrap();

        let mut long = b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n".to_vec();
        long.extend(vec![b'x'; 5000]);
        let (address, served) = respond_once(long);
        let url = format!("http://{address}/");
        let answer = Internet.exchange(request(url, address)).await;
        assert_eq!(answer, Err(NetworkError::TooLarge));
        served.join().unwrap();
    }
}
