//! Crash recovery: a process killed at any point resumes from the journal.

use std::path::Path;

use clawhost_journal::{SampleState, StepOutcome};
use clawhost_model::testing::unversioned_digest;

use super::fixture::{Fixture, engine, options};
use crate::component::Components;
use crate::error::TrainingError;
use crate::trainer::Trainer;
use crate::trainer_state::load_recorded_version;

/// SHA-256 of the adapter and optimizer files of a version, from the journal.
fn files(fixture: &Fixture, version: u64) -> Vec<String> {
    let rows = fixture.journal.adapters().unwrap();
    let row = rows.iter().find(|row| row.version == version).unwrap();
    ["adapter_model.safetensors", "optimizer.safetensors"]
        .map(|name| row.provenance["files"][name].as_str().unwrap().to_owned())
        .into()
}

#[test]
fn a_restart_between_steps_is_bit_identical() {
    let run = |restart: bool| {
        let mut fixture = Fixture::new();
        fixture.eight_samples();
        let mut options = options();
        options.estimator = crate::advantage::Estimator::Baseline;
        options.num_epochs = 2;
        options.num_minibatches = 2;
        options.optimizer.warmup_steps = 3;
        let mut trainer = fixture.trainer(&options);
        trainer.step(10).unwrap().unwrap();
        if restart {
            fixture.restart();
            trainer = fixture.trainer(&options);
            assert_eq!(fixture.engine.active().version, 1);
        }
        let step = trainer.step(11).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published);
        (
            files(&fixture, 1),
            files(&fixture, 2),
            fixture.engine.active().digest().to_owned(),
        )
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn samples_train_once_after_a_kill_before_the_commit() {
    let mut fixture = Fixture::new();
    let ids = fixture.eight_samples();
    let mut trainer = fixture.trainer(&options());
    let prepared = trainer.prepare(10).unwrap().unwrap();
    assert!(fixture.data().join("adapters/v000001").exists());
    drop((prepared, trainer));

    fixture.restart();
    let mut trainer = fixture.trainer(&options());
    assert!(
        !fixture.data().join("adapters/v000001").exists()
            && fixture
                .data()
                .join("adapters/unknown/v000001/optimizer.safetensors")
                .exists(),
        "an unrecorded checkpoint is moved to unknown/"
    );
    assert_eq!(fixture.engine.active().version, 0);
    assert_eq!(fixture.journal.queued_count().unwrap(), 8);
    trainer.step(11).unwrap().unwrap();
    trainer.step(12).unwrap().unwrap();
    let trained: usize = fixture
        .journal
        .steps(10)
        .unwrap()
        .iter()
        .map(|step| step.trained.len())
        .sum();
    assert_eq!(trained, 8);
    assert!(
        ids.iter()
            .all(|id| fixture.sample_record(*id).state == SampleState::Trained)
    );
    assert!(trainer.step(13).unwrap().is_none());
}

#[test]
fn the_adapter_is_published_after_a_kill_after_the_commit() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    let mut trainer = fixture.trainer(&options());
    let prepared = trainer.prepare(10).unwrap().unwrap();
    fixture.journal.commit_step(&prepared.step).unwrap();
    drop((prepared, trainer));

    fixture.restart();
    let trainer = fixture.trainer(&options());
    let row = fixture.journal.active_adapter().unwrap().unwrap();
    assert_eq!(fixture.engine.active().digest(), row.digest);
    assert_eq!(
        (trainer.version(), fixture.journal.queued_count().unwrap()),
        (1, 4)
    );
}

/// Paths of all files in the adapters directory, relative to it.
fn tree(fixture: &Fixture) -> Vec<String> {
    fn walk(dir: &Path, below: &str, files: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{below}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                walk(&entry.path(), &format!("{name}/"), files);
            } else {
                files.push(name);
            }
        }
    }
    let mut files = Vec::new();
    walk(&fixture.data().join("adapters"), "", &mut files);
    files.sort();
    files
}

