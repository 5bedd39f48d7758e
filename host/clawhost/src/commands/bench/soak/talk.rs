//! One client that never stops talking: conversations of a few turns, streamed, each token timed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::gaps::Gaps;

/// Longer than a reply takes beside any number of others.
const PATIENCE: Duration = Duration::from_secs(300);
/// Gaps that end within this time after a swap are counted apart.
const NEAR: Duration = Duration::from_secs(1);
/// Errors that are told; the others are counted.
const TOLD: usize = 5;

/// What people say to a reply that is to train: the judge hears praise and complaint in turn.
const REACTIONS: [&str; 2] = [
    "Thanks, that is perfect.",
    "No, that is wrong, please redo it.",
];

/// What is counted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing.
    Uncounted,
    /// The streams, without training.
    Without,
    /// The streams, with training.
    With,
}

/// What clients and the publisher tell each other.
pub(super) struct Board {
    begun: Instant,
    /// Newest published version.
    pub(super) published: AtomicU64,
    /// When that was, in microseconds since the beginning.
    swapped: AtomicU64,
    pub(super) over: AtomicBool,
    /// A [`Phase`].
    phase: AtomicU8,
    /// Whether people praise and complain, so that there is something to train.
    teaches: AtomicBool,
}

impl Board {
    pub(super) fn new() -> Self {
        Self {
            begun: Instant::now(),
            published: AtomicU64::new(0),
            swapped: AtomicU64::new(0),
            over: AtomicBool::new(false),
            phase: AtomicU8::new(Phase::Uncounted as u8),
            teaches: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn phase(&self) -> Phase {
        let phase = self.phase.load(Ordering::Relaxed);
        let all = [Phase::Without, Phase::With];
        let found = all.into_iter().find(|one| *one as u8 == phase);
        found.unwrap_or(Phase::Uncounted)
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub(super) fn teaches(&self) -> bool {
        self.teaches.load(Ordering::Relaxed)
    }

    /// People praise and complain from now on.
    pub(super) fn teach(&self) {
        self.teaches.store(true, Ordering::Relaxed);
    }

    /// A version is active from now on.
    pub(super) fn publish(&self, version: u64) {
        self.published.store(version, Ordering::SeqCst);
        self.swapped.store(self.now(), Ordering::SeqCst);
    }

    /// Whether a swap was just now.
    fn is_near(&self) -> bool {
        let swapped = self.swapped.load(Ordering::Relaxed);
        let since = self.now().saturating_sub(swapped);
        swapped > 0 && Duration::from_micros(since) <= NEAR
    }
}

/// A reply, and which version gave it.
#[derive(Debug, Clone)]
pub(super) struct Answered {
    pub(super) turn: String,
    pub(super) version: u64,
}

/// What a client saw in one phase.
#[derive(Debug, Clone, Default)]
pub(super) struct Counted {
    pub(super) tokens: u64,
    pub(super) gaps: Gaps,
}

/// What one client saw.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) requests: u64,
    pub(super) tokens: u64,
    pub(super) failed: u64,
    pub(super) errors: Vec<String>,
    pub(super) near: Gaps,
    pub(super) away: Gaps,
    /// By phase.
    counted: [Counted; 3],
    /// The last of its replies, to be looked up.
    pub(super) answered: Vec<Answered>,
}

impl Seen {
    fn fail(&mut self, error: &anyhow::Error) {
        self.failed += 1;
        if self.errors.len() < TOLD {
            self.errors.push(format!("{error:#}"));
        }
    }

    pub(super) fn of(&self, phase: Phase) -> &Counted {
        let [uncounted, without, with] = &self.counted;
        match phase {
            Phase::Uncounted => uncounted,
            Phase::Without => without,
            Phase::With => with,
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.failed += other.failed;
        let room = TOLD.saturating_sub(self.errors.len());
        self.errors.extend(other.errors.into_iter().take(room));
        self.near.merge(&other.near);
        self.away.merge(&other.away);
        for (own, more) in self.counted.iter_mut().zip(&other.counted) {
            own.tokens += more.tokens;
            own.gaps.merge(&more.gaps);
        }
        self.answered.extend(other.answered);
    }
}

/// A client.
#[derive(Clone)]
pub(super) struct Talker {
    pub(super) http: reqwest::Client,
    pub(super) url: String,
    pub(super) key: Option<String>,
    pub(super) board: Arc<Board>,
    /// Replies of each client that are looked up at the end.
    pub(super) remembered: usize,
}

impl Talker {
    /// Talks until the board says that it is over.
    pub(super) async fn talk(self, number: u64) -> Seen {
        let mut seen = Seen::default();
        let mut chance = Chance(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut conversation = 0u64;
        while !self.board.over.load(Ordering::Relaxed) {
            conversation += 1;
            // A few system prompts for all, as users of one program have.
            let system = format!(
                "You are assistant number {}. {}",
                number % 4,
                words(&mut Chance(number % 4 + 1), 60)
            );
            let mut messages = vec![json!({"role": "system", "content": system})];
            for turn in 0..=chance.below(4) {
                if self.board.over.load(Ordering::Relaxed) {
                    break;
                }
                let length = 5 + chance.below(if turn == 0 { 200 } else { 40 });
                let mut text = format!(
                    "{number}.{conversation}.{turn}: {}",
                    words(&mut chance, length)
                );
                if turn > 0 && self.board.teaches() {
                    let reaction = REACTIONS.get(chance.below(2) as usize);
                    text = format!("{} {text}", reaction.copied().unwrap_or_default());
                }
                messages.push(json!({"role": "user", "content": text}));
                match self.turn(number, &messages, &mut chance, &mut seen).await {
                    Ok(reply) => messages.push(json!({"role": "assistant", "content": reply})),
                    Err(error) => {
                        seen.fail(&error);
                        break;
                    }
                }
            }
        }
        seen
    }

    /// One reply, whole.
    async fn turn(
        &self,
        number: u64,
        messages: &[Value],
        chance: &mut Chance,
        seen: &mut Seen,
    ) -> Result<String> {
        let body = json!({
            "messages": messages, "stream": true, "max_tokens": 16 + chance.below(150),
            "temperature": 1.5, "seed": chance.next(), "user": format!("user {}", number % 8),
        });
        seen.requests += 1;
        let before = self.board.published.load(Ordering::SeqCst);
        let mut request = self.http.post(&self.url).json(&body).timeout(PATIENCE);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let mut response = request.send().await?;
        let after = self.board.published.load(Ordering::SeqCst);
        let status = response.status();
        if status != 200 {
            let said = response.text().await?;
            bail!("status {status}: {said}");
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
        // A version is active a moment before the board says so.
        ensure!(
            (before..=after + 1).contains(&version),
            "version {version} answered a request that was sent under {before} and begun under {after}"
        );
        let (mut unread, mut text) = (Vec::new(), String::new());
        let (mut last, mut finish, mut done) = (None::<Instant>, false, false);
        while let Some(bytes) = response.chunk().await.context("a stream broke off")? {
            unread.extend_from_slice(&bytes);
            while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                let data = line.strip_prefix(b"data: ").unwrap_or_default();
                done |= data.starts_with(b"[DONE]");
                let Ok(chunk) = serde_json::from_slice::<Value>(data) else {
                    continue;
                };
                let at = |path| chunk.pointer(path).and_then(Value::as_str);
                if let Some(message) = at("/error/message") {
                    bail!("a reply broke off: {message}");
                }
                finish |= at("/choices/0/finish_reason").is_some();
                if let Some(delta) = at("/choices/0/delta/content").filter(|text| !text.is_empty())
                {
                    text.push_str(delta);
                    let now = Instant::now();
                    let counted = seen.counted.get_mut(self.board.phase() as usize);
                    if let Some(last) = last.replace(now) {
                        let near = self.board.is_near();
                        let gaps = if near { &mut seen.near } else { &mut seen.away };
                        gaps.add(now - last);
                        if let Some(counted) = counted {
                            counted.gaps.add(now - last);
                            counted.tokens += 1;
                        }
                    }
                    seen.tokens += 1;
                }
            }
        }
        ensure!(finish && done, "a stream ended without its end");
        if seen.answered.len() >= self.remembered {
            seen.answered.remove(0);
        }
        seen.answered.push(Answered { turn, version });
        Ok(text)
    }
}

/// Numbers that look random and are the same each time (Marsaglia 2003, xorshift).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// A number below `bound`, which is at least 1.
    fn below(&mut self, bound: u32) -> u32 {
        self.next() % bound
    }
}

fn words(chance: &mut Chance, count: u32) -> String {
    const WORDS: [&str; 16] = [
        "seven", "apples", "and", "a", "basket", "cost", "more", "than", "three", "pears", "why",
        "does", "the", "teacher", "count", "them",
    ];
    let one = |_| {
        WORDS
            .get(chance.below(16) as usize)
            .copied()
            .unwrap_or("and")
    };
    (0..count).map(one).collect::<Vec<_>>().join(" ")
}
