//! The pull half of the OCI distribution protocol: GET with a token that the registry asks for, within limits.
//!
//! Written on the program's own HTTP client instead of a client library for registries, which would follow redirects and
//! proxies on its own, reads manifests of any size, and brings a second client with its dependencies.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, WWW_AUTHENTICATE};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;

use crate::credentials::{self, Credentials};
use crate::error::OciError;
use crate::pull_options::PullOptions;
use crate::reference::Reference;

/// Time to connect, between two parts of a response, and of a whole response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(600);
/// Redirects of one request. Registries redirect once, to the storage of their components.
const MAX_REDIRECTS: usize = 4;
/// Largest body of a token or an error.
const MAX_BODY: u64 = 64 << 10;

/// A repository of a registry.
pub(crate) struct Registry<'a> {
    reference: &'a Reference,
    options: &'a PullOptions,
    client: Option<Client>,
    /// The value of the header `authorization`, once the registry has asked for one.
    authorization: Option<HeaderValue>,
}

/// Body of a token service. Registries use one of the names, or both.
#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl<'a> Registry<'a> {
    /// Connects to nothing.
    pub(crate) fn new(reference: &'a Reference, options: &'a PullOptions) -> Self {
        Self {
            reference,
            options,
            client: None,
            authorization: None,
        }
    }

    /// The body at `path` below the repository, of at most `limit` bytes.
    pub(crate) async fn get(
        &mut self,
        path: &str,
        accept: &str,
        what: &str,
        limit: u64,
    ) -> Result<Vec<u8>, OciError> {
        let url = self.url(path)?;
        let mut response = self.follow(url.clone(), accept).await?;
        if response.status() == StatusCode::UNAUTHORIZED && self.authorization.is_none() {
            self.authorization = Some(self.authorize(response.headers()).await?);
            response = self.follow(url, accept).await?;
        }
        let registry = || self.reference.registry.clone();
        match response.status() {
            status if status.is_success() => read(response, what, limit).await,
            StatusCode::NOT_FOUND => Err(OciError::NotFound {
                registry: registry(),
                what: format!("{}/{path}", self.reference.repository),
            }),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(OciError::Denied {
                registry: registry(),
                reason: error_message(response).await,
            }),
            status => Err(OciError::Status {
                host: host(response.url()),
                status: status.as_u16(),
                message: error_message(response).await,
            }),
        }
    }

    /// Whether the registry may be reached without encryption.
    fn allows_http(&self) -> bool {
        let registry = &self.reference.registry;
        self.reference.is_loopback() || self.options.config.allow_http.contains(registry)
    }

    fn url(&self, path: &str) -> Result<Url, OciError> {
        let scheme = if self.allows_http() { "http" } else { "https" };
        let registry = match self.reference.registry.as_str() {
            // The API of Docker Hub is not at its name.
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        let repository = &self.reference.repository;
        let url = format!("{scheme}://{registry}/v2/{repository}/{path}");
        self.parse(&url)
    }

    fn parse(&self, url: &str) -> Result<Url, OciError> {
        Url::parse(url).map_err(|error| self.protocol(format!("{url} is not a URL ({error})")))
    }

    fn protocol(&self, reason: impl Into<String>) -> OciError {
        OciError::Protocol {
            registry: self.reference.registry.clone(),
            reason: reason.into(),
        }
    }

    /// Sends a request and follows its redirects. Only the registry gets the authorization.
    async fn follow(&mut self, url: Url, accept: &str) -> Result<Response, OciError> {
        let authorization = self.authorization.clone();
        let mut response = self.send(url, accept, authorization).await?;
        for _ in 0..MAX_REDIRECTS {
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION);
            let location = location.and_then(|location| location.to_str().ok());
            let next = location.and_then(|location| response.url().join(location).ok());
            let next = next.ok_or_else(|| self.protocol("a redirect has no valid location"))?;
            if next.scheme() != "https" {
                return Err(self.insecure(&next));
            }
            response = self.send(next, accept, None).await?;
        }
        Err(OciError::Redirects {
            registry: self.reference.registry.clone(),
            limit: MAX_REDIRECTS,
        })
    }

    fn insecure(&self, url: &Url) -> OciError {
        OciError::Insecure {
            registry: self.reference.registry.clone(),
            url: format!("{}://{}", url.scheme(), host(url)),
        }
    }

    async fn send(
        &mut self,
        url: Url,
        accept: &str,
        authorization: Option<HeaderValue>,
    ) -> Result<Response, OciError> {
        let client = match &self.client {
            Some(client) => client,
            None => self.client.insert(client()?),
        };
        let mut request = client.get(url.clone()).header(ACCEPT, accept);
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request
            .send()
            .await
            .map_err(|error| unreachable(&url, &error))
    }

    /// The authorization that a refused request asks for: a token of the service it names, or the credentials themselves.
    async fn authorize(&mut self, headers: &HeaderMap) -> Result<HeaderValue, OciError> {
        let challenge = headers
            .get(WWW_AUTHENTICATE)
            .and_then(|value| value.to_str().ok())
            .ok_or_else(|| self.protocol("it refuses a request and does not say how to log in"))?;
        let registry = self.reference.registry.as_str();
        let credentials = match &self.options.docker_config {
            Some(path) => credentials::read(path, registry)?,
            None => None,
        };
        let (scheme, parameters) = challenge.split_once(' ').unwrap_or((challenge, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            let credentials = credentials.ok_or_else(|| OciError::Denied {
                registry: registry.to_owned(),
                reason: "it requires a login".to_owned(),
            })?;
            return Ok(basic(&credentials));
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(self.protocol(format!("it asks for the unknown login {scheme:?}")));
        }
        let realm = parameter(parameters, "realm")
            .ok_or_else(|| self.protocol("it names no service for tokens"))?;
        let mut url = self.parse(&realm)?;
        // A registry without encryption may issue its tokens itself.
        let own = self.allows_http() && self.url("")?.origin() == url.origin();
        if url.scheme() != "https" && !own {
            return Err(self.insecure(&url));
        }
        if let Some(service) = parameter(parameters, "service") {
            url.query_pairs_mut().append_pair("service", &service);
        }
        // Not the scope of the challenge, which may be for more than this pull.
        let scope = format!("repository:{}:pull", self.reference.repository);
        url.query_pairs_mut().append_pair("scope", &scope);
        let sent = credentials.is_some();
        let authorization = credentials.as_ref().map(basic);
        let response = self.send(url, "application/json", authorization).await?;
        if !response.status().is_success() {
            let message = error_message(response).await;
            return Err(OciError::Denied {
                registry: self.reference.registry.clone(),
                reason: match sent {
                    true => format!("it rejects the login ({message})"),
                    false => format!("it gives no token without a login ({message})"),
                },
            });
        }
        let body = read(response, "the token", MAX_BODY).await?;
        let token = serde_json::from_slice(&body)
            .ok()
            .and_then(|token: Token| token.token.or(token.access_token))
            .and_then(|token| HeaderValue::try_from(format!("Bearer {token}")).ok());
        token.ok_or_else(|| self.protocol("its token service sends no token"))
    }
}