#[test]
fn adapters_unknown_to_the_journal_are_never_deleted() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    let mut trainer = fixture.trainer(&options());
    trainer.step(10).unwrap().unwrap();
    trainer.step(11).unwrap().unwrap();
    drop(trainer);
    let written = tree(&fixture);
    assert_eq!(written.len(), 8, "{written:?}");
    let moved: Vec<String> = written
        .iter()
        .map(|name| format!("unknown/{name}"))
        .collect();
    // The journal is lost twice.
    for loss in 0..2 {
        fixture.journal = clawhost_journal::Journal::in_memory().unwrap();
        fixture.restart();
        let mut trainer = fixture.trainer(&options());
        let files = tree(&fixture);
        assert!(moved.iter().all(|name| files.contains(name)), "{files:?}");
        assert_eq!(files.len(), 8 + loss * 4, "{files:?}");
        fixture.eight_samples();
        trainer.step(12).unwrap().unwrap();
    }
    assert!(tree(&fixture).contains(&"unknown/v000001-2/optimizer.safetensors".to_owned()));
}

#[test]
fn only_incomplete_checkpoints_are_removed() {
    let fixture = Fixture::new();
    let adapters = fixture.data().join("adapters");
    for name in [
        ".v000001", ".v000003", ".vault", "v000002", "v2", "mine", "unknown",
    ] {
        std::fs::create_dir_all(adapters.join(name)).unwrap();
        std::fs::write(adapters.join(name).join("a"), name).unwrap();
    }
    // The provenance is written last, so this checkpoint is complete except for the rename.
    std::fs::write(adapters.join(".v000003/provenance.json"), "{}").unwrap();
    fixture.trainer(&options());
    assert_eq!(
        tree(&fixture),
        [
            ".vault/a",
            "mine/a",
            "unknown/a",
            "unknown/v000002/a",
            "unknown/v000003/a",
            "unknown/v000003/provenance.json",
            "v2/a"
        ]
    );
}

#[test]
fn the_checkpoint_of_a_rejected_step_is_removed() {
    let mut fixture = Fixture::new();
    let ids = fixture.eight_samples();
    let mut trainer = fixture.trainer(&options());
    let prepared = trainer.prepare(10).unwrap().unwrap();
    // Another step drops one of its samples.
    let dropped = prepared.step.trained[0].0;
    assert!(ids.contains(&dropped));
    fixture
        .journal
        .commit_step(&clawhost_journal::NewStep {
            trained: Vec::new(),
            dropped: vec![(dropped, "meanwhile".to_owned())],
            outcome: StepOutcome::NoSignal,
            adapter: None,
            ..prepared.step.clone()
        })
        .unwrap();
    trainer.record(prepared).unwrap_err();
    assert_eq!(tree(&fixture), Vec::<String>::new());
    trainer.step(11).unwrap().unwrap();
}

#[cfg(unix)]
#[test]
fn adapter_files_are_private_to_their_owner() {
    use std::os::unix::fs::PermissionsExt;
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    fixture.trainer(&options()).step(10).unwrap().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let adapters = fixture.data().join("adapters");
    assert_eq!(mode(&adapters), 0o700);
    assert_eq!(mode(&adapters.join("v000001")), 0o700);
    for name in tree(&fixture) {
        assert_eq!(mode(&adapters.join(&name)), 0o600, "{name}");
    }
    assert_eq!(mode(&fixture.data().join("metrics/steps.jsonl")), 0o600);
}

fn reopen(fixture: &Fixture, seed: u64) -> Result<Trainer, TrainingError> {
    Trainer::open(
        fixture.journal.clone(),
        engine(seed),
        fixture.data(),
        options(),
        Components::default(),
    )
}

fn flip_last_byte(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_corrupt_checkpoint_is_rejected() {
    for name in ["adapter_model.safetensors", "optimizer.safetensors"] {
        let mut fixture = Fixture::new();
        fixture.eight_samples();
        fixture.trainer(&options()).step(10).unwrap().unwrap();
        let path = fixture.data().join("adapters/v000001").join(name);
        flip_last_byte(&path);
        let error = reopen(&fixture, 7).err().unwrap().to_string();
        assert!(
            error.contains(name) && error.contains("recorded is"),
            "{error}"
        );
        std::fs::remove_file(&path).unwrap();
        assert!(reopen(&fixture, 7).is_err());
    }
}

#[test]
fn another_base_model_is_rejected() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    fixture.trainer(&options()).step(10).unwrap().unwrap();
    let error = reopen(&fixture, 8).err().unwrap().to_string();
    assert!(error.contains("was trained on base model"), "{error}");
}

