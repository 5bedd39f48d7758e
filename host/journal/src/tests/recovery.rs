use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::tempdir;

use super::{arrival, completion};
use crate::*;

/// A copy of the files as a kill at this instant would leave them.
fn crash_image(dir: &Path) -> tempfile::TempDir {
    let image = tempdir().unwrap();
    for name in ["journal.sqlite", "journal.sqlite-wal"] {
        std::fs::copy(dir.join(name), image.path().join(name)).unwrap();
    }
    image
}

#[test]
fn commits_survive_a_kill() {
    let dir = tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let sample = journal.sample_in("s");
    let running = journal.record_request(&arrival("s", None)).unwrap()[0];
    let image = crash_image(dir.path());

    let again = Journal::open(image.path()).unwrap();
    assert_eq!(again.queued_samples(9).unwrap()[0].id, sample);
    assert_eq!(again.abort_interrupted_turns().unwrap(), 1);
    assert_eq!(again.abort_interrupted_turns().unwrap(), 0);
    let cut = again.record(running);
    assert_eq!(
        (cut.state, cut.judging),
        (TurnState::Aborted, JudgingState::Skipped)
    );
    assert_eq!(cut.reason.as_deref(), Some(SERVER_STOPPED));
    assert_eq!(again.session_turns(&"s".into()).unwrap().len(), 3);
}

const CHILD: &str = "CLAWHOST_JOURNAL_TEST_DIR";

/// The process that the next test kills, not a test of its own. It prints each id after its commit.
#[test]
fn killed_child_process() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let journal = Journal::open(Path::new(&dir)).unwrap();
    loop {
        let turn = journal.record_request(&arrival("s", None)).unwrap()[0];
        println!("\narrived {turn}");
        journal.complete(turn, &completion()).unwrap();
        println!("\ncompleted {turn}");
    }
}

#[test]
fn acknowledged_commits_of_a_killed_process_survive() {
    let dir = tempdir().unwrap();
    let mut expected = 0;
    for lines in [3, 10, 25, 60] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "tests::recovery::killed_child_process",
                "--nocapture",
            ])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut reported = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let mut said = Vec::new();
        while said.len() < lines {
            let line = reported
                .next()
                .expect("the child goes on until it is killed");
            said.extend(line.split_once(' ').and_then(|(what, id)| {
                let id = id.parse::<TurnId>().ok()?;
                matches!(what, "arrived" | "completed").then(|| (what.to_owned(), id))
            }));
        }
        child.kill().unwrap();
        child.wait().unwrap();

        let journal = Journal::open(dir.path()).unwrap();
        for (what, id) in said {
            let turn = journal.record(id);
            if what == "completed" {
                assert_eq!(
                    (turn.state, turn.completion),
                    (TurnState::Complete, Some(completion()))
                );
            }
        }
        journal.abort_interrupted_turns().unwrap();
        let turns = journal.session_turns(&"s".into()).unwrap();
        assert!(
            turns.len() >= expected + lines / 2,
            "{} turns after {expected}",
            turns.len()
        );
        assert!(turns.iter().all(|turn| turn.state != TurnState::Generating));
        expected = turns.len();
    }
}
