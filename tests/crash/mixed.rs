//! The same clients, and servers that end in every way: SIGKILL, SIGTERM, and with a full disk before either. After
//! each run the journal passes its check with every acknowledged row and commit, every reply that a client saw complete
//! is there, no sample trained twice, and no adapter is missing.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clawhost_journal::{Journal, TurnState, check};
use clawhost_model::{ModelConfig, ModelFiles};
use clawhost_tests::{Client, Command, ServerProcess, WAIT_TIMEOUT, repeats};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;
use tokio::sync::watch;

use super::{CLIENTS, ClientLedger, KillPoint, checks, has_partial_checkpoint, run_client};

/// File size limit that simulates a full disk: less than one frame of the journal's WAL.
const FULL_DISK_BYTES: u64 = 4096;

/// How a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RunEnd {
    Killed,
    Stopped,
    KilledWhileFull,
    StoppedWhileFull,
    /// The disk is full for a while; the server recovers before it is killed.
    KilledAfterFull,
}

impl RunEnd {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        match rng.random_range(0..10) {
            0..=3 => Self::Killed,
            4..=6 => Self::Stopped,
            7 => Self::KilledWhileFull,
            8 => Self::StoppedWhileFull,
            _ => Self::KilledAfterFull,
        }
    }

    /// Simulates a full disk, if this end includes one, and waits until a client notices.
    fn fill(self, process: &mut ServerProcess, ledger: &ClientLedger) {
        if matches!(self, Self::Killed | Self::Stopped) {
            return;
        }
        let rejected = ledger.rejected.load(Ordering::SeqCst);
        ledger.may_reject.store(true, Ordering::SeqCst);
        process.limit_files(Some(FULL_DISK_BYTES));
        wait(process, || {
            ledger.rejected.load(Ordering::SeqCst) > rejected + 2
        });
        if self == Self::KilledAfterFull {
            process.limit_files(None);
            let replies = ledger.replies.load(Ordering::SeqCst);
            wait(process, || {
                ledger.replies.load(Ordering::SeqCst) > replies + 2
            });
        }
    }
}

fn wait(process: &mut ServerProcess, mut ready: impl FnMut() -> bool) {
    let began = Instant::now();
    while !ready() {
        assert!(!process.has_exited(), "the server exited by itself");
        assert!(began.elapsed() < WAIT_TIMEOUT, "timed out");
        // Another process cannot wake this one; this yields the CPU to it.
        std::thread::park_timeout(Duration::from_micros(300));
    }
}

/// Identifies the content of an adapter file.
type Identity = (u64, u64, i64);

/// All weight files of the adapters.
fn weight_files(data: &Path) -> BTreeMap<PathBuf, Identity> {
    let mut found = BTreeMap::new();
    let entries = std::fs::read_dir(data.join("adapters"));
    for entry in entries.into_iter().flatten().flatten() {
        let path = entry.path().join("adapter_model.safetensors");
        let name = entry.file_name().to_string_lossy().into_owned();
        if let (true, Ok(file)) = (name.starts_with('v'), path.metadata()) {
            found.insert(path, (file.ino(), file.len(), file.mtime()));
        }
    }
    found
}

