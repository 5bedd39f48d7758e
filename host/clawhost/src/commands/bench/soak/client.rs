//! A client that streams conversations of a few turns continuously and times each token.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clawhost_http::SseDecoder;
use serde_json::{Value, json};

use super::gaps::Gaps;

/// Longer than any reply takes under load.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Gaps that end within this time after a swap are counted separately.
const NEAR: Duration = Duration::from_secs(1);
/// Errors that are kept; the others are only counted.
const MAX_ERRORS: usize = 5;

/// Feedback to replies, so that the judge gives positive and negative rewards, and hints that a teacher scores.
const REACTIONS: [&str; 3] = [
    "Thanks, that is perfect.",
    "No, that is wrong, please redo it.",
    "That is too long. Please answer in one short sentence.",
];

/// What is being measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing.
    Uncounted,
    /// Streams without training.
    Without,
    /// Streams with training.
    With,
}

/// When a version was published, and when its first token arrived, in microseconds since the start.
#[derive(Debug, Clone, Copy, Default)]
struct VersionTimes {
    published: Option<u64>,
    token: Option<u64>,
}

/// State shared by the clients and the publisher.
pub(super) struct SharedState {
    started: Instant,
    /// Newest published version.
    pub(super) published: AtomicU64,
    /// Time of the last publication, in microseconds since the start.
    published_us: AtomicU64,
    pub(super) stop: AtomicBool,
    /// By version.
    versions: Mutex<BTreeMap<u64, VersionTimes>>,
    /// A [`Phase`].
    phase: AtomicU8,
    /// Whether clients give feedback, so that there is something to train on.
    gives_feedback: AtomicBool,
}

impl SharedState {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            published: AtomicU64::new(0),
            published_us: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            versions: Mutex::default(),
            phase: AtomicU8::new(Phase::Uncounted as u8),
            gives_feedback: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Uncounted,
            1 => Phase::Without,
            2 => Phase::With,
            other => unreachable!("{other} is no phase"),
        }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub(super) fn gives_feedback(&self) -> bool {
        self.gives_feedback.load(Ordering::Relaxed)
    }

    /// Starts the feedback.
    pub(super) fn start_feedback(&self) {
        self.gives_feedback.store(true, Ordering::Relaxed);
    }

    /// Records that a version is active.
    pub(super) fn publish(&self, version: u64) {
        let now = self.now();
        self.published.store(version, Ordering::SeqCst);
        self.published_us.store(now, Ordering::SeqCst);
        self.versions().entry(version).or_default().published = Some(now);
    }

    fn versions(&self) -> MutexGuard<'_, BTreeMap<u64, VersionTimes>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the first token of a reply.
    fn first_token(&self, version: u64) {
        let now = self.now();
        self.versions()
            .entry(version)
            .or_default()
            .token
            .get_or_insert(now);
    }

    /// Milliseconds from each publication to the first token served with it.
    pub(super) fn first_tokens(&self) -> Vec<f64> {
        let versions = self.versions();
        let both = versions
            .values()
            .filter_map(|times| times.published.zip(times.token));
        both.map(|(published, token)| token.saturating_sub(published) as f64 / 1e3)
            .collect()
    }

    /// Whether a version was published just now.
    fn is_near(&self) -> bool {
        let published_us = self.published_us.load(Ordering::Relaxed);
        let since = self.now().saturating_sub(published_us);
        published_us > 0 && Duration::from_micros(since) <= NEAR
    }
}

/// A reply and its version.
#[derive(Debug, Clone)]
pub(super) struct CheckedReply {
    pub(super) turn: String,
    pub(super) version: u64,
}

/// Figures of one client in one phase.
#[derive(Debug, Clone, Default)]
pub(super) struct PhaseCounts {
    pub(super) tokens: u64,
    pub(super) gaps: Gaps,
}

/// Figures of one client.
#[derive(Default)]
pub(super) struct ClientStats {
    pub(super) requests: u64,
    pub(super) tokens: u64,
    pub(super) failed: u64,
    pub(super) errors: Vec<String>,
    pub(super) near: Gaps,
    pub(super) away: Gaps,
    /// By phase.
    counts: [PhaseCounts; 3],
    /// The client's last replies, to be checked.
    pub(super) answered: Vec<CheckedReply>,
}

impl ClientStats {
    fn fail(&mut self, error: &anyhow::Error) {
        self.failed += 1;
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(format!("{error:#}"));
        }
    }

    pub(super) fn counts(&self, phase: Phase) -> &PhaseCounts {
        &self.counts[phase as usize]
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.failed += other.failed;
        let room = MAX_ERRORS.saturating_sub(self.errors.len());
        self.errors.extend(other.errors.into_iter().take(room));
        self.near.merge(&other.near);
        self.away.merge(&other.away);
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            own.tokens += more.tokens;
            own.gaps.merge(&more.gaps);
        }
        self.answered.extend(other.answered);
    }
}

/// A streaming client.
#[derive(Clone)]
pub(super) struct StreamingClient {
    pub(super) http: reqwest::Client,
    pub(super) url: String,
    pub(super) key: Option<String>,
    pub(super) state: Arc<SharedState>,
    /// Number of last replies to check.
    pub(super) checked_replies: usize,
}

