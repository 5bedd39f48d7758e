//! Files that follow a real journal.

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
    }
}

struct Desk {
    journal: Journal,
    data: tempfile::TempDir,
}

impl Desk {
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

    /// As a process would that starts now.
    fn logs(&self) -> StepLogs {
        StepLogs::new(self.data.path(), &LogOptions::default())
    }

    fn path(&self, form: &dyn Form) -> PathBuf {
        self.data.path().join(form.path())
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path(&Lines)).unwrap();
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
        let bytes = fs::read(self.path(&tensorboard::Events)).unwrap();
        let messages = event::messages(&bytes);
        assert_eq!(
            messages.last().unwrap().0,
            bytes.len(),
            "every byte is part of a whole record"
        );
        messages.iter().map(|(_, m)| event::step_of(m)).collect()
    }
}

#[test]
fn every_step_is_in_every_file_once() {
    let desk = Desk::new();
    let mut logs = desk.logs();
    logs.follow(&desk.journal);
    assert!(!desk.path(&Lines).exists(), "nothing to tell, no file");
    desk.steps(&[0.5, 0.25]);
    logs.follow(&desk.journal);
    desk.steps(&[0.125]);
    logs.follow(&desk.journal);
    logs.follow(&desk.journal);
    assert_eq!(desk.numbers(), [1, 2, 3]);
    assert_eq!(desk.events(), [None, Some(1), Some(2), Some(3)]);
    let line = &desk.lines()[1];
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
fn a_process_that_was_killed_between_journal_and_file_goes_on_without_gap_or_repetition() {
    let desk = Desk::new();
    desk.steps(&[0.5, 0.25]);
    desk.logs().follow(&desk.journal);
    // Killed after the commit of two more; then in the middle of writing the third.
    desk.steps(&[0.125, 0.0625]);
    desk.logs().follow(&desk.journal);
    assert_eq!(desk.numbers(), [1, 2, 3, 4]);
    for form in [&Lines as &dyn Form, &tensorboard::Events] {
        let path = desk.path(form);
        let whole = fs::read(&path).unwrap();
        for cut in [1, 7, 60] {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            desk.logs().follow(&desk.journal);
            assert_eq!(
                fs::read(&path).unwrap(),
                whole,
                "{path:?} after {cut} bytes were lost"
            );
        }
        // Torn to the first byte, and gone.
        fs::write(&path, &whole[..1]).unwrap();
        desk.logs().follow(&desk.journal);
        assert_eq!(fs::read(&path).unwrap(), whole);
        fs::remove_file(&path).unwrap();
        desk.logs().follow(&desk.journal);
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn a_file_of_another_journal_begins_anew() {
    let desk = Desk::new();
    desk.steps(&[0.5, 0.25, 0.125]);
    desk.logs().follow(&desk.journal);
    let other = Desk {
        journal: Journal::in_memory().unwrap(),
        data: desk.data,
    };
    other.steps(&[0.75]);
    other.logs().follow(&other.journal);
    assert_eq!(other.numbers(), [1]);
    assert_eq!(other.events(), [None, Some(1)]);
    assert_eq!(other.lines()[0]["metrics"]["loss_last"], 0.75);
    let aside = |name: &str| fs::read_to_string(other.path(&Lines).with_file_name(name)).unwrap();
    assert_eq!(aside("unknown/1-steps.jsonl").lines().count(), 3);
    fs::write(other.path(&Lines), "notes\nof somebody\n").unwrap();
    other.logs().follow(&other.journal);
    assert_eq!(other.numbers(), [1]);
    assert_eq!(aside("unknown/2-steps.jsonl"), "notes\nof somebody\n");
}

#[test]
fn a_file_that_cannot_be_written_stops_nothing_and_is_caught_up_with() {
    let desk = Desk::new();
    let folder = desk.data.path().join("metrics");
    fs::write(&folder, "in the way").unwrap();
    let mut logs = desk.logs();
    desk.steps(&[0.5]);
    logs.follow(&desk.journal);
    assert_eq!(desk.events(), [None, Some(1)]);
    fs::remove_file(&folder).unwrap();
    desk.steps(&[0.25]);
    logs.follow(&desk.journal);
    assert_eq!(desk.numbers(), [1, 2]);
}

#[test]
fn what_is_switched_off_is_not_written() {
    let desk = Desk::new();
    desk.steps(&[0.5]);
    let options = LogOptions {
        jsonl: true,
        tensorboard: false,
    };
    StepLogs::new(desk.data.path(), &options).follow(&desk.journal);
    assert!(desk.path(&Lines).exists() && !desk.path(&tensorboard::Events).exists());
}
