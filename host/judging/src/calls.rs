//! Calls one component the configured number of times, with retries, and tracks its faults.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use clawhost_config::Limits;
use clawhost_journal::{PluginMetrics, VerdictOutcome, VerdictRecord, VoteRecord, now_ms};
use clawhost_plugins::{CallContext, CallResult, Fault, Metric, Verdict, panic_message};
use futures_util::FutureExt as _;
use serde_json::{Value, json};

use crate::health::{ABSTAINED, counts_as_failure, fault_reason, is_transient};
use crate::judge::{CallFuture, Component, seed};
use crate::panel::{Deferral, JudgeError, JudgePanel, StopError};
use crate::slots::{JudgeSlot, SlotList};
use crate::votes::combine_votes;
use clawhost_config::FaultPolicy;

/// What a component call is about: one turn, or all choices of a request.
pub(crate) struct CallTarget {
    /// The `sample_id` of the call context.
    pub(crate) sample_id: String,
    /// The name used in log and error messages.
    pub(crate) label: String,
    /// The number from which the seed is derived.
    pub(crate) seed_index: i64,
    /// Whether a host condition (busy machine, failed plugin host) defers the judgement.
    pub(crate) may_defer: bool,
}

/// The results of all attempts of one component on one target.
pub(crate) struct Attempts<T> {
    /// One entry per attempt; `None` where the attempt produced no result.
    pub(crate) results: Vec<Option<T>>,
    /// Why the last failed attempt produced no result: a short reason and a message.
    pub(crate) fault: Option<(String, String)>,
    pub(crate) receipts: Vec<Value>,
}

impl<T> Attempts<T> {
    /// No attempts were made, for this reason.
    fn not_called(reason: &str, detail: String) -> Self {
        Self {
            results: Vec::new(),
            fault: Some((reason.to_owned(), detail)),
            receipts: Vec::new(),
        }
    }
}

impl JudgePanel {
    /// Calls one component `judging.calls_per_judge` times and retries transient errors.
    pub(crate) async fn call_slot<'a, A: Component + ?Sized, T: Send>(
        &self,
        slots: &SlotList<A>,
        slot: &Arc<JudgeSlot<A>>,
        target: &CallTarget,
        mut call: impl FnMut(CallContext) -> CallFuture<'a, CallResult<T>> + Send,
    ) -> Result<Attempts<T>, JudgeError> {
        let options = &self.options;
        if let Some(unloaded) = &slot.unloaded {
            return Ok(Attempts::not_called(
                &unloaded.reason,
                unloaded.detail.clone(),
            ));
        }
        if let Some(faults) = slot
            .health
            .quarantine_failures(options.fault_policy, options.quarantine_after_faults)
        {
            let detail = format!(
                "quarantined after {faults} consecutive faults, until the plugin is replaced or the server restarts"
            );
            return Ok(Attempts::not_called("quarantined", detail));
        }
        let mut calls = 0;
        let mut attempts = Attempts {
            results: Vec::new(),
            fault: None,
            receipts: Vec::new(),
        };
        for _ in 0..options.calls_per_judge {
            let mut wait = options.retry_backoff;
            let mut tries = 0;
            let outcome = loop {
                let context = CallContext {
                    run_id: options.run_id.clone(),
                    sample_id: target.sample_id.clone(),
                    attempt: calls,
                    seed: seed(options.seed, target.seed_index),
                    settings: self.plugins.settings(slot.component.name()),
                    limits: self
                        .plugins
                        .limits(slot.component.name(), &Limits::default()),
                    artifacts: None,
                };
                calls += 1;
                // A panic fails this call and nothing else.
                let called = AssertUnwindSafe(async { call(context).await });
                let outcome = match called.catch_unwind().await {
                    Ok(called) => {
                        attempts.receipts.push(json!(called.receipt));
                        called.outcome
                    }
                    Err(panic) => break Err(CallFailure::Panic(panic_message(&*panic).to_owned())),
                };
                match outcome {
                    Err(fault) if is_transient(&fault) && tries < options.max_retries => {
                        tries += 1;
                        self.status.update(|s| s.retries += 1);
                        tokio::time::sleep(wait).await;
                        wait *= 2;
                    }
                    outcome => break outcome.map_err(CallFailure::Fault),
                }
            };
            match outcome {
                Ok(result) => {
                    slot.health.record_success();
                    attempts.results.push(Some(result));
                }
                Err(CallFailure::Panic(message)) => {
                    let name = slot.component.name();
                    tracing::error!(
                        plugin = name,
                        target = target.label,
                        message,
                        "a plugin call panicked"
                    );
                    attempts.results.push(None);
                    attempts.fault = Some(("panic".to_owned(), message));
                }
                Err(CallFailure::Fault(fault)) if target.may_defer && fault.is_host_condition() => {
                    return Err(JudgeError::Deferred(Deferral {
                        reason: format!("{}: {fault}", slot.component.name()),
                        receipts: attempts.receipts,
                    }));
                }
                Err(CallFailure::Fault(fault)) => {
                    self.record_fault(slots, slot, target, &fault)?;
                    attempts.results.push(None);
                    attempts.fault = Some((fault_reason(&fault), describe_fault(&fault)));
                }
            }
        }
        Ok(attempts)
    }

    /// Counts a fault. Returns an error when the fault policy is `stop`.
    fn record_fault<A: Component + ?Sized>(
        &self,
        slots: &SlotList<A>,
        slot: &Arc<JudgeSlot<A>>,
        target: &CallTarget,
        fault: &Fault,
    ) -> Result<(), StopError> {
        let name = slot.component.name();
        tracing::debug!(plugin = name, target = target.label, %fault, "plugin call returned no result");
        if !counts_as_failure(fault) {
            if fault.is_unsupported() {
                slot.health.record_success();
            }
            return Ok(());
        }
        let faults = slot.health.record_failure();
        match self.options.fault_policy {
            FaultPolicy::Skip => {}
            FaultPolicy::Quarantine => {
                // A component that was replaced in the meantime is not called again anyway.
                if faults == self.options.quarantine_after_faults && slots.contains(slot) {
                    tracing::warn!(plugin = name, faults, %fault, "plugin is quarantined and no longer called");
                    self.status.update(|s| s.quarantined.push(name.to_owned()));
                }
            }
            FaultPolicy::Stop => {
                return Err(StopError {
                    plugin: name.to_owned(),
                    target: target.label.clone(),
                    fault: fault.to_string(),
                });
            }
        }
        Ok(())
    }
}

