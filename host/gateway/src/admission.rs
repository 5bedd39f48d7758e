//! Admission middleware: the checks before a request reaches its handler.
//!
//! In this order: size of the head, origin, API key, rate limit, concurrency limit. A rejected request is not parsed.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use crate::auth::{self, Caller};
use crate::error::ApiError;
use crate::shared::Shared;
use crate::{body, guard, ids, limits};

/// Paths without authentication: load balancers poll the first three; the others contain nothing private.
const PUBLIC_PATHS: [&str; 7] = [
    "/health",
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/version",
    "/page.css",
    "/page.js",
];
/// Paths without rate and concurrency limits, which must respond under overload.
const UNLIMITED_PATHS: [&str; 4] = ["/health", "/healthz", "/readyz", "/metrics"];

/// Path of the operator page. It needs no key, but without an operator's key it is empty and asks for one.
const OPERATOR_PAGE: &str = "/";

/// Path prefix of Anthropic's API.
const MESSAGES_PATH: &str = "/v1/messages";

/// A permit of the concurrency limit, released when the last clone is dropped. A stream holds it until its reply is
/// generated.
#[derive(Clone, Default)]
pub(crate) struct Slot {
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl Slot {
    /// Holds the slot until `finished` resolves or the returned guard is dropped. A client that does not read its reply
    /// thus occupies no slot once the engine has finished.
    pub(crate) fn hold_until(
        self,
        finished: impl Future<Output: Send> + Send + 'static,
    ) -> SlotGuard {
        let mut task = JoinSet::new();
        task.spawn(async move {
            finished.await;
            drop(self);
        });
        SlotGuard { _task: task }
    }
}

/// Guard of a slot that a task holds; dropping it aborts the task.
pub(crate) struct SlotGuard {
    _task: JoinSet<()>,
}

/// The middleware of all routes.
pub(crate) async fn admit(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let id = ids::request_id(request.headers());
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("other", MatchedPath::as_str)
        .to_owned();
    let is_anthropic = is_anthropic(&request);
    let mut response = match check_request(&shared, &request) {
        Ok((caller, slot)) => {
            request.extensions_mut().insert(caller);
            request.extensions_mut().insert(slot.clone());
            let response = next.run(request).await;
            drop(slot);
            response
        }
        Err(error) => {
            body::discard(request).await;
            error.into_response()
        }
    };
    if is_anthropic && let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let allow = response.headers_mut().remove(header::ALLOW);
        response = error.into_anthropic_response(&id);
        if let Some(allow) = allow {
            response.headers_mut().insert(header::ALLOW, allow);
        }
    }
    shared
        .metrics
        .observe_http_request(&method, &route, response.status(), started.elapsed());
    tracing::debug!(
        %id, %method, route, status = response.status().as_u16(), ms = started.elapsed().as_millis() as u64,
        "request"
    );
    if let Ok(id) = HeaderValue::from_str(&id) {
        if is_anthropic {
            response
                .headers_mut()
                .insert(HeaderName::from_static("request-id"), id.clone());
        }
        response
            .headers_mut()
            .insert(HeaderName::from_static("x-request-id"), id);
    }
    response.headers_mut().insert(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// Whether the client uses Anthropic's API and expects errors in its format.
fn is_anthropic(request: &Request) -> bool {
    let path = request.uri().path();
    path == MESSAGES_PATH
        || path
            .strip_prefix(MESSAGES_PATH)
            .is_some_and(|rest| rest.starts_with('/'))
        || request.headers().contains_key("anthropic-version")
}

fn check_request(shared: &Arc<Shared>, request: &Request) -> Result<(Caller, Slot), ApiError> {
    let options = &shared.options;
    let path = request.uri().path();
    limits::check_head(request.uri(), request.headers(), options.max_head)?;
    if options.keys.is_empty() {
        guard::check(
            request.headers(),
            request.uri(),
            &options.server.allowed_hosts,
            &options.allowed_origins,
        )?;
    }
    let caller = if PUBLIC_PATHS.contains(&path) {
        // A key is optional here; an operator's key reveals error details.
        auth::authenticate(&options.keys, request.headers(), false)
            .ok()
            .filter(|caller| caller.key.is_some())
            .unwrap_or_else(Caller::anonymous)
    } else if path == OPERATOR_PAGE {
        auth::authenticate(&options.keys, request.headers(), true)
            .unwrap_or_else(|_| Caller::anonymous())
    } else {
        auth::authenticate(&options.keys, request.headers(), false)?
    };
    if UNLIMITED_PATHS.contains(&path) {
        return Ok((caller, Slot::default()));
    }
    shared.limits.try_acquire(caller.key, Instant::now())?;
    let permit = shared.slots.clone().try_acquire_owned().map_err(|_| {
        ApiError::too_many_requests(
            "overloaded",
            1,
            format!(
                "the limit of {} concurrent requests is reached; try again in a second",
                options.server.max_concurrent_requests
            ),
        )
    })?;
    Ok((
        caller,
        Slot {
            _permit: Some(Arc::new(permit)),
        },
    ))
}

/// Returns 404 for an unknown path.
pub(crate) async fn unknown_path(request: Request) -> ApiError {
    let (method, path) = method_and_path(&request);
    body::discard(request).await;
    ApiError::not_found(
        "unknown_path",
        format!("unknown route `{method} {path}`; the API is under `/v1`"),
    )
}

/// Returns 405 for a known path with another method.
pub(crate) async fn wrong_method(request: Request) -> ApiError {
    let (method, path) = method_and_path(&request);
    body::discard(request).await;
    ApiError::with_status(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        format!("`{path}` does not support the method `{method}`"),
    )
}

fn method_and_path(request: &Request) -> (Method, String) {
    let path = request.uri().path().chars().take(120).collect();
    (request.method().clone(), path)
}
