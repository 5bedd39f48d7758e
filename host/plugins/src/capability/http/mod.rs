//! `http`: bounded exchanges with the origins that a component was granted.
//!
//! Requests are checked against the grants here, before anything is sent. The binary passes a [`Network`] that resolves
//! names and runs one exchange with the address that was checked. Redirects are responses like any other and are not
//! followed.

mod address;
mod host;
pub(crate) mod policy;
pub(crate) mod redact;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::capability::Answer;
use crate::grants::Grants;

/// The network, passed by the binary. Without one, a component that imports `http` is rejected at load.
pub trait Network: Send + Sync {
    /// Resolves a host name.
    fn resolve(&self, name: String) -> Answer<Result<Vec<IpAddr>, String>>;

    /// Runs one exchange with `request.address`, whatever the name resolves to by now. It follows no redirect and uses no
    /// proxy.
    fn exchange(&self, request: OutboundRequest) -> Answer<Result<InboundResponse, NetworkError>>;

    /// Returns a scripted answer to a request, for plugin tests. Nothing is sent then, so secrets and addresses are not
    /// checked, and origins only if the grants have any. The default returns None: the request is sent.
    fn scripted_answer(
        &self,
        _request: &HttpRequest,
    ) -> Option<Result<InboundResponse, NetworkError>> {
        None
    }

    /// Called after every exchange, with the answer that the guest receives. The default does nothing.
    fn observe(&self, _request: &HttpRequest, _answer: &Result<InboundResponse, NetworkError>) {}
}

/// A request as the guest sent it, with `{{secret:NAME}}` in place of secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// The method.
    pub method: String,
    /// The URL.
    pub url: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// One exchange that may take place.
#[derive(Clone, PartialEq, Eq)]
pub struct OutboundRequest {
    /// Upper case.
    pub method: String,
    /// Absolute, http or https.
    pub url: String,
    /// The address that was checked, with the URL's port.
    pub address: SocketAddr,
    /// Names in lower case. May hold secrets.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Timeout of the whole exchange.
    pub timeout: Duration,
    /// Maximum bytes of the body; more are [`NetworkError::TooLarge`].
    pub max_response_bytes: usize,
}

impl std::fmt::Debug for OutboundRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("OutboundRequest")
            .field("method", &self.method)
            .field("url", &self.url)
            .field("address", &self.address)
            .field("headers", &names)
            .field("body", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// The response to an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboundResponse {
    /// Status code.
    pub status: u16,
    /// Headers whose values are text.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkError {
    /// The body is longer than allowed.
    #[error("the answer is too large")]
    TooLarge,
    /// The timeout expired.
    #[error("no answer in time")]
    Timeout,
    /// The connection failed.
    #[error("{0}")]
    Transport(String),
}

/// The network and the grants that limit it.
#[derive(Clone)]
pub(crate) struct HttpGrant {
    pub(crate) network: Arc<dyn Network>,
    pub(crate) grants: Arc<Grants>,
}
