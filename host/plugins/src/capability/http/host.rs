//! The host functions of `http`: one bounded exchange.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::redact::Redactor;
use super::{HttpGrant, HttpRequest, InboundResponse, NetworkError, OutboundRequest, policy};
use crate::bindings::http;
use crate::fault::FaultKind;
use crate::store::CallState;
use crate::thread_pool::spawn_abort_on_drop;

impl http::Host for CallState {
    async fn send(
        &mut self,
        request: http::Request,
    ) -> wasmtime::Result<Result<http::Response, http::Error>> {
        self.meter.host_call()?;
        self.meter.http_calls += 1;
        let (used, limit) = (
            u64::from(self.meter.http_calls),
            u64::from(self.meter.limits().http_calls),
        );
        if used > limit {
            return Err(self.meter.stop(FaultKind::Budget {
                what: "http_calls",
                used,
                limit,
            }));
        }
        let Some(grant) = self.http.clone() else {
            return Ok(Err(http::Error::Denied("http is not granted".to_owned())));
        };
        let left = Duration::from_millis(self.wall_left_ms());
        let timeout = left.min(Duration::from_millis(u64::from(request.timeout_ms)));
        let max = self.meter.limits().http_response_size;
        let request = HttpRequest {
            method: request.method,
            url: request.url,
            headers: request.headers,
            body: request.body,
        };
        if let Some(answer) = grant.network.scripted_answer(&request) {
            let checked = policy::check_request(
                &request.method,
                &request.url,
                &request.headers,
                &request.body,
            );
            let origins = &grant.grants.origins;
            return Ok(match checked {
                Err(reason) => Err(http::Error::Denied(reason)),
                Ok((_, origin)) if !origins.is_empty() && !origins.contains(&origin) => Err(
                    http::Error::Denied(format!("origin {origin} is not granted")),
                ),
                Ok(_) => check_size(answer, max)
                    .map(response_to_guest)
                    .map_err(error_to_guest),
            });
        }
        let network = Arc::clone(&grant.network);
        let exchanged = exchange(grant, request.clone(), timeout, max);
        let task = spawn_abort_on_drop(tokio::time::timeout(timeout, exchanged));
        let answer = match task.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(SendError::Network(NetworkError::Timeout)),
            Err(_) => Err(SendError::Network(NetworkError::Transport(
                "the exchange failed".to_owned(),
            ))),
        };
        let answer = match answer {
            Ok(answer) => Ok(answer),
            Err(SendError::Network(error)) => Err(error),
            Err(SendError::Denied(reason)) => return Ok(Err(http::Error::Denied(reason))),
        };
        network.observe(&request, &answer);
        Ok(answer.map(response_to_guest).map_err(error_to_guest))
    }
}

/// Why a request has no answer.
enum SendError {
    /// The grants do not allow the request.
    Denied(String),
    /// The exchange failed.
    Network(NetworkError),
}

async fn exchange(
    grant: HttpGrant,
    request: HttpRequest,
    timeout: Duration,
    max_response_bytes: usize,
) -> Result<InboundResponse, SendError> {
    let reveal = |name: &str| std::env::var(name).ok();
    let admitted = policy::admit(
        &grant.grants,
        &request.method,
        &request.url,
        &request.headers,
        &request.body,
        reveal,
    )
    .map_err(SendError::Denied)?;
    let redactor = Redactor::new(&admitted.secrets).map_err(SendError::Denied)?;
    let transport = |reason| SendError::Network(NetworkError::Transport(reason));
    let addresses = match admitted.origin.host() {
        Ok(_) => Vec::new(),
        Err(name) => {
            let found = grant.network.resolve(name.to_owned()).await;
            found.map_err(transport)?
        }
    };
    let address = policy::choose(&admitted.origin, &addresses).map_err(SendError::Denied)?;
    let answer = grant
        .network
        .exchange(OutboundRequest {
            method: admitted.method,
            url: admitted.url.into(),
            address: SocketAddr::new(address, admitted.origin.port()),
            headers: admitted.headers,
            body: request.body,
            timeout,
            max_response_bytes,
        })
        .await
        .map_err(|error| match error {
            NetworkError::Transport(reason) => transport(redactor.text(&reason)),
            other => SendError::Network(other),
        })?;
    let answer = check_size(Ok(answer), max_response_bytes).map_err(SendError::Network)?;
    let compressed = |(name, value): &&(String, String)| {
        name.eq_ignore_ascii_case("content-encoding") && !value.eq_ignore_ascii_case("identity")
    };
    if !admitted.secrets.is_empty()
        && let Some((_, coding)) = answer.headers.iter().find(compressed)
    {
        return Err(transport(format!(
            "the answer came as {}, although none was asked for: it cannot be searched for secrets",
            redactor.text(coding)
        )));
    }
    Ok(InboundResponse {
        status: answer.status,
        headers: answer
            .headers
            .iter()
            .map(|(name, value)| (redactor.text(name), redactor.text(value)))
            .collect(),
        body: redactor.bytes(&answer.body),
    })
}

/// Returns an error if the body exceeds the limit.
fn check_size(
    answer: Result<InboundResponse, NetworkError>,
    max_response_bytes: usize,
) -> Result<InboundResponse, NetworkError> {
    answer.and_then(|answer| match answer.body.len() {
        bytes if bytes > max_response_bytes => Err(NetworkError::TooLarge),
        _ => Ok(answer),
    })
}

fn response_to_guest(answer: InboundResponse) -> http::Response {
    http::Response {
        status: answer.status,
        headers: answer.headers,
        body: answer.body,
    }
}

fn error_to_guest(error: NetworkError) -> http::Error {
    match error {
        NetworkError::TooLarge => http::Error::TooLarge,
        NetworkError::Timeout => http::Error::Timeout,
        NetworkError::Transport(reason) => http::Error::Transport(reason),
    }
}
