//! Asking one component, as often as the options say, and counting how it fares.

use std::sync::Arc;
use std::time::Duration;

use clawhost_journal::{NewVerdict, VerdictOutcome, now_ms};
use clawhost_plugins::{CallContext, Called, Fault, Metric, Verdict};
use serde_json::{Value, json};

use crate::health::{ABSTAINED, is_ill, is_passing, reason};
use crate::judge::{Answer, Asked, seed};
use crate::judgement::{Bench, Deferred, Stopped, Unjudged};
use crate::options::FaultPolicy;
use crate::seats::{Bank, Seat};
use crate::votes::combine;

/// What a component is asked about.
pub(crate) struct About {
    /// As calls name it.
    pub(crate) sample_id: String,
    /// As people do.
    pub(crate) shown: String,
    /// Of which the seed is made.
    pub(crate) number: i64,
    /// A condition of the host puts the judgement off.
    pub(crate) may_defer: bool,
}

/// What all calls of one component about one thing gave.
pub(crate) struct Given<T> {
    /// One for each attempt; none where it gave no result.
    pub(crate) results: Vec<Option<T>>,
    /// Why an attempt gave none, in a word and in a sentence.
    pub(crate) fault: Option<(String, String)>,
    pub(crate) receipts: Vec<Value>,
}

impl<T> Given<T> {
    /// Nothing, because nobody was called.
    fn nobody(reason: &str, said: String) -> Self {
        Self {
            results: Vec::new(),
            fault: Some((reason.to_owned(), said)),
            receipts: Vec::new(),
        }
    }
}

impl Bench {
    /// Calls one component as often as the options say.
    pub(crate) async fn ask<'a, A: Asked + ?Sized, T: Send>(
        &self,
        bank: &Bank<A>,
        seat: &Arc<Seat<A>>,
        about: &About,
        mut call: impl FnMut(CallContext) -> Answer<'a, Called<T>> + Send,
    ) -> Result<Given<T>, Unjudged> {
        let options = &self.options;
        if let Some(vacant) = &seat.vacant {
            return Ok(Given::nobody(&vacant.reason, vacant.said.clone()));
        }
        if let Some(faults) = seat
            .health
            .quarantined(options.on_fault, options.quarantine_after)
        {
            let said = format!(
                "set aside after {faults} faults in a row, until it is replaced or the next start"
            );
            return Ok(Given::nobody("quarantined", said));
        }
        let mut calls = 0;
        let mut given = Given {
            results: Vec::new(),
            fault: None,
            receipts: Vec::new(),
        };
        for _ in 0..options.attempts {
            let mut wait = Duration::from_millis(options.retry_wait_ms);
            let mut tries = 0;
            let outcome = loop {
                let context = CallContext {
                    run_id: options.run_id.clone(),
                    sample_id: about.sample_id.clone(),
                    attempt: calls,
                    seed: seed(options.seed, about.number),
                    settings: options.settings_of(seat.asked.name()),
                    limits: options.limits.clone(),
                };
                calls += 1;
                let called = call(context).await;
                given.receipts.push(json!(called.receipt));
                match called.outcome {
                    Err(fault) if is_passing(&fault) && tries < options.retries => {
                        tries += 1;
                        self.status.change(|s| s.retries += 1);
                        tokio::time::sleep(wait).await;
                        wait *= 2;
                    }
                    outcome => break outcome,
                }
            };
            match outcome {
                Ok(result) => {
                    seat.health.well();
                    given.results.push(Some(result));
                }
                Err(fault) if about.may_defer && fault.is_host_condition() => {
                    return Err(Unjudged::Deferred(Deferred {
                        reason: format!("{}: {fault}", seat.asked.name()),
                        receipts: given.receipts,
                    }));
                }
                Err(fault) => {
                    self.count(bank, seat, about, &fault)?;
                    given.results.push(None);
                    given.fault = Some((reason(&fault), described(&fault)));
                }
            }
        }
        Ok(given)
    }

    /// Counts a fault, and ends judging when the policy says so.
    fn count<A: Asked + ?Sized>(
        &self,
        bank: &Bank<A>,
        seat: &Arc<Seat<A>>,
        about: &About,
        fault: &Fault,
    ) -> Result<(), Stopped> {
        let name = seat.asked.name();
        tracing::debug!(plugin = name, about = about.shown, %fault, "no result");
        if !is_ill(fault) {
            if fault.is_no_answer() {
                seat.health.well();
            }
            return Ok(());
        }
        let faults = seat.health.ill();
        match self.options.on_fault {
            FaultPolicy::Skip => {}
            FaultPolicy::Quarantine => {
                // One that was replaced meanwhile is not called again anyway.
                if faults == self.options.quarantine_after && bank.sits(seat) {
                    tracing::warn!(plugin = name, faults, %fault, "it is no longer called");
                    self.status.change(|s| s.quarantined.push(name.to_owned()));
                }
            }
            FaultPolicy::Stop => {
                return Err(Stopped {
                    plugin: name.to_owned(),
                    about: about.shown.clone(),
                    fault: fault.to_string(),
                });
            }
        }
        Ok(())
    }
}

