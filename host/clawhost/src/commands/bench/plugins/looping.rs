//! Effect of endless plugin calls on the time to first token of a streaming server.

use anyhow::Result;
use clawhost_engine::measure::Spread;
use clawhost_plugins::measure::LoopingCalls;
use clawhost_plugins::{Grants, HostOptions, Profile};
use serde::Serialize;

use super::super::streaming::{Client, with_server};
use super::calls::embedded_plugin;
use crate::compiling;
use crate::progress::Progress;

const ENDLESS: &str = "judge-endless";
/// Replies per measurement.
const REPLIES: u32 = 20;

/// Time from a request to its first text.
#[derive(Serialize)]
pub(super) struct LoopingFigures {
    /// Concurrent endless calls; when a limit ends one, the next starts.
    pub(super) at_once: usize,
    pub(super) idle_ms: Spread,
    pub(super) under_ms: Spread,
    /// Ratio of the medians.
    pub(super) ratio: f64,
}

/// Measures without and with the endless calls.
pub(super) fn measure(at_once: usize, progress: &mut Progress) -> Result<LoopingFigures> {
    progress.stage("first token, idle");
    with_server(None, async |server| {
        let client = Client::new(server)?;
        let idle_ms = client.streams(1, REPLIES).await?.first_token_ms;
        progress.advance(10.0);
        progress.stage(&format!("first token under {at_once} endless calls"));
        // The default options, as a server runs its own judges.
        let host = compiling::host(HostOptions::default())?;
        let grants = Grants::default();
        let judge = host.load(
            ENDLESS,
            embedded_plugin(ENDLESS)?,
            &grants,
            Profile::Deterministic,
        )?;
        let calls = LoopingCalls::start(&judge, at_once);
        let under_ms = client.streams(1, REPLIES).await?.first_token_ms;
        drop(calls);
        progress.advance(20.0);
        Ok(LoopingFigures {
            at_once,
            ratio: under_ms.median / idle_ms.median.max(1e-9),
            idle_ms,
            under_ms,
        })
    })
}
