//! `kill -9` at random points under load: a reply that a client saw complete is in the journal, no received turn is
//! lost, no sample trains twice, and the adapter versions form one chain.
//!
//! The kill points are drawn from a seed and counted in progress (text chunks, replies, samples, checkpoint files), not
//! in time. `mixed` adds other ways to end a run: SIGTERM and a full disk.

mod checks;
mod mixed;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clawhost_journal::{Journal, TurnId, TurnState};
use clawhost_model::{ModelConfig, ModelFiles};
use clawhost_tests::{Client, Command, Conversation, ServerProcess, WAIT_TIMEOUT, repeats};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::watch;

const CLIENTS: u64 = 3;
/// Timeout; longer than the test takes on any machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(1_800);

/// What the clients observed, over all runs of the server.
#[derive(Default)]
struct ClientLedger {
    /// Turns whose response head arrived.
    heads: Mutex<BTreeSet<TurnId>>,
    /// Replies that arrived complete.
    complete: Mutex<BTreeMap<TurnId, String>>,
    /// Text chunks in total.
    text_chunks: AtomicU64,
    /// Complete replies in total.
    replies: AtomicU64,
    /// Interrupted conversations in total.
    interrupted: AtomicU64,
    /// Whether the running server may reject requests: its disk is or was full, or it is stopping.
    may_reject: AtomicBool,
    /// Rejected requests in total.
    rejected: AtomicU64,
}

impl ClientLedger {
    fn head(&self, turn: TurnId) {
        let new = self.heads.lock().unwrap().insert(turn);
        assert!(new, "turn id {turn} was assigned twice");
    }

    /// Whether the response is successful; asserts that the server may reject requests if not.
    fn is_success(&self, status: u16, body: &str) -> bool {
        if status == 200 {
            return true;
        }
        assert!(self.may_reject.load(Ordering::SeqCst), "{status}: {body}");
        self.rejected.fetch_add(1, Ordering::SeqCst);
        false
    }

    fn complete(&self, turn: TurnId, text: &str) {
        self.complete.lock().unwrap().insert(turn, text.to_owned());
        self.replies.fetch_add(1, Ordering::SeqCst);
    }
}

/// Sends a message; `None` if the server went away.
async fn send_message(
    conversation: &mut Conversation,
    ledger: &ClientLedger,
    text: &str,
    streaming: bool,
) -> Option<()> {
    let request = conversation.request(text);
    let (turn, reply) = if streaming {
        let stream = request.try_stream().await.ok()?;
        if !ledger.is_success(stream.status, "") {
            return None;
        }
        let turn = stream.turn();
        ledger.head(turn);
        let count = |chunk: &serde_json::Value| {
            if chunk["choices"][0]["delta"]["content"] != "" {
                ledger.text_chunks.fetch_add(1, Ordering::SeqCst);
            }
        };
        let reply = stream.rest_with(count).await.ok()?;
        // A stream that ends without a final chunk is not a complete reply.
        if reply.finish.is_none() {
            ledger.rejected.fetch_add(1, Ordering::SeqCst);
            return None;
        }
        (turn, reply.text)
    } else {
        let answer = request.try_send().await.ok()?;
        if !ledger.is_success(answer.status, &answer.body.to_string()) {
            return None;
        }
        ledger.head(answer.turn());
        (answer.turn(), answer.text().to_owned())
    };
    ledger.complete(turn, &reply);
    conversation.record(text, &reply);
    Some(())
}

/// Holds one conversation with the running server.
async fn converse(client: &Client, ledger: &ClientLedger, rng: &mut ChaCha8Rng) -> Option<()> {
    let mut conversation =
        Conversation::new(client).with(json!({"temperature": 0.9, "max_tokens": 60}));
    let (a, b) = (rng.random_range(3..60), rng.random_range(2..40));
    let opening = format!("Kim has {a} cards and gets {b} more. How many cards are there?");
    send_message(&mut conversation, ledger, &opening, rng.random()).await?;
    for _ in 0..rng.random_range(1..4) {
        let text = if rng.random() {
            "That's wrong, do it again please."
        } else {
            "Thanks, perfect!"
        };
        send_message(&mut conversation, ledger, text, rng.random()).await?;
    }
    Some(())
}

