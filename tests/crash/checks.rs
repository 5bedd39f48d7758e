//! What must hold after every kill, and at the end.

use std::collections::BTreeMap;
use std::path::Path;

use clawhost_journal::{Journal, SampleId, SampleState, StepId, StepOutcome, TurnState};
use clawhost_policy::{Adapter, ModelConfig};
use clawhost_tests::Client;
use clawhost_training::TrainingOptions;

use super::Ledger;

/// Checks that everything that a client saw is recorded. Turns of earlier lives were looked at then, so
/// only the last `recent` ones are.
pub(crate) fn turns(journal: &Journal, ledger: &Ledger, recent: usize) {
    let heads = ledger.heads.lock().unwrap().clone();
    let complete = ledger.complete.lock().unwrap().clone();
    for turn in heads.iter().rev().take(recent) {
        let record = journal.turn(*turn).unwrap();
        let record = record.unwrap_or_else(|| panic!("turn {turn} was received and is lost"));
        assert_ne!(record.state, TurnState::Failed, "{:?}", record.reason);
        if let Some(text) = complete.get(turn) {
            assert_eq!(record.state, TurnState::Complete, "turn {turn}");
            let reply = record.completion.unwrap().reply;
            assert_eq!(reply["content"], text.as_str(), "turn {turn}");
        }
    }
}

/// Checks, while nobody writes, that no sample trained twice and that the adapters are one chain; that
/// the files of the last one are what was recorded, or (`every`) those of all.
pub(crate) fn training(data: &Path, model: &ModelConfig, every: bool) {
    let journal = Journal::open_read_only(data).unwrap();
    let steps = journal.steps(u32::MAX).unwrap();
    let mut trained: BTreeMap<SampleId, StepId> = BTreeMap::new();
    for step in &steps {
        for (sample, _) in &step.trained {
            let other = trained.insert(*sample, step.id);
            assert_eq!(
                other, None,
                "sample {sample} trained in step {} as well",
                step.id
            );
        }
        assert_eq!(
            step.adapter.is_some(),
            step.outcome == StepOutcome::Published
        );
    }
    let counts = journal.counts().unwrap();
    let recorded = counts.samples.get(&SampleState::Trained).copied();
    assert_eq!(recorded.unwrap_or(0), trained.len() as u64);

    let mut rows = journal.adapters().unwrap();
    rows.sort_by_key(|row| row.version);
    let mut before = 0;
    let last = rows.last().map_or(0, |row| row.version);
    for row in &rows {
        assert!(row.version > before);
        assert_eq!(row.parent, before, "version {} skips one", row.version);
        before = row.version;
        let active = row.state == "active";
        assert_eq!(
            active,
            row.version == last,
            "version {}: {}",
            row.version,
            row.state
        );
        if active || every {
            let adapter = Adapter::load_peft(&data.join(&row.path), model).unwrap();
            assert_eq!(adapter.digest(), row.digest, "version {}", row.version);
        }
    }
    let published = steps.iter().filter(|step| step.adapter.is_some());
    assert_eq!(published.count(), rows.len());
}

/// Checks that no sample was dropped without a cause, which there are two of here.
///
/// *Too old.* Three people talk faster than this server can train: a step takes two samples, a good part
/// of the kills is aimed at steps, and a step that was killed is begun anew. So samples queue up, and
/// each step that is published makes all that wait one version older. Those that wait for longer than
/// `training.max_staleness` steps are dropped, which is what that limit is for; here it is checked that
/// each of them really was that old, since one that is dropped because a restart lost count would be a
/// fault.
///
/// *No signal.* The first batch sets the running mean of the rewards. While all that came was blame, one
/// more blame is what was expected.
pub(crate) fn dropped(journal: &Journal) {
    let limit = TrainingOptions::default().max_staleness;
    let mut sampled_by = BTreeMap::new();
    for session in journal.sessions(u32::MAX).unwrap() {
        for turn in journal.session_turns(&session.id).unwrap() {
            for sample in journal.samples_of(turn.id).unwrap() {
                sampled_by.insert(sample.id, sample.adapter_version);
            }
        }
    }
    let mut steps = journal.steps(u32::MAX).unwrap();
    steps.sort_by_key(|step| step.id);
    let mut published: Vec<u64> = Vec::new();
    for step in &steps {
        let age_of = |sample: &SampleId| {
            let version = sampled_by[sample];
            published.iter().filter(|later| **later > version).count() as u64
        };
        for (sample, _) in &step.trained {
            assert!(age_of(sample) <= limit, "sample {sample} trained too late");
        }
        for (sample, reason) in &step.dropped {
            let age = age_of(sample);
            let stale = reason.starts_with("stale: sampled more than");
            assert_eq!(stale, age > limit, "{sample} at {age} versions: {reason}");
            assert!(
                stale || reason.starts_with("no signal: its reward"),
                "{reason}"
            );
        }
        published.extend(step.adapter);
    }
}

/// Checks that what is served is what the journal says, and that no earlier life left anything open.
pub(crate) async fn start(client: &Client, journal: &Journal) {
    let health = client.get("/healthz").await;
    assert_eq!(health.ok()["status"], "ok");
    let served = &health.body["adapter"];
    let rows = journal.adapters().unwrap();
    let row = rows.iter().find(|row| served["version"] == row.version);
    match row {
        Some(row) => assert_eq!(served["digest"], row.digest.as_str()),
        None => assert!(served["version"] == 0 && rows.is_empty(), "{served}"),
    }
    let turns = journal.counts().unwrap().turns;
    let open = turns.get(&TurnState::Generating).copied();
    assert_eq!(
        open.unwrap_or(0),
        0,
        "a reply of an earlier life is still open"
    );
}
