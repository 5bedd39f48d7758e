//! `kill -9` in every phase of a training step: a run that is killed any number of times ends with the same adapters,
//! samples, running means and optimizer state as an uninterrupted run.
//!
//! The training data is fixed: conversations that a server collected and judged, with rewards and hints. Each run is a
//! child process that trains the queue (`clawhost train`), is observed through its log, and is killed shortly after a
//! log line drawn from a seed. The last logged phase tells in which phase it was killed.

mod commands;
mod outcome;
mod queue;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use clawhost_tests::{Command, LoggedOutput, LoggedProcess, repeats};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tempfile::TempDir;

use outcome::Outcome;

/// Parameters of one test.
struct Scenario {
    /// The configuration of the runs.
    configuration: &'static str,
    /// Minimum number of kills.
    kills: u64,
    /// Minimum number of steps of the queue.
    steps: usize,
    /// Phases in which a run must have been killed.
    phases: &'static [&'static str],
}

/// Maximum kills until every phase has been hit at least once.
const MAX_KILLS: u64 = 500;

/// The log text at the start of each phase, and the name of the phase. Before the first one the run is starting.
const PHASES: [(&str, &str); 7] = [
    ("trainer state loaded", "drawing"),
    ("batch built", "updating"),
    ("update computed", "writing"),
    ("checkpoint written", "proving and moving"),
    ("checkpoint committed", "committing"),
    ("step recorded", "publishing"),
    ("adapter published", "after publishing"),
];

/// Spawns a run that trains the queue in `data`.
fn spawn_run(data: &Path, file: &Path) -> LoggedProcess {
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
    Command::new(&arguments).spawn_logged("clawhost_training=debug,warn")
}

/// The last phase that a run logged.
fn phase(output: &LoggedOutput) -> &'static str {
    let named = |line: &String| {
        let mark = PHASES.iter().find(|(mark, _)| line.contains(mark))?;
        Some(mark.1)
    };
    output
        .logged
        .iter()
        .rev()
        .find_map(named)
        .unwrap_or("starting")
}

/// When to kill: after a number of log lines with a mark, and a number of short waits. No mark means during startup.
#[derive(Debug)]
struct KillPoint {
    mark: Option<&'static str>,
    times: usize,
    waits: u32,
}

impl KillPoint {
    /// `missing` are the phases that were not hit yet; they are preferred.
    fn draw(rng: &mut ChaCha8Rng, missing: &[&str]) -> Self {
        let aimed: Vec<usize> = (0..PHASES.len())
            .filter(|at| missing.contains(&PHASES[*at].1))
            .collect();
        let at = if aimed.is_empty() || rng.random_range(0..3) == 0 {
            rng.random_range(0..=PHASES.len())
        } else {
            aimed[rng.random_range(0..aimed.len())]
        };
        // A long phase starts at its mark and ends long after it.
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

    /// Waits for the kill point. Returns false if the run exits before.
    fn wait(&self, work: &mut LoggedProcess) -> bool {
        let came = match self.mark {
            Some(mark) => work.wait_for_log(mark, self.times),
            None => true,
        };
        for _ in 0..self.waits {
            // Yields the CPU to the other process.
            std::thread::park_timeout(Duration::from_micros(100));
        }
        came
    }
}

/// The JSON summary on the last line of a finished run.
fn summary(output: &LoggedOutput) -> Value {
    serde_json::from_str(
        output
            .stdout
            .lines()
            .rev()
            .find(|l| l.starts_with('{'))
            .unwrap(),
    )
    .unwrap()
}

async fn run_scenario(scenario: Scenario) {
    let dir = TempDir::new().unwrap();
    let fixed = dir.path().join("fixed");
    queue::collect(&fixed).await;
    let shown = tokio::task::spawn_blocking(move || kills(&scenario, &dir, &fixed));
    shown.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_in_all_phases_of_a_step_do_not_change_the_result() {
    run_scenario(Scenario {
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
async fn kills_do_not_change_the_result_of_full_training() {
    run_scenario(Scenario {
        configuration: queue::PARAMETERS,
        kills: repeats(8, 20),
        steps: 4,
        phases: &["updating", "writing", "proving and moving"],
    })
    .await;
}

fn kills(scenario: &Scenario, dir: &TempDir, fixed: &Path) {
    let file = &dir.path().join("clawhost.toml");
    std::fs::write(file, scenario.configuration).unwrap();
    let began = Instant::now();
    let data = dir.path().join("uninterrupted");
    queue::copy(fixed, &data);
    let output = spawn_run(&data, file).finish();
    assert_eq!(output.code, Some(0), "{:?}", output.logged);
    let expected = Outcome::of(&data);
    let result = summary(&output);
    assert_eq!(result["queued"], 0, "{result}");
    assert_eq!(result["digest"], expected.digest(), "{result}");
    assert!(
        expected.steps() >= scenario.steps,
        "only {} steps",
        expected.steps()
    );
    assert!(expected.hinted() > 0, "some samples trained with a hint");
    let alone = began.elapsed();

    let mut rng = ChaCha8Rng::seed_from_u64(20_261_121);
    let mut phases: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut kills, mut runs, mut partial_checkpoints, mut unknown) = (0, 0, 0, 0);
    // A phase is missing until a run was killed in it. The phase is that of the last log line, so a kill must also have
    // left what only a kill in that phase leaves: a partial checkpoint, or a whole one that no step has recorded.
    let missing = |phases: &BTreeMap<&str, usize>, partial: usize, unknown: usize| -> Vec<&str> {
        let all = scenario.phases.iter().copied();
        all.filter(|phase| {
            !phases.contains_key(phase)
                || *phase == "writing" && partial == 0
                || *phase == "committing" && unknown == 0
        })
        .collect()
    };
    while kills < scenario.kills || !missing(&phases, partial_checkpoints, unknown).is_empty() {
        assert!(
            kills < MAX_KILLS,
            "never killed while {:?}",
            missing(&phases, partial_checkpoints, unknown)
        );
        runs += 1;
        let data = dir.path().join(format!("run-{runs}"));
        queue::copy(fixed, &data);
        loop {
            let aims = missing(&phases, partial_checkpoints, unknown);
            let kill_point = KillPoint::draw(&mut rng, &aims);
            let mut work = spawn_run(&data, file);
            let came = kill_point.wait(&mut work);
            let output = if came { work.kill() } else { work.finish() };
            if let Some(code) = output.code {
                assert_eq!(code, 0, "{kill_point:?}: {:?}", output.logged);
                break;
            }
            kills += 1;
            *phases.entry(phase(&output)).or_default() += 1;
            let left = outcome::leftovers(&data);
            partial_checkpoints += usize::from(left.half_written);
            unknown += usize::from(left.not_recorded);
        }
        let reached = Outcome::of(&data);
        reached.assert_same(&expected, runs);
        std::fs::remove_dir_all(&data).unwrap();
    }
    println!(
        "{kills} kills over {runs} runs of {} steps in {:.0} s (undisturbed: {:.1} s): {phases:?}; \
         {partial_checkpoints} checkpoints cut while being written, {unknown} whole ones that no step had recorded",
        expected.steps(),
        began.elapsed().as_secs_f64(),
        alone.as_secs_f64(),
    );
}