/// Holds conversations with the current server until there is no further one.
async fn run_client(mut up: watch::Receiver<Option<String>>, ledger: Arc<ClientLedger>, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    loop {
        let Ok(url) = up.wait_for(Option::is_some).await.map(|url| url.clone()) else {
            return;
        };
        let client = Client::new(url.as_deref().unwrap());
        while converse(&client, &ledger, &mut rng).await.is_some() {}
        ledger.interrupted.fetch_add(1, Ordering::SeqCst);
        if ledger.may_reject.load(Ordering::SeqCst) && *up.borrow() == url {
            // Yields the CPU to the server.
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        // Waits until the server is replaced; the next one has another address.
        let gone = up.changed().await;
        if gone.is_err() {
            return;
        }
    }
}

/// When to kill the server.
#[derive(Debug, Clone, Copy)]
enum KillPoint {
    /// As soon as it serves.
    AtOnce,
    /// After this many text chunks in this run.
    TextChunks(u64),
    /// After this many replies in this run.
    Replies(u64),
    /// After this many recorded samples in this run.
    Samples(u64),
    /// While a checkpoint is being written.
    Writing,
    /// Right after a step is recorded.
    Step,
}

impl KillPoint {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        match rng.random_range(0..12) {
            0 => Self::AtOnce,
            1..=3 => Self::TextChunks(rng.random_range(1..200)),
            4..=5 => Self::Replies(rng.random_range(1..8)),
            6..=7 => Self::Samples(rng.random_range(1..4)),
            8..=10 => Self::Writing,
            _ => Self::Step,
        }
    }

    /// Waits for the kill point.
    fn wait(self, data: &Path, ledger: &ClientLedger, process: &mut ServerProcess) {
        let journal = Journal::open_read_only(data).unwrap();
        let samples = || {
            let counts = journal.counts().unwrap();
            counts.samples.values().sum::<u64>()
        };
        let steps = || journal.counts().unwrap().steps.values().sum::<u64>();
        let (text_chunks, replies) = (
            ledger.text_chunks.load(Ordering::SeqCst),
            ledger.replies.load(Ordering::SeqCst),
        );
        let (first_samples, first_steps) = (samples(), steps());
        let began = Instant::now();
        loop {
            let reached = match self {
                Self::AtOnce => true,
                Self::TextChunks(n) => ledger.text_chunks.load(Ordering::SeqCst) >= text_chunks + n,
                Self::Replies(n) => ledger.replies.load(Ordering::SeqCst) >= replies + n,
                Self::Samples(n) => samples() >= first_samples + n,
                Self::Writing => has_partial_checkpoint(data),
                Self::Step => steps() > first_steps,
            };
            if reached {
                return;
            }
            assert!(!process.has_exited(), "the server exited by itself");
            assert!(began.elapsed() < WAIT_TIMEOUT, "{self:?} was never reached");
            // Another process cannot wake this one; this yields the CPU to it.
            std::thread::park_timeout(Duration::from_micros(300));
        }
    }
}

/// Whether a checkpoint is partially written.
fn has_partial_checkpoint(data: &Path) -> bool {
    let entries = std::fs::read_dir(data.join("adapters"));
    entries.into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with(".v")
    })
}

