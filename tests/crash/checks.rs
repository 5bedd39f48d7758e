//! Invariants checked after every kill and at the end.

use std::collections::BTreeMap;
use std::path::Path;

use clawhost_journal::{Journal, SampleId, SampleState, StepId, StepOutcome, TurnState};
use clawhost_model::{Adapter, ModelConfig};
use clawhost_tests::Client;
use clawhost_training::TrainingOptions;

use super::ClientLedger;

/// Checks that everything that clients saw is recorded. Only the last `recent` turns; earlier ones were checked before.
pub(crate) fn turns(journal: &Journal, ledger: &ClientLedger, recent: usize) {
    let heads = ledger.heads.lock().unwrap().clone();
    let complete = ledger.complete.lock().unwrap().clone();
    for turn in heads.iter().rev().take(recent) {
        let record = journal.turn(*turn).unwrap();
        let record = record.unwrap_or_else(|| panic!("turn {turn} was received and is lost"));
        assert_ne!(record.state, TurnState::Failed, "{:?}", record.reason);
        if let Some(text) = complete.get(turn) {
            assert_eq!(record.state, TurnState::Complete, "turn {turn}");
            let reply = record.completion.unwrap().reply;
            assert_eq!(reply.text(), *text, "turn {turn}");
        }
    }
}

/// Checks, without a running server, that no sample trained twice, that the adapters form one chain, and that the files
/// of the last adapter (or with `every` of all) match the journal.
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

/// Checks that every dropped sample has one of the two expected reasons.
///
/// *Stale.* Three clients produce samples faster than this server trains: a step takes two samples, many kills hit
/// steps, and a killed step is repeated. So samples queue up, and every published step makes the queued ones one
/// version older. Samples older than `training.max_staleness` steps are dropped by design; this checks that each of
/// them really is that old, because one dropped after a restart lost count would be a bug.
///
/// *No signal.* The first batch sets the running mean of the rewards. While all rewards are negative, another negative
/// reward has zero advantage.
pub(crate) fn dropped(journal: &Journal) {
    let limit = TrainingOptions::default().max_staleness;
    let mut sampled_by = BTreeMap::new();
    for session in journal.sessions(u32::MAX).unwrap() {
        for turn in journal.session_turns(&session.id).unwrap() {
            for sample in journal.samples_of_turn(turn.id).unwrap() {
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

/// Checks that the served version matches the journal, and that no earlier run left an open turn.
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