#[test]
fn only_the_newest_checkpoints_keep_the_optimizer() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    let few = crate::TrainingOptions {
        batch_size: 2,
        keep_checkpoints: 2,
        ..options()
    };
    let mut trainer = fixture.trainer(&few);
    for now in 0..4 {
        trainer.step(now).unwrap().unwrap();
    }
    let kept = |file: &str| -> Vec<bool> {
        (1..=4)
            .map(|v| {
                fixture
                    .data()
                    .join(format!("adapters/v{v:06}/{file}"))
                    .exists()
            })
            .collect()
    };
    assert_eq!(kept("optimizer.safetensors"), [false, false, true, true]);
    assert_eq!(kept("adapter_model.safetensors"), [true; 4]);
    fixture.restart();
    assert_eq!(fixture.trainer(&few).version(), 4);
}

#[test]
fn retention_is_applied_at_the_next_start_after_a_kill() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    let keeping = |keep_checkpoints, enabled| crate::TrainingOptions {
        batch_size: 2,
        keep_checkpoints,
        enabled,
        ..options()
    };
    let mut trainer = fixture.trainer(&keeping(8, true));
    for now in 0..4 {
        trainer.step(now).unwrap().unwrap();
    }
    drop(trainer);
    let optimizers = |fixture: &Fixture| -> Vec<bool> {
        let file = |v| {
            fixture
                .data()
                .join(format!("adapters/v{v:06}/optimizer.safetensors"))
        };
        (1..=4).map(|v| file(v).exists()).collect()
    };
    fixture.trainer(&keeping(2, false));
    assert_eq!(
        optimizers(&fixture),
        [true; 4],
        "a process that does not train removes nothing"
    );
    fixture.trainer(&keeping(2, true));
    assert_eq!(optimizers(&fixture), [false, false, true, true]);
}

#[test]
fn retention_keeps_marked_checkpoints_and_reports_removed_ones() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    let options = crate::TrainingOptions {
        batch_size: 1,
        keep_checkpoints: 1,
        keep_every: 3,
        keep_adapters: 2,
        max_staleness: 9,
        ..options()
    };
    let mut trainer = fixture.trainer(&options);
    for now in 0..7 {
        trainer.step(now).unwrap().unwrap();
    }
    let kept = |file: &str| -> String {
        (1..=7)
            .map(|v| {
                fixture
                    .data()
                    .join(format!("adapters/v{v:06}/{file}"))
                    .exists()
            })
            .map(|there| if there { 'x' } else { '-' })
            .collect()
    };
    // 3 and 6 are divisible by 3, 7 is active and 6 is its parent.
    assert_eq!(kept("optimizer.safetensors"), "--x--xx");
    assert_eq!(kept("adapter_model.safetensors"), "--x--xx");
    assert_eq!(kept("provenance.json"), "xxxxxxx");
    drop(trainer);
    let rows = fixture.journal.adapters().unwrap();
    let checkpoints = crate::checkpoint::Checkpoints::open_read_only(&fixture.data());
    let load = |version: usize| checkpoints.load(&rows[version - 1], fixture.engine.model(), false);
    assert!(load(3).is_ok() && load(7).is_ok());
    let error = load(2).unwrap_err().to_string();
    assert!(
        error.contains("version 2 were removed by training.keep_adapters"),
        "{error}"
    );
    fixture.restart();
    assert_eq!(fixture.trainer(&options).version(), 7);
}

#[test]
fn a_record_without_a_base_model_is_reported_as_damage() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    fixture.trainer(&options()).step(10).unwrap().unwrap();
    let mut row = fixture.journal.active_adapter().unwrap().unwrap();
    let checkpoints = crate::checkpoint::Checkpoints::open_read_only(&fixture.data());
    let load = |row: &clawhost_journal::AdapterRow| {
        load_recorded_version(row, &fixture.engine, &checkpoints, &options(), true)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    load(&row).unwrap();
    // That of an old record is one sha256.
    let old = unversioned_digest(fixture.engine.model());
    let other = old.replace(|digit: char| digit.is_ascii_digit(), "a");
    row.provenance["base_digest"] = old.into();
    load(&row).unwrap();
    for another in ["another", "v2-another", &other] {
        row.provenance["base_digest"] = another.into();
        let error = load(&row).unwrap_err();
        let wanted = format!("trained on base model {another}");
        assert!(error.contains(&wanted), "{error}");
    }
    for missing in [serde_json::Value::Null, "".into()] {
        row.provenance["base_digest"] = missing;
        let error = load(&row).unwrap_err();
        assert!(
            error.contains("v000001") && error.contains("its record names no base model"),
            "{error}"
        );
    }
}
