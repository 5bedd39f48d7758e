//! The same clients, and servers that end in every way: killed, asked to stop, and with a full disk before either. After
//! each end the journal passes its check, with every row and commit that was acknowledged; what a client saw complete is
//! there; no sample trained twice; and no adapter is gone.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clawhost_journal::{Journal, TurnState, check};
use clawhost_policy::{ModelConfig, ModelFiles};
use clawhost_tests::{Client, Command, PATIENCE, Process, repeats};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;
use tokio::sync::watch;

use super::{CLIENTS, Instants, Ledger, checks, person, unfinished};

/// Bytes that a file may have when the disk is full: less than one frame of the journal's log.
const FULL: u64 = 4096;

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Killed,
    Stopped,
    KilledWhileFull,
    StoppedWhileFull,
    /// The disk was full for a while; it answered again before it was killed.
    KilledAfterFull,
}

impl End {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        match rng.random_range(0..10) {
            0..=3 => Self::Killed,
            4..=6 => Self::Stopped,
            7 => Self::KilledWhileFull,
            8 => Self::StoppedWhileFull,
            _ => Self::KilledAfterFull,
        }
    }

    /// Lets the disk become full, where this end says so, and waits until a client has felt it.
    fn fill(self, process: &mut Process, ledger: &Ledger) {
        if matches!(self, Self::Killed | Self::Stopped) {
            return;
        }
        let refused = ledger.refused.load(Ordering::SeqCst);
        ledger.may_refuse.store(true, Ordering::SeqCst);
        process.limit_files(Some(FULL));
        wait(process, || {
            ledger.refused.load(Ordering::SeqCst) > refused + 2
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

fn wait(process: &mut Process, mut ready: impl FnMut() -> bool) {
    let began = Instant::now();
    while !ready() {
        assert!(!process.is_gone(), "the server ended by itself");
        assert!(began.elapsed() < PATIENCE, "waited in vain");
        // Another process cannot wake this one; a pause only leaves it the processor.
        std::thread::park_timeout(Duration::from_micros(300));
    }
}

/// What tells a file of an adapter from another one.
type Identity = (u64, u64, i64);

/// Every file of the adapters that holds what was learned.
fn learned(data: &Path) -> BTreeMap<PathBuf, Identity> {
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

/// Checks that no file that was there is gone or another one. What the journal did not know may have been moved aside.
fn nothing_gone(data: &Path, before: &BTreeMap<PathBuf, Identity>) {
    let now = learned(data);
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
            "{} is gone or another one",
            path.display()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_however_a_life_ends() {
    let ends = repeats(12, 500);
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let file = dir.path().join("clawhost.toml");
    std::fs::write(
        &file,
        "[training]\nbatch = 2\nmin_batch = 1\nmax_wait_seconds = 0.2\nepochs = 1\n",
    )
    .unwrap();
    let mut arguments: Vec<String> = ["run", "--port", "0", "--data"].map(str::to_owned).into();
    arguments.extend([
        data.display().to_string(),
        "--config".to_owned(),
        file.display().to_string(),
    ]);
    let model = ModelConfig::parse(ModelFiles::embedded().config()).unwrap();
    let ledger = Arc::new(Ledger::default());
    let (announce, up) = watch::channel(None);
    let people: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(person(up.clone(), Arc::clone(&ledger), 200 + number)))
        .collect();
    drop(up);
    let mut rng = ChaCha8Rng::seed_from_u64(20_261_122);
    let mut kinds: BTreeMap<End, u64> = BTreeMap::new();
    let mut before = BTreeMap::new();
    let (mut halves, mut commits) = (0, 0);
    let began = Instant::now();
    for life in 0..ends {
        let starting = arguments.clone();
        let started =
            tokio::task::spawn_blocking(move || Command::new(&starting).limited().serve());
        let Some(mut process) = started.await.unwrap() else {
            panic!("life {life} did not start");
        };
        nothing_gone(&data, &before);
        let journal = Journal::open_read_only(&data).unwrap();
        checks::start(&Client::new(&process.url), &journal).await;
        checks::turns(&journal, &ledger, 60);
        drop(journal);
        let instant = Instants::draw(&mut rng);
        // Each way of ending at least once.
        let end = match life {
            1 => End::Stopped,
            3 => End::KilledWhileFull,
            5 => End::StoppedWhileFull,
            7 => End::KilledAfterFull,
            _ => End::draw(&mut rng),
        };
        *kinds.entry(end).or_default() += 1;
        ledger.may_refuse.store(false, Ordering::SeqCst);
        announce.send_replace(Some(process.url.clone()));
        let (shared, place) = (Arc::clone(&ledger), data.clone());
        let waited = tokio::task::spawn_blocking(move || {
            instant.wait(&place, &shared, &mut process);
            end.fill(&mut process, &shared);
            process
        });
        let mut process = waited.await.unwrap();
        let stopped = matches!(end, End::Stopped | End::StoppedWhileFull);
        if stopped {
            ledger.may_refuse.store(true, Ordering::SeqCst);
            assert_eq!(process.stop().await, Some(0));
        }
        let errors = tokio::task::spawn_blocking(move || process.kill());
        let errors = errors.await.unwrap();
        assert!(!errors.contains("panicked"), "{errors}");
        announce.send_replace(None);
        if end == End::Stopped {
            let log = std::fs::metadata(data.join("journal.sqlite-wal"));
            assert_eq!(log.map_or(0, |log| log.len()), 0, "{errors}");
        }
        halves += u64::from(unfinished(&data));
        let checked = check(&data).unwrap();
        assert!(
            checked.whole(),
            "life {life}, {end:?}: {:?}",
            checked.problems
        );
        let (found, _) = checked.commits.unwrap();
        assert!(found >= commits);
        commits = found;
        checks::training(&data, &model, false);
        before = learned(&data);
    }
    drop(announce);
    for person in people {
        person.await.unwrap();
    }
    arguments.push("--no-train".to_owned());
    let started = tokio::task::spawn_blocking(move || Command::new(&arguments).serve());
    let process = started.await.unwrap().unwrap();
    nothing_gone(&data, &before);
    let journal = Journal::open_read_only(&data).unwrap();
    checks::start(&Client::new(&process.url), &journal).await;
    checks::turns(&journal, &ledger, usize::MAX);
    checks::training(&data, &model, true);
    checks::dropped(&journal);
    drop(process);
    let counts = journal.counts().unwrap();
    println!(
        "{ends} lives in {:.0} s, ended as {kinds:?}; {} requests seen to begin, {} replies seen complete, 0 lost; {} refused by a full disk",
        began.elapsed().as_secs_f64(),
        ledger.heads.lock().unwrap().len(),
        ledger.replies.load(Ordering::SeqCst),
        ledger.refused.load(Ordering::SeqCst),
    );
    println!(
        "{commits} commits, every check whole; turns {:?}, samples {:?}, none trained twice, {} adapters, none gone, {halves} cut while being written",
        counts.turns, counts.samples, counts.adapters
    );
    assert!(ledger.replies.load(Ordering::SeqCst) > 0 && counts.adapters > 0);
    assert_eq!(counts.turns.get(&TurnState::Failed), None);
}
