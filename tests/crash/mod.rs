//! `kill -9` at any instant, with clients that talk all the while: what a client saw complete is in the
//! journal, no received turn is lost, no sample trains twice, and the adapters are one whole chain.
//!
//! The instants are drawn from a seed and counted in progress (pieces of text, replies, samples, files
//! of a checkpoint), not in time. `mixed` adds the other ways in which a life ends: asked to stop, and a full disk.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and this one prints its figures"
)]

mod checks;
mod mixed;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clawhost_journal::{Journal, TurnId, TurnState};
use clawhost_policy::{ModelConfig, ModelFiles};
use clawhost_tests::{Client, Command, PATIENCE, Process, Talk, repeats};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::watch;

const CLIENTS: u64 = 3;
/// Longer than it takes on any machine.
const LONGEST: Duration = Duration::from_secs(900);

/// What the clients saw, over all lives of the server.
#[derive(Default)]
struct Ledger {
    /// Turns whose response head arrived.
    heads: Mutex<BTreeSet<TurnId>>,
    /// Replies that arrived completely.
    complete: Mutex<BTreeMap<TurnId, String>>,
    /// Pieces of text, ever.
    pieces: AtomicU64,
    /// Complete replies, ever.
    replies: AtomicU64,
    /// Requests that broke off, ever.
    broken: AtomicU64,
    /// Whether the server that is up may refuse: its disk is or was full, or it is stopping.
    may_refuse: AtomicBool,
    /// Requests that it refused, ever.
    refused: AtomicU64,
}

impl Ledger {
    fn head(&self, turn: TurnId) {
        let new = self.heads.lock().unwrap().insert(turn);
        assert!(new, "turn {turn} was given out twice");
    }

    /// Whether a server that took a request answered it.
    fn answered(&self, status: u16, body: &str) -> bool {
        if status == 200 {
            return true;
        }
        let may_refuse = self.may_refuse.load(Ordering::SeqCst);
        assert!(may_refuse && status == 503, "{status}: {body}");
        self.refused.fetch_add(1, Ordering::SeqCst);
        false
    }

    fn complete(&self, turn: TurnId, text: &str) {
        self.complete.lock().unwrap().insert(turn, text.to_owned());
        self.replies.fetch_add(1, Ordering::SeqCst);
    }
}

/// Says something; none when the server went away.
async fn say(talk: &mut Talk, ledger: &Ledger, text: &str, streaming: bool) -> Option<()> {
    let request = talk.request(text);
    let (turn, reply) = if streaming {
        let stream = request.try_stream().await.ok()?;
        if !ledger.answered(stream.status, "") {
            return None;
        }
        let turn = stream.turn();
        ledger.head(turn);
        let count = |chunk: &serde_json::Value| {
            if chunk["choices"][0]["delta"]["content"] != "" {
                ledger.pieces.fetch_add(1, Ordering::SeqCst);
            }
        };
        let reply = stream.rest_with(count).await.ok()?;
        // The server's end without a last chunk is no end of a reply.
        if reply.finish.is_none() {
            ledger.refused.fetch_add(1, Ordering::SeqCst);
            return None;
        }
        (turn, reply.text)
    } else {
        let answer = request.try_send().await.ok()?;
        if !ledger.answered(answer.status, &answer.body.to_string()) {
            return None;
        }
        ledger.head(answer.turn());
        (answer.turn(), answer.text().to_owned())
    };
    ledger.complete(turn, &reply);
    talk.note(text, &reply);
    Some(())
}

/// One conversation with the server that is up.
async fn converse(client: &Client, ledger: &Ledger, rng: &mut ChaCha8Rng) -> Option<()> {
    let mut talk = Talk::new(client).with(json!({"temperature": 0.9, "max_tokens": 60}));
    let (a, b) = (rng.random_range(3..60), rng.random_range(2..40));
    let opening = format!("Kim has {a} cards and gets {b} more. How many cards are there?");
    say(&mut talk, ledger, &opening, rng.random()).await?;
    for _ in 0..rng.random_range(1..4) {
        let text = if rng.random() {
            "That's wrong, do it again please."
        } else {
            "Thanks, perfect!"
        };
        say(&mut talk, ledger, text, rng.random()).await?;
    }
    Some(())
}

