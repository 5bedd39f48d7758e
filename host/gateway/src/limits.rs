//! Limits per caller: requests per minute by API key (a token bucket each), and the size of a request head.
//!
//! A request over the limit is rejected at once with `Retry-After`; nothing is queued here.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use axum::http::{HeaderMap, StatusCode, Uri};

use crate::error::ApiError;

/// A request rate and burst size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Sustained requests per minute; at least 1.
    pub per_minute: u32,
    /// Bucket size: requests allowed at once after an idle period; at least 1.
    pub burst: u32,
}

impl RateLimit {
    /// `requests` per minute with a burst of the same size.
    pub fn per_minute(requests: u32) -> Self {
        Self {
            per_minute: requests,
            burst: requests,
        }
    }
}

/// The token buckets of all keys, in the order of the configuration. A key without a limit has no bucket.
#[derive(Debug)]
pub(crate) struct RateLimits {
    buckets: Vec<Option<Mutex<Bucket>>>,
}

impl RateLimits {
    pub(crate) fn new(limits: impl IntoIterator<Item = Option<RateLimit>>, now: Instant) -> Self {
        let buckets = limits
            .into_iter()
            .map(|limit| limit.map(|limit| Mutex::new(Bucket::full(limit, now))))
            .collect();
        Self { buckets }
    }

    /// Takes one token from the bucket of the key at `position`, or returns 429.
    pub(crate) fn try_acquire(
        &self,
        position: Option<usize>,
        now: Instant,
    ) -> Result<(), ApiError> {
        let bucket = position.and_then(|position| self.buckets[position].as_ref());
        let Some(bucket) = bucket else {
            return Ok(());
        };
        // A panic while the lock was held cannot leave the two numbers of a bucket inconsistent.
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.try_take(now).map_err(|wait_s| {
            ApiError::too_many_requests(
                "rate_limit_exceeded",
                wait_s,
                format!(
                    "rate limit of this key reached: {} requests per minute, burst {}; try again in {wait_s} s",
                    bucket.limit.per_minute, bucket.limit.burst
                ),
            )
        })
    }
}

#[derive(Debug)]
struct Bucket {
    limit: RateLimit,
    tokens: f64,
    refilled_at: Instant,
}

impl Bucket {
    fn full(limit: RateLimit, now: Instant) -> Self {
        let limit = RateLimit {
            per_minute: limit.per_minute.max(1),
            burst: limit.burst.max(1),
        };
        Self {
            limit,
            tokens: f64::from(limit.burst),
            refilled_at: now,
        }
    }

    /// Takes one token, or returns the whole seconds until one is available.
    fn try_take(&mut self, now: Instant) -> Result<(), u64> {
        let per_second = f64::from(self.limit.per_minute) / 60.0;
        let elapsed = now
            .saturating_duration_since(self.refilled_at)
            .as_secs_f64();
        self.tokens = (self.tokens + elapsed * per_second).min(f64::from(self.limit.burst));
        self.refilled_at = self.refilled_at.max(now);
        // Slightly below one is a rounding error, not a missing token.
        if self.tokens >= 1.0 - 1e-9 {
            self.tokens = (self.tokens - 1.0).max(0.0);
            return Ok(());
        }
        Err(((1.0 - self.tokens) / per_second).ceil() as u64)
    }
}

/// Rejects a request whose target and header fields together exceed `max` bytes.
pub(crate) fn check_head(uri: &Uri, headers: &HeaderMap, max: usize) -> Result<(), ApiError> {
    let fields: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    let target = uri.path().len() + uri.query().map_or(0, |query| query.len() + 1);
    if fields + target > max {
        return Err(ApiError::with_status(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "headers_too_large",
            format!(
                "the request head has {} bytes; the limit is {max}",
                fields + target
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn requests_beyond_the_burst_are_rate_limited() {
        let start = Instant::now();
        let limits = RateLimits::new(
            [Some(RateLimit {
                per_minute: 30,
                burst: 3,
            })],
            start,
        );
        for _ in 0..3 {
            assert!(limits.try_acquire(Some(0), start).is_ok());
        }
        let error = limits.try_acquire(Some(0), start).unwrap_err();
        assert_eq!(error.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(error.to_string().contains("in 2 s"), "{error}");
        let later = start + Duration::from_secs(2);
        assert!(limits.try_acquire(Some(0), later).is_ok());
        assert!(limits.try_acquire(Some(0), later).is_err());
    }

    #[test]
    fn bucket_never_exceeds_the_burst() {
        let start = Instant::now();
        let limits = RateLimits::new([Some(RateLimit::per_minute(2))], start);
        let later = start + Duration::from_secs(3600);
        assert!(limits.try_acquire(Some(0), later).is_ok());
        assert!(limits.try_acquire(Some(0), later).is_ok());
        assert!(limits.try_acquire(Some(0), later).is_err());
    }

    #[test]
    fn keys_have_separate_buckets() {
        let start = Instant::now();
        let limits = RateLimits::new([Some(RateLimit::per_minute(1)), None], start);
        assert!(limits.try_acquire(Some(0), start).is_ok());
        assert!(limits.try_acquire(Some(0), start).is_err());
        for _ in 0..100 {
            assert!(limits.try_acquire(Some(1), start).is_ok());
            assert!(limits.try_acquire(None, start).is_ok());
        }
    }

    #[test]
    fn bucket_does_not_refill_without_elapsed_time() {
        let start = Instant::now();
        let mut bucket = Bucket::full(RateLimit::per_minute(60), start);
        bucket.tokens = 0.0;
        assert_eq!(bucket.try_take(start), Err(1));
        assert_eq!(bucket.try_take(start - Duration::from_millis(1)), Err(1));
    }

    #[test]
    fn oversized_head_is_rejected() {
        let mut headers = HeaderMap::new();
        headers.insert("x-big", "a".repeat(1000).parse().unwrap());
        let uri = Uri::from_static("/v1/models");
        assert!(check_head(&uri, &headers, 2000).is_ok());
        let error = check_head(&uri, &headers, 900).unwrap_err();
        assert_eq!(error.status().as_u16(), 431);
    }
}
