//! Latency of streamed replies as a chat client sees it: a server on a free port and real HTTP.
//!
//! Unlike the engine's own figures, this includes template, tokenizer, journal and network. The time to the first token
//! is also given as a share of the whole reply, which shows whether text really streams.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clawhost_config::DeviceChoice;
use clawhost_engine::measure::Spread;
use clawhost_http::SseDecoder;
use serde_json::{Value, json};

use crate::arms::api_key;
use crate::config::Config;
use crate::serve::{Server, Settings};

/// Tokens of a measured reply.
pub(super) const REPLY: u32 = 200;
/// Longer than a reply takes on any machine that can serve the model.
const TIMEOUT: Duration = Duration::from_secs(600);
/// A reply may end before it has [`REPLY`] tokens; then it is retried this many times.
const ATTEMPTS: u64 = 100;

/// Figures for one number of concurrent streams; one value per stream and round.
pub(super) struct StreamFigures {
    pub(super) streams: usize,
    /// Milliseconds from sending the request to the first text.
    pub(super) first_token_ms: Spread,
    /// The same in percent of the time to the end of the reply.
    pub(super) first_token_share: Spread,
}

/// Starts a server and measures with each number of streams.
pub(super) fn measure(
    model: Option<&Path>,
    device: DeviceChoice,
    streams: &[usize],
    rounds: u32,
) -> Result<Vec<StreamFigures>> {
    let on_device = |config: &mut Config| config.engine.device = device;
    with_configured_server(model, &[], on_device, async |server| {
        let client = Client::new(server)?;
        let mut measured = Vec::new();
        for &streams in streams {
            measured.push(client.streams(streams, rounds).await?);
        }
        Ok(measured)
    })
}

/// Runs `work` with a server on a free port, without training.
pub(super) fn with_server<T>(
    model: Option<&Path>,
    work: impl AsyncFnOnce(&Server) -> Result<T>,
) -> Result<T> {
    with_configured_server(model, &[], |_| {}, work)
}

/// Like [`with_server`], with overrides of the configuration, and changes to it that win over them.
pub(super) fn with_configured_server<T>(
    model: Option<&Path>,
    overrides: &[String],
    configure: impl FnOnce(&mut Config),
    work: impl AsyncFnOnce(&Server) -> Result<T>,
) -> Result<T> {
    let data = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut config = Config::load(None, overrides, model)?;
    config.server.port = 0;
    config.server.data_dir = data.path().to_owned();
    config.training.enabled = false;
    configure(&mut config);
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(async {
        let server = Server::start(Settings::from(config)).await?;
        let result = work(&server).await;
        server.stop().await;
        result
    })
}

/// Times to the first token and to the end of a reply of [`REPLY`] tokens.
async fn timed_reply(client: Client, number: u64) -> Result<(Duration, Duration)> {
    for attempt in 0..ATTEMPTS {
        if let Some(times) = client.reply(number, attempt).await? {
            return Ok(times);
        }
    }
    bail!(
        "none of {ATTEMPTS} replies had {REPLY} tokens; use a --model that generates longer replies"
    )
}

/// A chat client that measures times.
#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    url: String,
    key: Option<String>,
    /// Number of conversations started.
    conversations: Arc<AtomicU64>,
}

impl Client {
    pub(super) fn new(server: &Server) -> Result<Self> {
        Ok(Self {
            http: clawhost_http::client().build()?,
            url: format!("{}/v1/chat/completions", server.url()),
            // The server requires the key when it is set.
            key: api_key(),
            conversations: Arc::default(),
        })
    }

    /// Measures with this many concurrent streams, after a warmup round.
    pub(super) async fn streams(&self, streams: usize, rounds: u32) -> Result<StreamFigures> {
        let (mut firsts, mut shares) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let mut replies = tokio::task::JoinSet::new();
            for _ in 0..streams {
                let number = self.conversations.fetch_add(1, Ordering::Relaxed) + 1;
                replies.spawn(timed_reply(self.clone(), number));
            }
            while let Some(reply) = replies.join_next().await {
                let (first, total) = reply.context("a stream failed")??;
                if round > 0 {
                    firsts.push(first.as_secs_f64() * 1e3);
                    shares.push(100.0 * first.as_secs_f64() / total.as_secs_f64());
                }
            }
        }
        Ok(StreamFigures {
            streams,
            first_token_ms: Spread::of(&firsts),
            first_token_share: Spread::of(&shares),
        })
    }

    /// Times of one reply; None if it ended early.
    async fn reply(&self, number: u64, attempt: u64) -> Result<Option<(Duration, Duration)>> {
        // Each conversation differs from its first token on, so that no prefix is cached.
        let text = format!(
            "{number}.{attempt}: Tell a long story about a shop with {number} shelves, and leave nothing out."
        );
        // A high temperature, and a penalty on tokens of the prompt, such as the end of a message, so that few replies
        // end early.
        let body = json!({
            "messages": [{"role": "user", "content": text}], "stream": true, "max_tokens": REPLY,
            "seed": number * ATTEMPTS + attempt, "temperature": 2.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
            "repetition_penalty": 10.0,
        });
        let mut request = self.http.post(&self.url).json(&body).timeout(TIMEOUT);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let sent = Instant::now();
        let mut response = request.send().await?.error_for_status()?;
        let (mut events, mut first, mut finish) = (SseDecoder::default(), None, None);
        while let Some(bytes) = response.chunk().await? {
            for data in events.push(&bytes).map_err(anyhow::Error::msg)? {
                if data == "[DONE]" {
                    break;
                }
                let chunk: Value = serde_json::from_str(&data)?;
                let at = |path| chunk.pointer(path).and_then(Value::as_str);
                if at("/choices/0/delta/content").is_some_and(|text| !text.is_empty()) {
                    first.get_or_insert_with(|| sent.elapsed());
                }
                if let Some(reason) = at("/choices/0/finish_reason") {
                    finish = Some(reason.to_owned());
                }
                if let Some(message) = at("/error/message") {
                    bail!("a reply failed: {message}");
                }
            }
        }
        let is_complete = finish.as_deref() == Some("length");
        Ok(first
            .filter(|_| is_complete)
            .map(|first| (first, sent.elapsed())))
    }
}
