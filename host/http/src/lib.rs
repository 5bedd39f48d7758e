//! The HTTP client of the program: reqwest over rustls with ring and Mozilla's root certificates.
//!
//! Also reads what the servers that it talks to have in common: server-sent events and the message of an error. Decides
//! nothing about hosts, sizes or retries; its callers do.
//!
//! ```
//! use std::time::Duration;
//!
//! # fn main() -> reqwest::Result<()> {
//! let client = clawhost_http::client().timeout(Duration::from_secs(10)).build()?;
//! let request = client.get("https://example.com/v1/models").bearer_auth("key").build()?;
//! assert_eq!(request.url().host_str(), Some("example.com"));
//! # Ok(())
//! # }
//! ```

mod sse;

pub use sse::SseDecoder;

use std::error::Error;
use std::sync::{Arc, LazyLock};

use reqwest::ClientBuilder;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

static TLS: LazyLock<ClientConfig> = LazyLock::new(|| {
    let roots: RootCertStore = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
});

/// A client that reaches the server of the URL or none: it follows no redirect, repeats no request and ignores proxies
/// of the environment.
#[allow(
    clippy::disallowed_methods,
    reason = "this is the one place that builds a client"
)]
pub fn client() -> ClientBuilder {
    reqwest::Client::builder()
        .tls_backend_preconfigured(TLS.clone())
        .user_agent(concat!("clawhost/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
}

/// The innermost cause: the outermost is only "error sending request", with the URL.
pub fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Maximum length of a server's message, in characters.
const MAX_MESSAGE: usize = 300;

/// The message of a body that reports an error: the text of its error object if there is one, else its beginning.
pub fn error_message(body: &str) -> String {
    let value: Option<Value> = serde_json::from_str(body).ok();
    let message = value.as_ref().and_then(|value| {
        let places = ["/error/message", "/message", "/error_message", "/detail"];
        places.iter().find_map(|at| value.pointer(at)?.as_str())
    });
    let text = message.unwrap_or(body).trim();
    text.chars().take(MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_an_error_object_is_found() {
        let body = r#"{"error": {"message": "no such model", "type": "not_found"}}"#;
        assert_eq!(error_message(body), "no such model");
        assert_eq!(error_message(r#"{"detail": "busy"}"#), "busy");
        assert_eq!(
            error_message("<h1>Bad gateway</h1>\n"),
            "<h1>Bad gateway</h1>"
        );
        assert_eq!(error_message(&"x".repeat(1000)).len(), MAX_MESSAGE);
    }
}