/// Talks to whichever server is up until there will be no more.
async fn person(mut up: watch::Receiver<Option<String>>, ledger: Arc<Ledger>, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    loop {
        let Ok(url) = up.wait_for(Option::is_some).await.map(|url| url.clone()) else {
            return;
        };
        let client = Client::new(url.as_deref().unwrap());
        while converse(&client, &ledger, &mut rng).await.is_some() {}
        ledger.broken.fetch_add(1, Ordering::SeqCst);
        if ledger.may_refuse.load(Ordering::SeqCst) && *up.borrow() == url {
            // A pause only leaves the server the processor.
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        // Until the killer says that this one is gone; the next one has another address.
        let gone = up.changed().await;
        if gone.is_err() {
            return;
        }
    }
}

/// When to kill.
#[derive(Debug, Clone, Copy)]
enum Instants {
    /// As soon as it is up.
    AtOnce,
    /// After so many pieces of text in this life.
    Pieces(u64),
    /// After so many replies in this life.
    Replies(u64),
    /// After so many samples were recorded in this life.
    Samples(u64),
    /// While a checkpoint is being written.
    Writing,
    /// Right after a step was recorded.
    Step,
}

impl Instants {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        match rng.random_range(0..12) {
            0 => Self::AtOnce,
            1..=3 => Self::Pieces(rng.random_range(1..200)),
            4..=5 => Self::Replies(rng.random_range(1..8)),
            6..=7 => Self::Samples(rng.random_range(1..4)),
            8..=10 => Self::Writing,
            _ => Self::Step,
        }
    }

    /// Waits for it.
    fn wait(self, data: &Path, ledger: &Ledger, process: &mut Process) {
        let journal = Journal::open_read_only(data).unwrap();
        let samples = || {
            let counts = journal.counts().unwrap();
            counts.samples.values().sum::<u64>()
        };
        let steps = || journal.counts().unwrap().steps.values().sum::<u64>();
        let (pieces, replies) = (
            ledger.pieces.load(Ordering::SeqCst),
            ledger.replies.load(Ordering::SeqCst),
        );
        let (first_samples, first_steps) = (samples(), steps());
        let began = Instant::now();
        loop {
            let now = match self {
                Self::AtOnce => true,
                Self::Pieces(n) => ledger.pieces.load(Ordering::SeqCst) >= pieces + n,
                Self::Replies(n) => ledger.replies.load(Ordering::SeqCst) >= replies + n,
                Self::Samples(n) => samples() >= first_samples + n,
                Self::Writing => unfinished(data),
                Self::Step => steps() > first_steps,
            };
            if now {
                return;
            }
            assert!(!process.is_gone(), "the server ended by itself");
            assert!(began.elapsed() < PATIENCE, "{self:?} never came");
            // Another process cannot wake this one; a pause only leaves it the processor.
            std::thread::park_timeout(Duration::from_micros(300));
        }
    }
}

/// Whether a checkpoint is half written.
fn unfinished(data: &Path) -> bool {
    let entries = std::fs::read_dir(data.join("adapters"));
    entries.into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with(".v")
    })
}

