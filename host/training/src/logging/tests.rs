//! Log files that follow a real journal.

use clawhost_journal::{NewStep, StepOutcome};

use super::*;

fn step(loss: f64) -> NewStep {
    NewStep {
        started_ms: 1_000,
        ended_ms: 2_500,
        outcome: StepOutcome::NoSignal,
        reason: Some("why".to_owned()),
        metrics: json!({"loss_last": loss, "proof": {"mean": 0.25}, "samples_moved": [{"sample": 1}]}),
        trained: Vec::new(),
        dropped: Vec::new(),
        adapter: None,
        meta: Vec::new(),
        experience: None,
    }
}

struct LogFixture {
    journal: Journal,
    data: tempfile::TempDir,
}

impl LogFixture {
    fn new() -> Self {
        Self {
            journal: Journal::in_memory().unwrap(),
            data: tempfile::tempdir().unwrap(),
        }
    }

    fn steps(&self, losses: &[f64]) {
        for loss in losses {
            self.journal.commit_step(&step(*loss)).unwrap();
        }
    }

    /// New logs, as in a restarted process.
    fn logs(&self) -> StepLogs {
        StepLogs::new(self.data.path(), &LogOptions::default())
    }

    fn path(&self, format: &dyn LogFormat) -> PathBuf {
        self.data.path().join(format.path())
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path(&JsonLines)).unwrap();
        text.lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    }

    fn numbers(&self) -> Vec<i64> {
        self.lines()
            .iter()
            .map(|l| l["step"].as_i64().unwrap())
            .collect()
    }

    fn events(&self) -> Vec<Option<i64>> {
        let bytes = fs::read(self.path(&tensorboard::TensorBoardEvents)).unwrap();
        let messages = event::parse_messages(&bytes);
        assert_eq!(
            messages.last().unwrap().0,
            bytes.len(),
            "every byte is part of a complete record"
        );
        messages.iter().map(|(_, m)| event::parse_step(m)).collect()
    }
}

#[test]
fn every_step_is_logged_exactly_once() {
    let fixture = LogFixture::new();
    let mut logs = fixture.logs();
    logs.catch_up(&fixture.journal);
    assert!(
        !fixture.path(&JsonLines).exists(),
        "without steps there is no file"
    );
    fixture.steps(&[0.5, 0.25]);
    logs.catch_up(&fixture.journal);
    fixture.steps(&[0.125]);
    logs.catch_up(&fixture.journal);
    logs.catch_up(&fixture.journal);
    assert_eq!(fixture.numbers(), [1, 2, 3]);
    assert_eq!(fixture.events(), [None, Some(1), Some(2), Some(3)]);
    let line = &fixture.lines()[1];
    assert_eq!(
        line["metrics"],
        json!({"loss_last": 0.25, "proof": {"mean": 0.25}})
    );
    assert_eq!(
        (&line["outcome"], &line["ended_ms"]),
        (&json!("no_signal"), &json!(2_500))
    );
}

#[test]
fn a_killed_process_resumes_logging_without_gaps_or_duplicates() {
    let fixture = LogFixture::new();
    fixture.steps(&[0.5, 0.25]);
    fixture.logs().catch_up(&fixture.journal);
    // Killed after the commit of two more steps, then while writing a record.
    fixture.steps(&[0.125, 0.0625]);
    fixture.logs().catch_up(&fixture.journal);
    assert_eq!(fixture.numbers(), [1, 2, 3, 4]);
    for format in [
        &JsonLines as &dyn LogFormat,
        &tensorboard::TensorBoardEvents,
    ] {
        let path = fixture.path(format);
        let whole = fs::read(&path).unwrap();
        for cut in [1, 7, 60] {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            fixture.logs().catch_up(&fixture.journal);
            assert_eq!(
                fs::read(&path).unwrap(),
                whole,
                "{path:?} after {cut} bytes were lost"
            );
        }
        // Truncated to one byte, then deleted.
        fs::write(&path, &whole[..1]).unwrap();
        fixture.logs().catch_up(&fixture.journal);
        assert_eq!(fs::read(&path).unwrap(), whole);
        fs::remove_file(&path).unwrap();
        fixture.logs().catch_up(&fixture.journal);
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn a_log_of_another_journal_is_moved_and_replaced() {
    let fixture = LogFixture::new();
    fixture.steps(&[0.5, 0.25, 0.125]);
    fixture.logs().catch_up(&fixture.journal);
    let other = LogFixture {
        journal: Journal::in_memory().unwrap(),
        data: fixture.data,
    };
    other.steps(&[0.75]);
    other.logs().catch_up(&other.journal);
    assert_eq!(other.numbers(), [1]);
    assert_eq!(other.events(), [None, Some(1)]);
    assert_eq!(other.lines()[0]["metrics"]["loss_last"], 0.75);
    let moved =
        |name: &str| fs::read_to_string(other.path(&JsonLines).with_file_name(name)).unwrap();
    assert_eq!(moved("unknown/1-steps.jsonl").lines().count(), 3);
    fs::write(other.path(&JsonLines), "notes\nof somebody\n").unwrap();
    other.logs().catch_up(&other.journal);
    assert_eq!(other.numbers(), [1]);
    assert_eq!(moved("unknown/2-steps.jsonl"), "notes\nof somebody\n");
}

#[test]
fn a_log_that_cannot_be_written_is_completed_later() {
    let fixture = LogFixture::new();
    let folder = fixture.data.path().join("metrics");
    fs::write(&folder, "in the way").unwrap();
    let mut logs = fixture.logs();
    fixture.steps(&[0.5]);
    logs.catch_up(&fixture.journal);
    assert_eq!(fixture.events(), [None, Some(1)]);
    fs::remove_file(&folder).unwrap();
    fixture.steps(&[0.25]);
    logs.catch_up(&fixture.journal);
    assert_eq!(fixture.numbers(), [1, 2]);
}

#[test]
fn disabled_logs_are_not_written() {
    let fixture = LogFixture::new();
    fixture.steps(&[0.5]);
    let options = LogOptions {
        jsonl: true,
        tensorboard: false,
    };
    StepLogs::new(fixture.data.path(), &options).catch_up(&fixture.journal);
    assert!(
        fixture.path(&JsonLines).exists()
            && !fixture.path(&tensorboard::TensorBoardEvents).exists()
    );
}
