//! The door: everything that is decided about a request before its handler sees it.
//!
//! In this order: size of the head, foreign pages, key, rate, concurrency. A refusal here costs no
//! reading of the body.

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
use crate::gateway::Shared;
use crate::{body, guard, ids, limits};

/// Paths that need no key: a load balancer or a person in trouble must always get an answer from the first three, and
/// the others say nothing that is not public.
const ALWAYS_OPEN: [&str; 5] = [
    "/health",
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/version",
];
/// Paths that must answer under overload too.
const UNCOUNTED: [&str; 4] = ["/health", "/healthz", "/readyz", "/metrics"];

/// The operator page, which a browser shows.
const PAGE: &str = "/";

/// Where Anthropic's dialect lives.
const MESSAGES: &str = "/v1/messages";

/// A place among the requests in progress; whoever holds a clone keeps it. A stream keeps it until its reply is
/// generated.
#[derive(Clone)]
pub(crate) struct Slot {
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl Slot {
    /// Keeps the slot until `ended` resolves, or until the returned value is dropped. So a client that does not read
    /// its reply keeps nobody out once the engine is done with it.
    pub(crate) fn hold_until(self, ended: impl Future<Output = ()> + Send + 'static) -> HeldSlot {
        let mut task = JoinSet::new();
        task.spawn(async move {
            ended.await;
            drop(self);
        });
        HeldSlot { _task: task }
    }
}

/// A slot that a task keeps; dropping this ends the task.
pub(crate) struct HeldSlot {
    _task: JoinSet<()>,
}

/// The middleware around all paths.
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
    let request_is_page = request.uri().path() == PAGE;
    let speaks_messages = speaks_messages(&request);
    let mut response = match check(&shared, &request) {
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
    if speaks_messages && let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let allow = response.headers_mut().remove(header::ALLOW);
        response = error.into_messages_response(&id);
        if let Some(allow) = allow {
            response.headers_mut().insert(header::ALLOW, allow);
        }
    }
    if response.status() == StatusCode::UNAUTHORIZED && request_is_page {
        // Has a browser ask for the key.
        response.headers_mut().insert(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Basic realm=\"clawhost\""),
        );
    }
    shared
        .metrics
        .request(&method, &route, response.status(), started.elapsed());
    tracing::debug!(
        %id, %method, route, status = response.status().as_u16(), ms = started.elapsed().as_millis() as u64,
        "request"
    );
    if let Ok(id) = HeaderValue::from_str(&id) {
        if speaks_messages {
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

/// Whether the client speaks Anthropic's dialect, and so wants errors in its shape.
fn speaks_messages(request: &Request) -> bool {
    let path = request.uri().path();
    path == MESSAGES
        || path
            .strip_prefix(MESSAGES)
            .is_some_and(|rest| rest.starts_with('/'))
        || request.headers().contains_key("anthropic-version")
}

fn check(shared: &Arc<Shared>, request: &Request) -> Result<(Caller, Slot), ApiError> {
    let options = &shared.options;
    let path = request.uri().path();
    limits::check_head(request.uri(), request.headers(), options.max_head)?;
    if options.keys.is_empty() {
        guard::check(
            request.headers(),
            request.uri(),
            &options.allowed_hosts,
            &options.allowed_origins,
        )?;
    }
    let caller = if ALWAYS_OPEN.contains(&path) {
        // A key is not needed and shows more.
        auth::identify(&options.keys, request.headers(), false)
            .ok()
            .filter(|caller| caller.key.is_some())
            .unwrap_or_else(Caller::nobody)
    } else {
        auth::identify(&options.keys, request.headers(), path == PAGE)?
    };
    if UNCOUNTED.contains(&path) {
        return Ok((caller, Slot { _permit: None }));
    }
    shared.limits.take(caller.key, Instant::now())?;
    let permit = shared.slots.clone().try_acquire_owned().map_err(|_| {
        ApiError::too_many(
            "overloaded",
            1,
            format!(
                "{} requests are in progress, which is the limit; try again in a second",
                options.max_concurrent
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

/// 404 for a path that does not exist.
pub(crate) async fn unknown_path(request: Request) -> ApiError {
    let (method, path) = named(&request);
    body::discard(request).await;
    ApiError::not_found(
        "unknown_path",
        format!("there is no `{method} {path}`; the API lives under `/v1`"),
    )
}

/// 405 for a path that exists with other methods.
pub(crate) async fn wrong_method(request: Request) -> ApiError {
    let (method, path) = named(&request);
    body::discard(request).await;
    ApiError::with_status(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        format!("`{path}` does not know the method `{method}`"),
    )
}

fn named(request: &Request) -> (Method, String) {
    let path = request.uri().path().chars().take(120).collect();
    (request.method().clone(), path)
}