fn client() -> Result<Client, OciError> {
    clawhost_http::client()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .timeout(TIMEOUT)
        .build()
        .map_err(|error| OciError::Client(clawhost_http::root_cause(&error)))
}

fn basic(credentials: &Credentials) -> HeaderValue {
    let text = format!("{}:{}", credentials.user, credentials.password);
    HeaderValue::try_from(format!("Basic {}", STANDARD.encode(text)))
        .expect("base64 is valid in a header")
}

/// A parameter of a challenge such as `realm="https://auth.example/token",service="example"`.
fn parameter(parameters: &str, name: &str) -> Option<String> {
    let mut rest = parameters;
    loop {
        let (key, after) = rest.split_once('=')?;
        let key = key.trim_matches([' ', ',']);
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        if key.eq_ignore_ascii_case(name) {
            return Some(value.to_owned());
        }
        rest = after;
    }
}

fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn unreachable(url: &Url, error: &reqwest::Error) -> OciError {
    OciError::Unreachable {
        host: host(url),
        cause: clawhost_http::root_cause(error),
    }
}

/// The body of a response of at most `limit` bytes.
async fn read(mut response: Response, what: &str, limit: u64) -> Result<Vec<u8>, OciError> {
    let oversized = || OciError::Oversized {
        what: what.to_owned(),
        limit,
    };
    let url = response.url().clone();
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if (body.len() + chunk.len()) as u64 > limit => return Err(oversized()),
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body),
            Err(error) => return Err(unreachable(&url, &error)),
        }
    }
}

/// The registry's message of a response that is not a success, in one line.
async fn error_message(response: Response) -> String {
    let reason = response.status().canonical_reason().unwrap_or("no reason");
    let Ok(body) = read(response, "the error", MAX_BODY).await else {
        return reason.to_owned();
    };
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<Message>,
    }
    #[derive(Deserialize)]
    struct Message {
        message: String,
    }
    // The form of the distribution specification.
    let errors: Option<Errors> = serde_json::from_slice(&body).ok();
    let message = match errors.and_then(|errors| errors.errors.into_iter().next()) {
        Some(error) => error.message,
        None => clawhost_http::error_message(&String::from_utf8_lossy(&body)),
    };
    let line: String = message
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect();
    if line.is_empty() {
        reason.to_owned()
    } else {
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_reached_over_http_only_if_nothing_could_listen_or_it_is_allowed() {
        let mut options = PullOptions::default();
        options.config.allow_http = vec!["registry.lan:5000".to_owned()];
        for (registry, url) in [
            ("localhost:5000", "http://localhost:5000/v2/a/b/x"),
            ("registry.lan:5000", "http://registry.lan:5000/v2/a/b/x"),
            ("registry.lan", "https://registry.lan/v2/a/b/x"),
            ("ghcr.io", "https://ghcr.io/v2/a/b/x"),
            ("docker.io", "https://registry-1.docker.io/v2/a/b/x"),
        ] {
            let reference = Reference::parse(&format!("oci://{registry}/a/b")).unwrap();
            let found = Registry::new(&reference, &options).url("x").unwrap();
            assert_eq!(found.as_str(), url);
        }
    }

    #[test]
    fn parameters_of_a_challenge_are_found_by_their_name() {
        let text = r#"realm="https://a.example/t?x=1,2", service=reg.example,scope="repository:a:pull,push""#;
        let found = |name: &str| parameter(text, name);
        assert_eq!(found("realm").unwrap(), "https://a.example/t?x=1,2");
        assert_eq!(found("Service").unwrap(), "reg.example");
        assert_eq!(found("scope").unwrap(), "repository:a:pull,push");
        assert_eq!(found("error"), None);
        for broken in ["", "realm", "realm=\"open", "=,=,", ",,,"] {
            assert_eq!(parameter(broken, "realm"), None, "{broken}");
        }
    }
}