/// Checks that no file is missing or replaced. Files unknown to the journal may have been moved aside.
fn assert_nothing_missing(data: &Path, before: &BTreeMap<PathBuf, Identity>) {
    let now = weight_files(data);
    let aside = std::fs::read_dir(data.join("adapters/unknown"));
    let aside: Vec<Identity> = aside
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let path = entry.path().join("adapter_model.safetensors");
            path.metadata().ok()
        })
        .map(|file| (file.ino(), file.len(), file.mtime()))
        .collect();
    for (path, identity) in before {
        assert!(
            now.get(path) == Some(identity) || aside.contains(identity),
            "{} is missing or replaced",
            path.display()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_however_a_run_ends() {
    let ends = repeats(12, 500);
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let file = dir.path().join("clawhost.toml");
    std::fs::write(
        &file,
        "[training]\nbatch_size = 2\nmin_batch_size = 1\nmax_wait = \"200ms\"\nnice = 0\nnum_epochs = 1\n",
    )
    .unwrap();
    let mut arguments: Vec<String> = ["run", "--port", "0", "--data"].map(str::to_owned).into();
    arguments.extend([
        data.display().to_string(),
        "--config".to_owned(),
        file.display().to_string(),
    ]);
    let model = ModelConfig::parse(ModelFiles::embedded().config()).unwrap();
    let ledger = Arc::new(ClientLedger::default());
    let (announce, up) = watch::channel(None);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(run_client(up.clone(), Arc::clone(&ledger), 200 + number)))
        .collect();
    drop(up);
    let mut rng = ChaCha8Rng::seed_from_u64(20_261_122);
    let mut kinds: BTreeMap<RunEnd, u64> = BTreeMap::new();
    let mut before = BTreeMap::new();
    let (mut partial_checkpoints, mut commits) = (0, 0);
    let began = Instant::now();
    for run in 0..ends {
        let starting = arguments.clone();
        let started = tokio::task::spawn_blocking(move || {
            Command::new(&starting).ignoring_file_size_signal().serve()
        });
        let Some(mut process) = started.await.unwrap() else {
            panic!("run {run} did not start");
        };
        assert_nothing_missing(&data, &before);
        let journal = Journal::open_read_only(&data).unwrap();
        checks::start(&Client::new(&process.url), &journal).await;
        checks::turns(&journal, &ledger, 60);
        drop(journal);
        let kill_point = KillPoint::draw(&mut rng);
        // Every end at least once.
        let end = match run {
            1 => RunEnd::Stopped,
            3 => RunEnd::KilledWhileFull,
            5 => RunEnd::StoppedWhileFull,
            7 => RunEnd::KilledAfterFull,
            _ => RunEnd::draw(&mut rng),
        };
        *kinds.entry(end).or_default() += 1;
        ledger.may_reject.store(false, Ordering::SeqCst);
        announce.send_replace(Some(process.url.clone()));
        let (shared, place) = (Arc::clone(&ledger), data.clone());
        let waited = tokio::task::spawn_blocking(move || {
            kill_point.wait(&place, &shared, &mut process);
            end.fill(&mut process, &shared);
            process
        });
        let mut process = waited.await.unwrap();
        let stopped = matches!(end, RunEnd::Stopped | RunEnd::StoppedWhileFull);
        if stopped {
            ledger.may_reject.store(true, Ordering::SeqCst);
            assert_eq!(process.stop().await, Some(0));
        }
        let errors = tokio::task::spawn_blocking(move || process.kill());
        let errors = errors.await.unwrap();
        assert!(!errors.contains("panicked"), "{errors}");
        announce.send_replace(None);
        if end == RunEnd::Stopped {
            let log = std::fs::metadata(data.join("journal.sqlite-wal"));
            assert_eq!(log.map_or(0, |log| log.len()), 0, "{errors}");
        }
        partial_checkpoints += u64::from(has_partial_checkpoint(&data));
        let checked = check(&data).unwrap();
        assert!(
            checked.is_intact(),
            "run {run}, {end:?}: {:?}",
            checked.problems
        );
        let (found, _) = checked.commits.unwrap();
        assert!(found >= commits);
        commits = found;
        checks::training(&data, &model, false);
        before = weight_files(&data);
    }
    drop(announce);
    for client in clients {
        client.await.unwrap();
    }
    arguments.push("--no-train".to_owned());
    let started = tokio::task::spawn_blocking(move || Command::new(&arguments).serve());
    let process = started.await.unwrap().unwrap();
    assert_nothing_missing(&data, &before);
    let journal = Journal::open_read_only(&data).unwrap();
    checks::start(&Client::new(&process.url), &journal).await;
    checks::turns(&journal, &ledger, usize::MAX);
    checks::training(&data, &model, true);
    checks::dropped(&journal);
    drop(process);
    let counts = journal.counts().unwrap();
    println!(
        "{ends} runs in {:.0} s, ended as {kinds:?}; {} requests started, {} replies complete, 0 lost; {} rejected because of a full disk",
        began.elapsed().as_secs_f64(),
        ledger.heads.lock().unwrap().len(),
        ledger.replies.load(Ordering::SeqCst),
        ledger.rejected.load(Ordering::SeqCst),
    );
    println!(
        "{commits} commits, every check passed; turns {:?}, samples {:?}, none trained twice, {} adapters, none missing, {partial_checkpoints} partial checkpoints",
        counts.turns, counts.samples, counts.adapters
    );
    assert!(ledger.replies.load(Ordering::SeqCst) > 0 && counts.adapters > 0);
    assert_eq!(counts.turns.get(&TurnState::Failed), None);
}
