//! What a demo runs, and when it passes.

use std::time::Duration;

use crate::idle::WaitOptions;
use crate::personalize::WISH_MAX_TOKENS;

/// Endpoints of the two arms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoEndpoints {
    /// Base URL of the server that trains.
    pub trained: String,
    /// Base URL of the server that does not train.
    pub control: String,
    /// `model` field of requests to both.
    pub model: String,
    /// Bearer token for both, if required.
    pub api_key: Option<String>,
}

/// Options of the demo.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DemoOptions {
    /// Seed of the persona and the requests. Default: 1.
    pub seed: u64,
    /// Conversations per arm. Default: 60.
    pub conversations: usize,
    /// Concurrent conversations. Default: 4.
    pub concurrency: usize,
    /// First replies sampled and averaged per conversation of the control arm. The frozen model does not change, so its
    /// first and last conversations differ only by chance; more samples keep that below the tolerance. Default: 8.
    pub control_draws: u32,
    /// `temperature` of requests. Default: none, the endpoint decides.
    pub temperature: Option<f32>,
    /// `max_tokens` of requests. Default: 256, so that an endless reply cannot block a round.
    pub max_tokens: Option<u32>,
    /// Timeout of one request. Default: 15 min.
    pub request_timeout: Duration,
    /// Waiting between rounds.
    pub wait: WaitOptions,
    /// Pass criteria.
    pub bounds: Bounds,
}

impl Default for DemoOptions {
    fn default() -> Self {
        DemoOptions {
            seed: 1,
            conversations: 60,
            concurrency: 4,
            control_draws: 8,
            temperature: None,
            max_tokens: Some(256),
            request_timeout: Duration::from_secs(900),
            wait: WaitOptions::default(),
            bounds: Bounds::default(),
        }
    }
}

impl DemoOptions {
    /// The defaults for a person with a wish and a real model, whose steps take seconds: fewer polls and replies
    /// of the frozen model.
    pub fn of_a_wish() -> DemoOptions {
        DemoOptions {
            conversations: 36,
            control_draws: 2,
            max_tokens: Some(WISH_MAX_TOKENS),
            wait: WaitOptions {
                poll_interval: Duration::from_millis(400),
                ..WaitOptions::default()
            },
            ..DemoOptions::default()
        }
    }
}

/// Pass criteria of the demo.
///
/// Chance in a window of twelve conversations must neither fail a run that learned nor pass one that did not: a start
/// above its bound must be significant, and so must the gain. The start of the *trained* arm is not checked: an arm
/// that learns within its first window starts high.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The lower end of the 95 % interval of the control arm's first window is at most this, so there is something to
    /// learn. Default: 0.35.
    pub start_at_most: f64,
    /// The paired gain (trained minus control over the last window) is at least this, and its 95 % interval lies above
    /// 0. Default: 0.3.
    pub gain_at_least: f64,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            start_at_most: 0.35,
            gain_at_least: 0.3,
        }
    }
}
