//! Killed at any point, training goes on where the journal stands.

use std::path::Path;

use clawhost_journal::{SampleState, StepOutcome};

use super::workshop::{Workshop, engine, options};
use crate::component::Components;
use crate::error::TrainingError;
use crate::trainer::Trainer;

/// The sha256 of adapter and optimizer of a version, as the journal has them.
fn files(shop: &Workshop, version: u64) -> Vec<String> {
    let rows = shop.journal.adapters().unwrap();
    let row = rows.iter().find(|row| row.version == version).unwrap();
    ["adapter_model.safetensors", "optimizer.safetensors"]
        .map(|name| row.provenance["files"][name].as_str().unwrap().to_owned())
        .into()
}

#[test]
fn a_restart_between_two_steps_changes_no_bit() {
    let run = |restart: bool| {
        let mut shop = Workshop::new();
        shop.eight();
        let mut options = options();
        options.estimator = crate::advantage::Estimator::Baseline;
        options.epochs = 2;
        options.minibatches = 2;
        options.optimizer.warmup = 3;
        let mut trainer = shop.trainer(&options);
        trainer.step(10).unwrap().unwrap();
        if restart {
            shop.restart();
            trainer = shop.trainer(&options);
            assert_eq!(shop.engine.active().version, 1);
        }
        let step = trainer.step(11).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published);
        (
            files(&shop, 1),
            files(&shop, 2),
            shop.engine.active().digest,
        )
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn killed_before_the_commit_the_samples_train_once_afterwards() {
    let mut shop = Workshop::new();
    let ids = shop.eight();
    let mut trainer = shop.trainer(&options());
    let prepared = trainer.prepare(10).unwrap().unwrap();
    assert!(shop.data().join("adapters/v000001").exists());
    drop((prepared, trainer));

    shop.restart();
    let mut trainer = shop.trainer(&options());
    assert!(
        !shop.data().join("adapters/v000001").exists()
            && shop
                .data()
                .join("adapters/unknown/v000001/optimizer.safetensors")
                .exists(),
        "what no step recorded is moved aside"
    );
    assert_eq!(shop.engine.active().version, 0);
    assert_eq!(shop.journal.queued_count().unwrap(), 8);
    trainer.step(11).unwrap().unwrap();
    trainer.step(12).unwrap().unwrap();
    let trained: usize = shop
        .journal
        .steps(10)
        .unwrap()
        .iter()
        .map(|step| step.trained.len())
        .sum();
    assert_eq!(trained, 8);
    assert!(
        ids.iter()
            .all(|id| shop.found(*id).state == SampleState::Trained)
    );
    assert!(trainer.step(13).unwrap().is_none());
}

#[test]
fn killed_after_the_commit_the_adapter_is_published_at_the_next_start() {
    let mut shop = Workshop::new();
    shop.eight();
    let mut trainer = shop.trainer(&options());
    let prepared = trainer.prepare(10).unwrap().unwrap();
    shop.journal.commit_step(prepared.step()).unwrap();
    drop((prepared, trainer));

    shop.restart();
    let trainer = shop.trainer(&options());
    let row = shop.journal.active_adapter().unwrap().unwrap();
    assert_eq!(shop.engine.active().digest, row.digest);
    assert_eq!(
        (trainer.version(), shop.journal.queued_count().unwrap()),
        (1, 4)
    );
}

/// Every file below the adapters, by its path there.
fn tree(shop: &Workshop) -> Vec<String> {
    fn walk(dir: &Path, below: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{below}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                walk(&entry.path(), &format!("{name}/"), found);
            } else {
                found.push(name);
            }
        }
    }
    let mut found = Vec::new();
    walk(&shop.data().join("adapters"), "", &mut found);
    found.sort();
    found
}