/// What a reward of 0 without a vote behind it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zero {
    /// From a judge of single turns: it has no opinion. One that does not accept the reply has.
    Abstains,
    /// From a group judge: the place between the best and the worst.
    Ranks,
}

impl Zero {
    fn is_abstention(self, verdict: &Verdict) -> bool {
        self == Self::Abstains
            && verdict.accept
            && verdict.reward == 0.0
            && verdict.votes.is_empty()
    }
}

/// Combines one judge's attempts about one turn into the verdict that is recorded. An attempt that abstains takes no
/// part in it.
pub(crate) fn verdict(
    asked: &(impl Asked + ?Sized),
    verdicts: &[Option<Verdict>],
    fault: Option<(String, String)>,
    zero: Zero,
) -> NewVerdict {
    let opinion = |verdict: &&Verdict| !zero.is_abstention(verdict);
    let votes: Vec<Option<f32>> = verdicts
        .iter()
        .map(|verdict| verdict.as_ref().filter(opinion).map(|v| v.reward))
        .collect();
    let reward = combine(&votes);
    let given: Vec<&Verdict> = verdicts.iter().flatten().collect();
    let mut opinions = given.iter().copied().filter(opinion);
    let accept = opinions.clone().all(|verdict| verdict.accept);
    // The first verdict that agrees with the whole speaks for it.
    let speaker = opinions
        .find(|verdict| Some(verdict.reward) == reward)
        .or(given.first().copied());
    let (outcome, rationale) = match (reward, fault) {
        (Some(reward), _) => (
            VerdictOutcome::Verdict { reward, accept },
            speaker.map(|v| v.rationale.clone()).unwrap_or_default(),
        ),
        (None, Some((reason, said))) => (VerdictOutcome::None { reason }, said),
        (None, None) => (
            VerdictOutcome::None {
                reason: if given.is_empty() {
                    "not asked".to_owned()
                } else {
                    ABSTAINED.to_owned()
                },
            },
            speaker.map(|v| v.rationale.clone()).unwrap_or_default(),
        ),
    };
    NewVerdict {
        source: source(asked),
        digest: Some(asked.digest().to_owned()),
        outcome,
        votes: votes_json(verdicts),
        rationale,
        metrics: speaker.map_or_else(|| json!({}), |verdict| metrics_json(&verdict.metrics)),
        ms: now_ms(),
    }
}

/// Under which name the record has what a component gave.
pub(crate) fn source(asked: &(impl Asked + ?Sized)) -> String {
    format!("plugin:{}", asked.name())
}

pub(crate) fn metrics_json(metrics: &[Metric]) -> Value {
    metrics
        .iter()
        .map(|metric| (metric.name.clone(), json!(metric.value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The opinions behind a verdict: the judge's own votes for one attempt, else one entry an attempt,
/// null where an attempt gave no verdict.
fn votes_json(verdicts: &[Option<Verdict>]) -> Value {
    match verdicts {
        [Some(only)] => json!(only.votes),
        several => several
            .iter()
            .map(|verdict| match verdict {
                Some(verdict) => json!({
                    "score": verdict.reward,
                    "rationale": verdict.rationale,
                    "votes": verdict.votes,
                }),
                None => Value::Null,
            })
            .collect(),
    }
}

/// The fault with what the guest wrote to standard error, if anything.
fn described(fault: &Fault) -> String {
    if fault.stderr.is_empty() {
        fault.to_string()
    } else {
        format!("{fault}; stderr: {}", fault.stderr)
    }
}