/// Number of published adapters, over all runs.
fn published_adapters(data: &Path) -> u64 {
    // There is no journal before the first run.
    let journal = Journal::open_read_only(data).ok();
    journal.map_or(0, |journal| journal.counts().unwrap().adapters)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_lose_no_turn_and_train_no_sample_twice() {
    let least_kills = repeats(15, 50);
    let least_adapters = repeats(4, 10);
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let file = dir.path().join("clawhost.toml");
    std::fs::write(
        &file,
        "[training]\nbatch_size = 2\nmin_batch_size = 1\nmax_wait = \"200ms\"\nnice = 0\nnum_epochs = 1\n",
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
    let ledger = Arc::new(ClientLedger::default());
    let (announce, up) = watch::channel(None);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(run_client(up.clone(), Arc::clone(&ledger), 100 + number)))
        .collect();
    drop(up);
    let mut rng = ChaCha8Rng::seed_from_u64(20_261_121);
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    let mut partial_checkpoints = 0;
    let began = Instant::now();
    let mut runs = 0;
    // At least this many kills, and more until enough adapters are published and a checkpoint was cut: the number of
    // steps between two kills, and what a step does until the kill, depend on the machine.
    while runs < least_kills
        || published_adapters(&data) < least_adapters
        || partial_checkpoints == 0
    {
        runs += 1;
        assert!(
            began.elapsed() < TEST_TIMEOUT,
            "after {runs} runs there are {} adapters and {partial_checkpoints} partial checkpoints",
            published_adapters(&data)
        );
        let starting = arguments.clone();
        let started = tokio::task::spawn_blocking(move || Command::new(&starting).serve());
        let Some(mut process) = started.await.unwrap() else {
            panic!("run {runs} did not start");
        };
        let journal = Journal::open_read_only(&data).unwrap();
        checks::start(&Client::new(&process.url), &journal).await;
        checks::turns(&journal, &ledger, 60);
        drop(journal);
        let kill_point = KillPoint::draw(&mut rng);
        let kind = format!("{kill_point:?}");
        *kinds
            .entry(kind.split('(').next().unwrap().to_owned())
            .or_default() += 1;
        announce.send_replace(Some(process.url.clone()));
        let (observed, data_dir) = (Arc::clone(&ledger), data.clone());
        let killed = tokio::task::spawn_blocking(move || {
            kill_point.wait(&data_dir, &observed, &mut process);
            process.kill()
        });
        let stderr = killed.await.unwrap();
        assert!(!stderr.contains("panicked"), "{stderr}");
        announce.send_replace(None);
        partial_checkpoints += u64::from(has_partial_checkpoint(&data));
        checks::training(&data, &model, false);
    }
    drop(announce);
    for client in clients {
        client.await.unwrap();
    }
    // One more run, without training, to check everything.
    arguments.push("--no-train".to_owned());
    let started = tokio::task::spawn_blocking(move || Command::new(&arguments).serve());
    let process = started.await.unwrap().unwrap();
    let journal = Journal::open_read_only(&data).unwrap();
    checks::start(&Client::new(&process.url), &journal).await;
    checks::turns(&journal, &ledger, usize::MAX);
    checks::training(&data, &model, true);
    checks::dropped(&journal);
    assert!(
        !has_partial_checkpoint(&data),
        "a partial checkpoint survived the start"
    );
    drop(process);
    let counts = journal.counts().unwrap();
    println!(
        "{runs} kills in {:.0} s by {kinds:?}; {} requests started, {} replies complete, {} conversations interrupted",
        began.elapsed().as_secs_f64(),
        ledger.heads.lock().unwrap().len(),
        ledger.replies.load(Ordering::SeqCst),
        ledger.interrupted.load(Ordering::SeqCst),
    );
    println!(
        "turns {:?}, samples {:?}, steps {:?}, {} adapters, {partial_checkpoints} partial checkpoints",
        counts.turns, counts.samples, counts.steps, counts.adapters
    );
    println!("samples dropped: {:?}", counts.dropped);
    assert!(ledger.interrupted.load(Ordering::SeqCst) >= least_kills);
    assert!(
        counts.adapters >= least_adapters,
        "training continued between kills"
    );
    assert!(
        counts
            .turns
            .get(&TurnState::Aborted)
            .is_some_and(|n| *n >= least_kills / 5)
    );
}
