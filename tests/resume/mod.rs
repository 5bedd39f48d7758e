//! `kill -9` in every phase of a training step: however often, and wherever, a run is killed, it ends with the very
//! adapters, samples, running means and optimizer state of a run that was never killed.
//!
//! What is trained is fixed: conversations that a server collected and judged, with rewards and hints. Each life is a
//! process of its own that steps through the queue (`clawhost train`), is watched by what it logs, and is killed some
//! moments after a mark that is drawn from a seed. The last mark that it logged says in which phase it died.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and this one prints its figures"
)]

mod commands;
mod outcome;
mod queue;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use clawhost_tests::{Command, Over, Work, repeats};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tempfile::TempDir;

use outcome::Outcome;

/// What is to be shown.
struct Promise {
    /// The configuration of the runs.
    configuration: &'static str,
    /// At least so many kills.
    kills: u64,
    /// The queue is good for so many steps, at least.
    steps: usize,
    /// Phases in which it must have been killed.
    phases: &'static [&'static str],
}

/// Kills after which every phase must have been hit at least once, whatever the machine.
const MOST: u64 = 500;

/// What a life logs when it enters a phase, and the name of that phase. Before the first mark it is starting.
const PHASES: [(&str, &str); 7] = [
    ("training taken up", "drawing"),
    ("batch drawn", "updating"),
    ("update computed", "writing"),
    ("checkpoint written", "proving and moving"),
    ("checkpoint in its place", "committing"),
    ("step recorded", "publishing"),
    ("adapter published", "after publishing"),
];

/// A life that steps through the queue in `data`.
fn life(data: &Path, file: &Path) -> Work {
    let (data, file) = (data.display().to_string(), file.display().to_string());
    let arguments = [
        "train",
        "--from-journal",
        &data,
        "--config",
        &file,
        "--all",
        "--json",
    ];
    Command::new(&arguments).work("clawhost_training=debug,warn")
}

/// The last phase that a life logged.
fn phase(over: &Over) -> &'static str {
    let named = |line: &String| {
        let mark = PHASES.iter().find(|(mark, _)| line.contains(mark))?;
        Some(mark.1)
    };
    over.logged
        .iter()
        .rev()
        .find_map(named)
        .unwrap_or("starting")
}

/// When to kill: after so many of a mark, and so many short waits. No mark means that it is still starting.
#[derive(Debug)]
struct Moment {
    mark: Option<&'static str>,
    times: usize,
    waits: u32,
}

impl Moment {
    /// `missing` are the phases that were never hit; they are aimed at before others.
    fn draw(rng: &mut ChaCha8Rng, missing: &[&str]) -> Self {
        let aimed: Vec<usize> = (0..PHASES.len())
            .filter(|at| missing.contains(&PHASES[*at].1))
            .collect();
        let at = if aimed.is_empty() || rng.random_range(0..3) == 0 {
            rng.random_range(0..=PHASES.len())
        } else {
            aimed[rng.random_range(0..aimed.len())]
        };
        // A phase that takes long is entered by its mark and left long after it.
        let waits = match rng.random_range(0..3) {
            0 => 0,
            1 => rng.random_range(0..10),
            _ => rng.random_range(0..400),
        };
        Self {
            mark: PHASES.get(at).map(|(mark, _)| *mark),
            times: rng.random_range(1..4),
            waits,
        }
    }

    /// Waits for it; false when the life was over before.
    fn wait(&self, work: &mut Work) -> bool {
        let came = match self.mark {
            Some(mark) => work.logs(mark, self.times),
            None => true,
        };
        for _ in 0..self.waits {
            // Nothing is waited for: a pause only leaves the other process the processor.
            std::thread::park_timeout(Duration::from_micros(100));
        }
        came
    }
}

/// What the last line of a finished life says.
fn summary(over: &Over) -> Value {
    serde_json::from_str(
        over.stdout
            .lines()
            .rev()
            .find(|l| l.starts_with('{'))
            .unwrap(),
    )
    .unwrap()
}

async fn show(promise: Promise) {
    let dir = TempDir::new().unwrap();
    let fixed = dir.path().join("fixed");
    queue::collect(&fixed).await;
    let shown = tokio::task::spawn_blocking(move || kills(&promise, &dir, &fixed));
    shown.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_in_all_phases_of_a_step_change_no_bit() {
    show(Promise {
        configuration: queue::ADAPTERS,
        kills: repeats(30, 100),
        steps: 12,
        phases: &[
            "starting",
            "updating",
            "writing",
            "proving and moving",
            "committing",
            "publishing",
        ],
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_holds_where_steps_change_all_parameters() {
    show(Promise {
        configuration: queue::PARAMETERS,
        kills: repeats(8, 20),
        steps: 4,
        phases: &["updating", "writing", "proving and moving"],
    })
    .await;
}

fn kills(promise: &Promise, dir: &TempDir, fixed: &Path) {
    let file = &dir.path().join("clawhost.toml");
    std::fs::write(file, promise.configuration).unwrap();
    let began = Instant::now();
    let data = dir.path().join("uninterrupted");
    queue::copy(fixed, &data);
    let over = life(&data, file).finish();
    assert_eq!(over.code, Some(0), "{:?}", over.logged);
    let expected = Outcome::of(&data);
    let told = summary(&over);
    assert_eq!(told["queued"], 0, "{told}");
    assert_eq!(told["digest"], expected.digest(), "{told}");
    assert!(
        expected.steps() >= promise.steps,
        "only {} steps",
        expected.steps()
    );
    assert!(expected.hinted() > 0, "some samples trained by a hint");
    let alone = began.elapsed();

    let mut rng = ChaCha8Rng::seed_from_u64(20_261_121);
    let mut phases: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut kills, mut runs, mut halves, mut unknown) = (0, 0, 0, 0);
    let missing = |phases: &BTreeMap<&str, usize>| -> Vec<&str> {
        let all = promise.phases.iter().copied();
        all.filter(|phase| !phases.contains_key(phase)).collect()
    };
    while kills < promise.kills || !missing(&phases).is_empty() {
        assert!(kills < MOST, "never killed while {:?}", missing(&phases));
        runs += 1;
        let data = dir.path().join(format!("run-{runs}"));
        queue::copy(fixed, &data);
        loop {
            let moment = Moment::draw(&mut rng, &missing(&phases));
            let mut work = life(&data, file);
            let came = moment.wait(&mut work);
            let over = if came { work.kill() } else { work.finish() };
            if let Some(code) = over.code {
                assert_eq!(code, 0, "{moment:?}: {:?}", over.logged);
                break;
            }
            kills += 1;
            *phases.entry(phase(&over)).or_default() += 1;
            let left = outcome::leftovers(&data);
            halves += usize::from(left.half_written);
            unknown += usize::from(left.not_recorded);
        }
        let reached = Outcome::of(&data);
        reached.assert_same(&expected, runs);
        std::fs::remove_dir_all(&data).unwrap();
    }
    println!(
        "{kills} kills over {runs} runs of {} steps in {:.0} s (undisturbed: {:.1} s): {phases:?}; \
         {halves} checkpoints cut while being written, {unknown} whole ones that no step had recorded",
        expected.steps(),
        began.elapsed().as_secs_f64(),
        alone.as_secs_f64(),
    );
    assert!(halves > 0, "a checkpoint was cut while being written");
    let known = promise.phases.contains(&"committing");
    assert!(
        unknown > 0 || !known,
        "a checkpoint was in its place and not recorded"
    );
}
