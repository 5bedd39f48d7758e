//! How much one caller may ask for: requests per minute by key, and the size of a request's head.
//!
//! A token bucket per key, refilled with time. It refuses at once and says when to come back; nothing
//! waits in a queue here.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use axum::http::{HeaderMap, StatusCode, Uri};

use crate::error::ApiError;

/// A rate of requests and how many may come at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests per minute in the long run; at least 1.
    pub per_minute: u32,
    /// Requests that may come at once after a pause; at least 1.
    pub burst: u32,
}

impl RateLimit {
    /// This many requests per minute, and the same number at once.
    pub fn per_minute(requests: u32) -> Self {
        Self {
            per_minute: requests,
            burst: requests,
        }
    }
}

/// The buckets of all keys, in the order of the configuration. A key without a limit has none.
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

    /// Takes one request from the bucket of the key at `position`.
    pub(crate) fn take(&self, position: Option<usize>, now: Instant) -> Result<(), ApiError> {
        let bucket = position.and_then(|position| self.buckets.get(position));
        let Some(Some(bucket)) = bucket else {
            return Ok(());
        };
        // A bucket is two numbers: whatever a panicking holder left in it is still a bucket.
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(now).map_err(|wait_s| {
            ApiError::too_many(
                "rate_limit_exceeded",
                wait_s,
                format!(
                    "this key may send {} requests a minute ({} at once); try again in {wait_s} s",
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
    filled: Instant,
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
            filled: now,
        }
    }

    /// Takes one token, or says in how many whole seconds there will be one.
    fn take(&mut self, now: Instant) -> Result<(), u64> {
        let per_second = f64::from(self.limit.per_minute) / 60.0;
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * per_second).min(f64::from(self.limit.burst));
        self.filled = self.filled.max(now);
        // A hair below one is rounding, not a missing token.
        if self.tokens >= 1.0 - 1e-9 {
            self.tokens = (self.tokens - 1.0).max(0.0);
            return Ok(());
        }
        Err(((1.0 - self.tokens) / per_second).ceil() as u64)
    }
}

/// Refuses a request whose target and header fields together are larger than `max` bytes.
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
                "the head of the request has {} bytes; the limit is {max}",
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
    fn a_burst_passes_then_the_rate_counts() {
        let start = Instant::now();
        let limits = RateLimits::new(
            [Some(RateLimit {
                per_minute: 30,
                burst: 3,
            })],
            start,
        );
        for _ in 0..3 {
            assert!(limits.take(Some(0), start).is_ok());
        }
        let error = limits.take(Some(0), start).unwrap_err();
        assert_eq!(error.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(error.to_string().contains("in 2 s"), "{error}");
        let later = start + Duration::from_secs(2);
        assert!(limits.take(Some(0), later).is_ok());
        assert!(limits.take(Some(0), later).is_err());
    }

    #[test]
    fn a_long_pause_never_gives_more_than_the_burst() {
        let start = Instant::now();
        let limits = RateLimits::new([Some(RateLimit::per_minute(2))], start);
        let later = start + Duration::from_secs(3600);
        assert!(limits.take(Some(0), later).is_ok());
        assert!(limits.take(Some(0), later).is_ok());
        assert!(limits.take(Some(0), later).is_err());
    }

    #[test]
    fn keys_do_not_share_a_bucket() {
        let start = Instant::now();
        let limits = RateLimits::new([Some(RateLimit::per_minute(1)), None], start);
        assert!(limits.take(Some(0), start).is_ok());
        assert!(limits.take(Some(0), start).is_err());
        for _ in 0..100 {
            assert!(limits.take(Some(1), start).is_ok());
            assert!(limits.take(None, start).is_ok());
        }
    }

    #[test]
    fn a_clock_that_stands_still_gives_nothing() {
        let start = Instant::now();
        let mut bucket = Bucket::full(RateLimit::per_minute(60), start);
        bucket.tokens = 0.0;
        assert_eq!(bucket.take(start), Err(1));
        assert_eq!(bucket.take(start - Duration::from_millis(1)), Err(1));
    }

    #[test]
    fn a_huge_head_is_refused() {
        let mut headers = HeaderMap::new();
        headers.insert("x-big", "a".repeat(1000).parse().unwrap());
        let uri = Uri::from_static("/v1/models");
        assert!(check_head(&uri, &headers, 2000).is_ok());
        let error = check_head(&uri, &headers, 900).unwrap_err();
        assert_eq!(error.status().as_u16(), 431);
    }
}