#[test]
fn no_adapter_is_deleted_because_the_journal_does_not_know_it() {
    let mut shop = Workshop::new();
    shop.eight();
    let mut trainer = shop.trainer(&options());
    trainer.step(10).unwrap().unwrap();
    trainer.step(11).unwrap().unwrap();
    drop(trainer);
    let made = tree(&shop);
    assert_eq!(made.len(), 8, "{made:?}");
    let aside: Vec<String> = made.iter().map(|name| format!("unknown/{name}")).collect();
    // The journal was lost; then its successor was lost as well.
    for life in 0..2 {
        shop.journal = clawhost_journal::Journal::in_memory().unwrap();
        shop.restart();
        let mut trainer = shop.trainer(&options());
        let left = tree(&shop);
        assert!(aside.iter().all(|name| left.contains(name)), "{left:?}");
        assert_eq!(left.len(), 8 + life * 4, "{left:?}");
        shop.eight();
        trainer.step(12).unwrap().unwrap();
    }
    assert!(tree(&shop).contains(&"unknown/v000001-2/optimizer.safetensors".to_owned()));
}

#[test]
fn what_is_half_written_is_removed_and_everything_else_stays() {
    let shop = Workshop::new();
    let adapters = shop.data().join("adapters");
    for name in [
        ".v000001", ".v000003", ".vault", "v000002", "v2", "mine", "unknown",
    ] {
        std::fs::create_dir_all(adapters.join(name)).unwrap();
        std::fs::write(adapters.join(name).join("a"), name).unwrap();
    }
    // Written last: this one was cut off between the last file and its name.
    std::fs::write(adapters.join(".v000003/provenance.json"), "{}").unwrap();
    shop.trainer(&options());
    assert_eq!(
        tree(&shop),
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
fn the_adapter_of_a_step_that_the_journal_refused_is_not_left_behind() {
    let mut shop = Workshop::new();
    let ids = shop.eight();
    let mut trainer = shop.trainer(&options());
    let prepared = trainer.prepare(10).unwrap().unwrap();
    // A sample of it is taken meanwhile.
    let taken = prepared.step().trained[0].0;
    assert!(ids.contains(&taken));
    shop.journal
        .commit_step(&clawhost_journal::NewStep {
            trained: Vec::new(),
            dropped: vec![(taken, "meanwhile".to_owned())],
            outcome: StepOutcome::NoSignal,
            adapter: None,
            ..prepared.step().clone()
        })
        .unwrap();
    trainer.record(prepared).unwrap_err();
    assert_eq!(tree(&shop), Vec::<String>::new());
    trainer.step(11).unwrap().unwrap();
}

#[cfg(unix)]
#[test]
fn adapters_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mut shop = Workshop::new();
    shop.eight();
    shop.trainer(&options()).step(10).unwrap().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let adapters = shop.data().join("adapters");
    assert_eq!(mode(&adapters), 0o700);
    assert_eq!(mode(&adapters.join("v000001")), 0o700);
    for name in tree(&shop) {
        assert_eq!(mode(&adapters.join(&name)), 0o600, "{name}");
    }
    assert_eq!(mode(&shop.data().join("metrics/steps.jsonl")), 0o600);
}

fn reopen(shop: &Workshop, seed: u64) -> Result<Trainer, TrainingError> {
    Trainer::open(
        shop.journal.clone(),
        engine(seed),
        shop.data(),
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
fn a_checkpoint_that_is_not_what_was_recorded_is_refused() {
    for name in ["adapter_model.safetensors", "optimizer.safetensors"] {
        let mut shop = Workshop::new();
        shop.eight();
        shop.trainer(&options()).step(10).unwrap().unwrap();
        let path = shop.data().join("adapters/v000001").join(name);
        flip_last_byte(&path);
        let said = reopen(&shop, 7).err().unwrap().to_string();
        assert!(
            said.contains(name) && said.contains("recorded is"),
            "{said}"
        );
        std::fs::remove_file(&path).unwrap();
        assert!(reopen(&shop, 7).is_err());
    }
}

#[test]
fn another_base_model_is_refused() {
    let mut shop = Workshop::new();
    shop.eight();
    shop.trainer(&options()).step(10).unwrap().unwrap();
    let said = reopen(&shop, 8).err().unwrap().to_string();
    assert!(said.contains("was trained on base model"), "{said}");
}

#[test]
fn only_the_newest_checkpoints_keep_the_optimizer() {
    let mut shop = Workshop::new();
    shop.eight();
    let few = crate::TrainingOptions {
        batch: 2,
        keep_checkpoints: 2,
        ..options()
    };
    let mut trainer = shop.trainer(&few);
    for now in 0..4 {
        trainer.step(now).unwrap().unwrap();
    }
    let kept = |file: &str| -> Vec<bool> {
        (1..=4)
            .map(|v| {
                shop.data()
                    .join(format!("adapters/v{v:06}/{file}"))
                    .exists()
            })
            .collect()
    };
    assert_eq!(kept("optimizer.safetensors"), [false, false, true, true]);
    assert_eq!(kept("adapter_model.safetensors"), [true; 4]);
    shop.restart();
    assert_eq!(shop.trainer(&few).version(), 4);
}

#[test]
fn what_a_killed_process_did_not_let_go_is_let_go_at_the_next_start() {
    let mut shop = Workshop::new();
    shop.eight();
    let keeping = |keep_checkpoints, enabled| crate::TrainingOptions {
        batch: 2,
        keep_checkpoints,
        enabled,
        ..options()
    };
    let mut trainer = shop.trainer(&keeping(8, true));
    for now in 0..4 {
        trainer.step(now).unwrap().unwrap();
    }
    drop(trainer);
    let optimizers = |shop: &Workshop| -> Vec<bool> {
        let file = |v| {
            shop.data()
                .join(format!("adapters/v{v:06}/optimizer.safetensors"))
        };
        (1..=4).map(|v| file(v).exists()).collect()
    };
    shop.trainer(&keeping(2, false));
    assert_eq!(
        optimizers(&shop),
        [true; 4],
        "one that only serves removes nothing"
    );
    shop.trainer(&keeping(2, true));
    assert_eq!(optimizers(&shop), [false, false, true, true]);
}

#[test]
fn marked_checkpoints_stay_and_what_is_let_go_says_so() {
    let mut shop = Workshop::new();
    shop.eight();
    let options = crate::TrainingOptions {
        batch: 1,
        keep_checkpoints: 1,
        keep_every: 3,
        keep_adapters: 2,
        max_staleness: 9,
        ..options()
    };
    let mut trainer = shop.trainer(&options);
    for now in 0..7 {
        trainer.step(now).unwrap().unwrap();
    }
    let kept = |file: &str| -> String {
        (1..=7)
            .map(|v| {
                shop.data()
                    .join(format!("adapters/v{v:06}/{file}"))
                    .exists()
            })
            .map(|there| if there { 'x' } else { '-' })
            .collect()
    };
    // 3 and 6 by their number, 7 is active, 6 is what it was trained from.
    assert_eq!(kept("optimizer.safetensors"), "--x--xx");
    assert_eq!(kept("adapter_model.safetensors"), "--x--xx");
    assert_eq!(kept("provenance.json"), "xxxxxxx");
    drop(trainer);
    let rows = shop.journal.adapters().unwrap();
    let checkpoints = crate::checkpoint::Checkpoints::beside(&shop.data());
    let load = |version: usize| checkpoints.load(&rows[version - 1], shop.engine.model(), false);
    assert!(load(3).is_ok() && load(7).is_ok());
    let said = load(2).unwrap_err().to_string();
    assert!(
        said.contains("version 2 was let go by training.keep_adapters"),
        "{said}"
    );
    shop.restart();
    assert_eq!(shop.trainer(&options).version(), 7);
}