/// Why a call has no result.
enum CallFailure {
    Fault(Fault),
    /// The host panicked, with this message.
    Panic(String),
}

/// How to read a reward of 0 without votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZeroReward {
    /// From a single-turn judge: it abstains, unless it rejects the reply (`accept` is false).
    Abstention,
    /// From a group judge: a rank in the middle.
    Rank,
}

impl ZeroReward {
    fn is_abstention(self, verdict: &Verdict) -> bool {
        self == Self::Abstention
            && verdict.accept
            && verdict.reward == 0.0
            && verdict.votes.is_empty()
    }
}

/// Combines one judge's attempts on one turn into the verdict that is recorded. Attempts that abstain are ignored.
pub(crate) fn combine_attempts(
    component: &(impl Component + ?Sized),
    verdicts: &[Option<Verdict>],
    fault: Option<(String, String)>,
    zero_reward: ZeroReward,
) -> VerdictRecord {
    let counts = |verdict: &&Verdict| !zero_reward.is_abstention(verdict);
    let votes: Vec<Option<f32>> = verdicts
        .iter()
        .map(|verdict| verdict.as_ref().filter(counts).map(|v| v.reward))
        .collect();
    let reward = combine_votes(&votes);
    let present: Vec<&Verdict> = verdicts.iter().flatten().collect();
    let mut counted = present.iter().copied().filter(counts);
    let accept = counted.clone().all(|verdict| verdict.accept);
    // The rationale and metrics come from the first verdict whose reward equals the combined one.
    let chosen = counted
        .find(|verdict| Some(verdict.reward) == reward)
        .or(present.first().copied());
    let rationale = chosen.map_or_else(String::new, |verdict| verdict.rationale.clone());
    let (outcome, rationale) = match (reward, fault) {
        (Some(reward), _) => (VerdictOutcome::Verdict { reward, accept }, rationale),
        (None, Some((reason, detail))) => (VerdictOutcome::None { reason }, detail),
        (None, None) => (
            VerdictOutcome::None {
                reason: if present.is_empty() {
                    "not asked".to_owned()
                } else {
                    ABSTAINED.to_owned()
                },
            },
            rationale,
        ),
    };
    VerdictRecord {
        source: source_name(component),
        digest: Some(component.digest().to_owned()),
        outcome,
        votes: vote_records(verdicts),
        rationale,
        metrics: chosen.map_or_else(PluginMetrics::new, |verdict| {
            metrics_by_name(&verdict.metrics)
        }),
        ms: now_ms(),
    }
}

/// The source name that the journal stores for a component.
pub(crate) fn source_name(component: &(impl Component + ?Sized)) -> String {
    format!("plugin:{}", component.name())
}

pub(crate) fn metrics_by_name(metrics: &[Metric]) -> PluginMetrics {
    metrics
        .iter()
        .map(|metric| (metric.name.clone(), metric.value))
        .collect()
}

/// The votes behind a verdict: the judge's own votes for a single attempt, else one entry per attempt, `None` where an
/// attempt produced no verdict.
fn vote_records(verdicts: &[Option<Verdict>]) -> Vec<Option<VoteRecord>> {
    let own = |verdict: &Verdict| -> Vec<VoteRecord> {
        let votes = verdict.votes.iter();
        votes
            .map(|vote| VoteRecord {
                score: vote.score,
                rationale: vote.rationale.clone(),
                votes: None,
            })
            .collect()
    };
    match verdicts {
        [Some(only)] => own(only).into_iter().map(Some).collect(),
        several => several
            .iter()
            .map(|verdict| {
                verdict.as_ref().map(|verdict| VoteRecord {
                    score: verdict.reward,
                    rationale: verdict.rationale.clone(),
                    votes: Some(own(verdict)),
                })
            })
            .collect(),
    }
}

/// The fault message, followed by the guest's standard error if there is any.
fn describe_fault(fault: &Fault) -> String {
    if fault.stderr.is_empty() {
        fault.to_string()
    } else {
        format!("{fault}; stderr: {}", fault.stderr)
    }
}