impl StreamingClient {
    /// Runs conversations until the state says to stop.
    pub(super) async fn run(self, number: u64) -> ClientStats {
        let mut stats = ClientStats::default();
        let mut random = Random(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut conversation = 0u64;
        while !self.state.stop.load(Ordering::Relaxed) {
            conversation += 1;
            // A few system prompts shared by all, as users of one application have.
            let system = format!(
                "You are assistant number {}. {}",
                number % 4,
                words(&mut Random(number % 4 + 1), 60)
            );
            let mut messages = vec![json!({"role": "system", "content": system})];
            for turn in 0..=random.below(4) {
                if self.state.stop.load(Ordering::Relaxed) {
                    break;
                }
                let length = 5 + random.below(if turn == 0 { 200 } else { 40 });
                let mut text = format!(
                    "{number}.{conversation}.{turn}: {}",
                    words(&mut random, length)
                );
                if turn > 0 && self.state.gives_feedback() {
                    text = format!("{} {text}", REACTIONS[random.below(3) as usize]);
                }
                messages.push(json!({"role": "user", "content": text}));
                match self.turn(number, &messages, &mut random, &mut stats).await {
                    Ok(reply) => messages.push(json!({"role": "assistant", "content": reply})),
                    Err(error) => {
                        stats.fail(&error);
                        break;
                    }
                }
            }
        }
        stats
    }

    /// Sends a request at once after the publication of a version, for the time to its first token: the streams only send one
    /// when a reply ends. It asks for one token and no stream, because a token without text is no event of a stream.
    pub(super) async fn probe(self, version: u64) -> ClientStats {
        let mut stats = ClientStats {
            requests: 1,
            ..ClientStats::default()
        };
        let body = json!({
            "messages": [{"role": "user", "content": format!("probe {version}")}], "max_tokens": 1, "user": "probe",
        });
        let served = async {
            let (response, reply) = self.send(&body).await?;
            response.bytes().await.context("a reply failed")?;
            anyhow::Ok(reply.version)
        };
        match served.await {
            Ok(served) => self.state.first_token(served),
            Err(error) => stats.fail(&error),
        }
        stats
    }

    /// Sends a request. Returns its response, of which only the headers have been read, with the turn and its version.
    async fn send(&self, body: &Value) -> Result<(reqwest::Response, CheckedReply)> {
        let mut request = self.http.post(&self.url).json(body).timeout(TIMEOUT);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await?;
        let status = response.status();
        if status != 200 {
            let body_text = response.text().await?;
            bail!("status {status}: {body_text}");
        }
        let header = |name: &str| {
            let value = response.headers().get(name);
            let text = value.and_then(|value| value.to_str().ok());
            text.map(str::to_owned)
                .with_context(|| format!("no header {name}"))
        };
        let (turn, adapter) = (header("x-clawhost-turn")?, header("x-clawhost-adapter")?);
        let version: u64 = adapter
            .split(':')
            .next()
            .and_then(|version| version.parse().ok())
            .with_context(|| format!("x-clawhost-adapter is {adapter:?}"))?;
        Ok((response, CheckedReply { turn, version }))
    }

    /// Gets one whole reply.
    async fn turn(
        &self,
        number: u64,
        messages: &[Value],
        random: &mut Random,
        stats: &mut ClientStats,
    ) -> Result<String> {
        let body = json!({
            "messages": messages, "stream": true, "max_tokens": 16 + random.below(150),
            "temperature": 1.5, "seed": random.next(), "user": format!("user {}", number % 8),
        });
        stats.requests += 1;
        let before = self.state.published.load(Ordering::SeqCst);
        let (mut response, CheckedReply { turn, version }) = self.send(&body).await?;
        let after = self.state.published.load(Ordering::SeqCst);
        // A version becomes active a moment before the shared state shows it.
        ensure!(
            (before..=after + 1).contains(&version),
            "version {version} answered a request that was sent under version {before} and started under {after}"
        );
        let (mut events, mut text) = (SseDecoder::default(), String::new());
        let (mut last, mut finish, mut done) = (None::<Instant>, false, false);
        while let Some(bytes) = response.chunk().await.context("a stream failed")? {
            for data in events.push(&bytes).map_err(anyhow::Error::msg)? {
                if data == "[DONE]" {
                    done = true;
                    break;
                }
                let chunk: Value = serde_json::from_str(&data)?;
                let at = |path| chunk.pointer(path).and_then(Value::as_str);
                if let Some(message) = at("/error/message") {
                    bail!("a reply failed: {message}");
                }
                finish |= at("/choices/0/finish_reason").is_some();
                if let Some(delta) = at("/choices/0/delta/content").filter(|text| !text.is_empty())
                {
                    text.push_str(delta);
                    let now = Instant::now();
                    let counts = &mut stats.counts[self.state.phase() as usize];
                    if last.is_none() {
                        self.state.first_token(version);
                    }
                    if let Some(last) = last.replace(now) {
                        let near = self.state.is_near();
                        let gaps = if near {
                            &mut stats.near
                        } else {
                            &mut stats.away
                        };
                        gaps.add(now - last);
                        counts.gaps.add(now - last);
                        counts.tokens += 1;
                    }
                    stats.tokens += 1;
                }
            }
        }
        ensure!(
            finish && done,
            "a stream ended without finish_reason and [DONE]"
        );
        if stats.answered.len() >= self.checked_replies {
            stats.answered.remove(0);
        }
        stats.answered.push(CheckedReply { turn, version });
        Ok(text)
    }
}

/// Deterministic random numbers (xorshift, Marsaglia 2003).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// A number below `bound`, which must be at least 1.
    fn below(&mut self, bound: u32) -> u32 {
        self.next() % bound
    }
}

fn words(random: &mut Random, count: u32) -> String {
    const WORDS: [&str; 16] = [
        "seven", "apples", "and", "a", "basket", "cost", "more", "than", "three", "pears", "why",
        "does", "the", "teacher", "count", "them",
    ];
    let one = |_| WORDS[random.below(16) as usize];
    (0..count).map(one).collect::<Vec<_>>().join(" ")
}
