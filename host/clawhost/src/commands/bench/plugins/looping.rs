//! Endless calls beside a server that streams: what they do to the first token.

use anyhow::Result;
use clawhost_plugins::measure::LoopingCalls;
use clawhost_plugins::{Grants, HostOptions, Profile};
use clawhost_policy::measure::Spread;
use serde::Serialize;

use super::super::streaming::{Client, serving};
use super::embedded;
use crate::compiling;
use crate::progress::Progress;

const ENDLESS: &str = "judge-endless";
/// Replies of each measurement.
const REPLIES: u32 = 20;

/// Time from a request to its first text.
#[derive(Serialize)]
pub(super) struct Looping {
    /// Endless calls at a time; one that its limit ends is followed by the next.
    pub(super) at_once: usize,
    pub(super) idle_ms: Spread,
    pub(super) under_ms: Spread,
    /// Of the medians.
    pub(super) ratio: f64,
}

/// Measures without the calls, and under them.
pub(super) fn measure(at_once: usize, progress: &mut Progress) -> Result<Looping> {
    progress.stage("first token, alone");
    serving(None, async |server| {
        let client = Client::of(server)?;
        let idle_ms = client.streams(1, REPLIES).await?.first_token_ms;
        progress.done(10.0);
        progress.stage(&format!("first token under {at_once} endless calls"));
        // With the options of a server, as its own judges run.
        let host = compiling::host(HostOptions::default())?;
        let none = Grants::default();
        let judge = host.load(ENDLESS, embedded(ENDLESS)?, &none, Profile::Deterministic)?;
        let calls = LoopingCalls::start(&judge, at_once);
        let under_ms = client.streams(1, REPLIES).await?.first_token_ms;
        drop(calls);
        progress.done(20.0);
        Ok(Looping {
            at_once,
            ratio: under_ms.median / idle_ms.median.max(1e-9),
            idle_ms,
            under_ms,
        })
    })
}
