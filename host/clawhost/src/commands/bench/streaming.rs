//! What a chat client sees of a streamed reply: a whole server on a free port, and real HTTP.
//!
//! The engine's own figures leave out template, tokenizer, journal and network. Here they are in, and the
//! first token is set against the whole reply: that share tells whether text really comes as it is made.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clawhost_policy::measure::Spread;
use serde_json::{Value, json};

use crate::config::Config;
use crate::serve::{Server, Settings};

/// Tokens of a reply that counts.
pub(super) const REPLY: u32 = 200;
/// Longer than a reply takes on any machine that serves the model at all.
const PATIENCE: Duration = Duration::from_secs(600);
/// A reply may end by itself before it has [`REPLY`] tokens. Then another is asked for, this many times.
const ATTEMPTS: u64 = 100;

/// What was measured with so many streams at once; one value a stream and round.
pub(super) struct Streamed {
    pub(super) streams: usize,
    /// Milliseconds from sending the request to the first text.
    pub(super) first_token_ms: Spread,
    /// The same, in hundredths of the time to the end of the reply.
    pub(super) first_token_share: Spread,
}

/// Serves the model and measures with each number of streams.
pub(super) fn measure(
    model: Option<&Path>,
    streams: &[usize],
    rounds: u32,
) -> Result<Vec<Streamed>> {
    serving(model, async |server| {
        let client = Client::of(server)?;
        let mut measured = Vec::new();
        for &streams in streams {
            measured.push(client.streams(streams, rounds).await?);
        }
        Ok(measured)
    })
}

/// Serves the model on a free port, without training, for as long as `work` takes.
pub(super) fn serving<T>(
    model: Option<&Path>,
    work: impl AsyncFnOnce(&Server) -> Result<T>,
) -> Result<T> {
    serving_with(model, |_| {}, work)
}

/// [`serving`] with a configuration of its own.
pub(super) fn serving_with<T>(
    model: Option<&Path>,
    configure: impl FnOnce(&mut Config),
    work: impl AsyncFnOnce(&Server) -> Result<T>,
) -> Result<T> {
    let data = std::env::temp_dir().join(format!("clawhost-bench-serve-{}", std::process::id()));
    let mut config = Config::load(None, model)?;
    config.server.port = 0;
    config.server.data.clone_from(&data);
    config.training.enabled = false;
    configure(&mut config);
    let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
    let worked = runtime.block_on(async {
        let server = Server::start(Settings::from(config)).await?;
        let worked = work(&server).await;
        server.stop().await;
        worked
    });
    if data.exists() {
        std::fs::remove_dir_all(&data)
            .with_context(|| format!("cannot remove {}", data.display()))?;
    }
    worked
}

/// Times of a reply of [`REPLY`] tokens: to its first, and to its end.
async fn whole(client: Client, number: u64) -> Result<(Duration, Duration)> {
    for attempt in 0..ATTEMPTS {
        if let Some(times) = client.reply(number, attempt).await? {
            return Ok(times);
        }
    }
    bail!("none of {ATTEMPTS} replies had {REPLY} tokens; measure with a --model that talks longer")
}

/// A chat client with a stop-watch.
#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    url: String,
    key: Option<String>,
    /// Conversations begun.
    asked: Arc<AtomicU64>,
}

impl Client {
    pub(super) fn of(server: &Server) -> Result<Self> {
        Ok(Self {
            http: reqwest::Client::builder().no_proxy().build()?,
            url: format!("{}/v1/chat/completions", server.url()),
            // The server asks for it when there is one.
            key: std::env::var("CLAWHOST_API_KEY").ok(),
            asked: Arc::default(),
        })
    }

    /// Measures with so many streams at once, after a round that warms up.
    pub(super) async fn streams(&self, streams: usize, rounds: u32) -> Result<Streamed> {
        let (mut firsts, mut shares) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let mut replies = tokio::task::JoinSet::new();
            for _ in 0..streams {
                let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
                replies.spawn(whole(self.clone(), number));
            }
            while let Some(reply) = replies.join_next().await {
                let (first, total) = reply.context("a stream broke off")??;
                if round > 0 {
                    firsts.push(first.as_secs_f64() * 1e3);
                    shares.push(100.0 * first.as_secs_f64() / total.as_secs_f64());
                }
            }
        }
        Ok(Streamed {
            streams,
            first_token_ms: Spread::of(&firsts),
            first_token_share: Spread::of(&shares),
        })
    }

    /// Times of one reply; none when it ended by itself.
    async fn reply(&self, number: u64, attempt: u64) -> Result<Option<(Duration, Duration)>> {
        // Each is a conversation of its own from its first word on, so that nothing computed is reused.
        let text = format!(
            "{number}.{attempt}: Tell a long story about a shop with {number} shelves, and leave nothing out."
        );
        // As undecided as a request may be, and with a penalty on what the prompt holds, such as the end of
        // a message: so that few replies end early.
        let body = json!({
            "messages": [{"role": "user", "content": text}], "stream": true, "max_tokens": REPLY,
            "seed": number * ATTEMPTS + attempt, "temperature": 2.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
            "repetition_penalty": 10.0,
        });
        let mut request = self.http.post(&self.url).json(&body).timeout(PATIENCE);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let sent = Instant::now();
        let mut response = request.send().await?.error_for_status()?;
        let (mut unread, mut first, mut finish) = (Vec::new(), None, None);
        while let Some(bytes) = response.chunk().await? {
            unread.extend_from_slice(&bytes);
            while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                // What is no JSON is a blank line or the mark at the end.
                let data = line.strip_prefix(b"data: ").unwrap_or_default();
                let Ok(chunk) = serde_json::from_slice::<Value>(data) else {
                    continue;
                };
                let at = |path| chunk.pointer(path).and_then(Value::as_str);
                if at("/choices/0/delta/content").is_some_and(|text| !text.is_empty()) {
                    first.get_or_insert_with(|| sent.elapsed());
                }
                if let Some(reason) = at("/choices/0/finish_reason") {
                    finish = Some(reason.to_owned());
                }
                if let Some(message) = at("/error/message") {
                    bail!("a reply broke off: {message}");
                }
            }
        }
        let whole = finish.as_deref() == Some("length");
        Ok(first.filter(|_| whole).map(|first| (first, sent.elapsed())))
    }
}
