//! A component that was built for an earlier 0.1 contract loads and runs.

use super::common::{call, default_limits, host, judge, trajectory};
use clawhost_plugins::{FaultKind, Grants, Kind, PairBatch, Profile, ScoredPair, ScoredReply};

/// The SDK's `judge-minimal` as built for clawhost:plugin@0.1.0. Never rebuild it.
const JUDGE: &[u8] = include_bytes!("../fixtures/judge-0.1.0.wasm");
/// The SDK's `filter-minimal`, a kind that 0.1.1 added, as built for it. Never rebuild it.
const FILTER: &[u8] = include_bytes!("../fixtures/filter-0.1.1.wasm");
/// A loss on pairs, a kind that 0.1.2 added.
const DPO: &[u8] = include_bytes!("../../../../plugins/artifacts/loss-dpo.wasm");

#[tokio::test]
async fn a_component_of_an_earlier_contract_runs_unchanged() {
    let host = host();
    let inspection = host.inspect(JUDGE).unwrap();
    assert_eq!(inspection.contract, "0.1.0");
    let old = host
        .load("old", JUDGE, &Grants::default(), Profile::default())
        .unwrap();
    let result = judge(&old, default_limits()).await;
    assert!(result.outcome.unwrap().reward.is_finite());
    assert!(result.receipt.host_calls > 0 || result.receipt.fuel.is_some());
}

#[tokio::test]
async fn a_filter_keeps_and_drops_turns() {
    let host = host();
    let inspection = host.inspect(FILTER).unwrap();
    assert_eq!(
        (inspection.kind, inspection.contract.as_str()),
        (Kind::Filter, "0.1.1")
    );
    let filter = host
        .load("filter", FILTER, &Grants::default(), Profile::default())
        .unwrap();
    let decide = async |text: &str| {
        let trajectory = trajectory(text);
        let context = call(default_limits());
        filter.filter_turn(context, &trajectory, 0, Some(1.0)).await
    };
    assert!(decide("thanks").await.outcome.unwrap().keep);
    let dropped = decide("my password: 1234").await;
    assert_eq!(dropped.receipt.world, "filter-plugin");
    let dropped = dropped.outcome.unwrap();
    assert!(
        !dropped.keep && dropped.reason.contains("password:"),
        "{dropped:?}"
    );

    let as_judge = judge(&filter, default_limits()).await.outcome.unwrap_err();
    assert!(
        matches!(as_judge.kind, FaultKind::WrongKind { .. }),
        "{as_judge}"
    );
}

#[tokio::test]
async fn a_loss_on_pairs_gives_one_gradient_per_pair() {
    let host = host();
    let inspection = host.inspect(DPO).unwrap();
    assert_eq!(
        (inspection.kind, inspection.contract.as_str()),
        (Kind::PairLoss, "0.1.2")
    );
    let loss = host
        .load("dpo", DPO, &Grants::default(), Profile::default())
        .unwrap();
    let reply = |logprob: f32, mask: u8| ScoredReply {
        tokens: vec![1, 2],
        mask: vec![1, mask],
        logprob: vec![logprob; 2],
        ref_logprob: vec![-1.0; 2],
    };
    let pair = ScoredPair {
        chosen: reply(-1.0, 1),
        rejected: reply(-1.0, 0),
    };
    let batch = PairBatch {
        pairs: vec![pair.clone(), pair],
        step: 1,
    };
    let found = loss.evaluate_pairs(call(default_limits()), batch.clone());
    let found = found.await.outcome.unwrap();
    assert_eq!(found.gradients.len(), 2);
    // -0.1 sigmoid(0), less 0.2 / 2 for the likelihood of the accepted reply.
    assert_eq!(found.gradients[1].d_chosen, [-0.15, -0.15]);
    assert_eq!(found.gradients[1].d_rejected, [0.05, 0.0]);

    let mut broken = batch;
    broken.pairs[0].rejected.ref_logprob.pop();
    let fault = loss.evaluate_pairs(call(default_limits()), broken).await;
    let fault = fault.outcome.unwrap_err();
    assert!(fault.to_string().contains("ref-logprob"), "{fault}");
}