/// Adapters published so far, over all lives.
fn adapters(data: &Path) -> u64 {
    // There is no journal before the first life.
    let journal = Journal::open_read_only(data).ok();
    journal.map_or(0, |journal| journal.counts().unwrap().adapters)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_nothing_trains_twice_over_many_kills() {
    let least_kills = repeats(15, 50);
    // Adapters that it has published by the end.
    let least_adapters = repeats(4, 10);
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let file = dir.path().join("clawhost.toml");
    std::fs::write(
        &file,
        "[training]\nbatch = 2\nmin_batch = 1\nmax_wait_seconds = 0.2\nepochs = 1\n",
    )
    .unwrap();
    let mut arguments: Vec<String> = ["run", "--port", "0", "--data"]
        .into_iter()
        .map(str::to_owned)
        .chain([
            data.display().to_string(),
            "--config".to_owned(),
            file.display().to_string(),
        ])
        .collect();
    let model = ModelConfig::parse(ModelFiles::embedded().config()).unwrap();
    let ledger = Arc::new(Ledger::default());
    let (announce, up) = watch::channel(None);
    let people: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(person(up.clone(), Arc::clone(&ledger), 100 + number)))
        .collect();
    drop(up);
    let mut rng = ChaCha8Rng::seed_from_u64(20_261_121);
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    let mut halves = 0;
    let began = Instant::now();
    let mut lives = 0;
    // As many kills as promised, and more until it has trained enough: how many steps get done between two
    // kills depends on the machine.
    while lives < least_kills || adapters(&data) < least_adapters {
        lives += 1;
        assert!(
            began.elapsed() < LONGEST,
            "after {lives} lives there are only {} adapters",
            adapters(&data)
        );
        let starting = arguments.clone();
        let started = tokio::task::spawn_blocking(move || Command::new(&starting).serve());
        let Some(mut process) = started.await.unwrap() else {
            panic!("life {lives} did not start");
        };
        let journal = Journal::open_read_only(&data).unwrap();
        checks::start(&Client::new(&process.url), &journal).await;
        checks::turns(&journal, &ledger, 60);
        drop(journal);
        let instant = Instants::draw(&mut rng);
        let kind = format!("{instant:?}");
        *kinds
            .entry(kind.split('(').next().unwrap().to_owned())
            .or_default() += 1;
        announce.send_replace(Some(process.url.clone()));
        let (told, place) = (Arc::clone(&ledger), data.clone());
        let killed = tokio::task::spawn_blocking(move || {
            instant.wait(&place, &told, &mut process);
            process.kill()
        });
        let said = killed.await.unwrap();
        assert!(!said.contains("panicked"), "{said}");
        announce.send_replace(None);
        halves += u64::from(unfinished(&data));
        checks::training(&data, &model, false);
    }
    drop(announce);
    for person in people {
        person.await.unwrap();
    }
    // Once more, and this time it only serves, so that everything can be looked at.
    arguments.push("--no-train".to_owned());
    let started = tokio::task::spawn_blocking(move || Command::new(&arguments).serve());
    let process = started.await.unwrap().unwrap();
    let journal = Journal::open_read_only(&data).unwrap();
    checks::start(&Client::new(&process.url), &journal).await;
    checks::turns(&journal, &ledger, usize::MAX);
    checks::training(&data, &model, true);
    checks::dropped(&journal);
    assert!(!unfinished(&data), "half a checkpoint survived the start");
    drop(process);
    let counts = journal.counts().unwrap();
    println!(
        "{lives} kills in {:.0} s by {kinds:?}; {} requests seen to begin, {} replies seen complete, {} conversations broken off",
        began.elapsed().as_secs_f64(),
        ledger.heads.lock().unwrap().len(),
        ledger.replies.load(Ordering::SeqCst),
        ledger.broken.load(Ordering::SeqCst),
    );
    println!(
        "turns {:?}, samples {:?}, steps {:?}, {} adapters, {halves} checkpoints cut while being written",
        counts.turns, counts.samples, counts.steps, counts.adapters
    );
    println!("samples dropped: {:?}", counts.dropped);
    assert!(halves > 0 && ledger.broken.load(Ordering::SeqCst) >= least_kills);
    assert!(
        counts.adapters >= least_adapters,
        "it trained all the while"
    );
    assert!(
        counts
            .turns
            .get(&TurnState::Aborted)
            .is_some_and(|n| *n >= least_kills / 5)
    );
}
