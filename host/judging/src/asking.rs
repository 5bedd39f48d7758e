//! Asking one judge about one turn, as often as the options say.

use std::sync::Arc;
use std::time::Duration;

use clawhost_journal::{NewVerdict, TurnRecord, VerdictOutcome, now_ms};
use clawhost_plugins::{CallContext, Fault, Trajectory, Verdict};
use serde_json::{Value, json};

use crate::health::{is_ill, is_passing, reason};
use crate::judge::seed;
use crate::judgement::{Bench, Stopped};
use crate::options::FaultPolicy;
use crate::seats::Seat;
use crate::votes::combine;

/// One judge's answer over all attempts.
pub(crate) struct Answer {
    pub(crate) verdict: NewVerdict,
    pub(crate) receipts: Vec<Value>,
}

impl Bench {
    /// Calls one judge as often as the options say and combines what it says.
    pub(crate) async fn ask(
        &self,
        seat: &Arc<Seat>,
        turn: &TurnRecord,
        trajectory: &Trajectory,
        index: u32,
    ) -> Result<Answer, Stopped> {
        let options = &self.options;
        if let Some(faults) = seat
            .health
            .quarantined(options.on_fault, options.quarantine_after)
        {
            let said = format!(
                "set aside after {faults} faults in a row, until it is replaced or the next start"
            );
            return Ok(answer(
                seat,
                Vec::new(),
                Some(("quarantined".to_owned(), said)),
                Vec::new(),
            ));
        }
        let mut calls = 0;
        let mut receipts = Vec::new();
        let mut verdicts: Vec<Option<Verdict>> = Vec::new();
        let mut fault: Option<Fault> = None;
        for _ in 0..options.attempts {
            let mut wait = Duration::from_millis(options.retry_wait_ms);
            let mut tries = 0;
            let outcome = loop {
                let call = CallContext {
                    run_id: options.run_id.clone(),
                    sample_id: turn.id.to_string(),
                    attempt: calls,
                    seed: seed(options.seed, turn.id.0),
                    settings: options.settings_of(seat.judge.name()),
                    limits: options.limits.clone(),
                };
                calls += 1;
                let judged = seat.judge.score(call, trajectory, index).await;
                receipts.push(json!(judged.receipt));
                match judged.outcome {
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
                Ok(verdict) => {
                    seat.health.well();
                    verdicts.push(Some(verdict));
                }
                Err(error) => {
                    self.count(seat, turn, &error)?;
                    verdicts.push(None);
                    fault = Some(error);
                }
            }
        }
        let fault = fault.map(|fault| (reason(&fault), described(&fault)));
        Ok(answer(seat, verdicts, fault, receipts))
    }

    /// Counts a fault, and ends judging when the policy says so.
    fn count(&self, seat: &Arc<Seat>, turn: &TurnRecord, fault: &Fault) -> Result<(), Stopped> {
        tracing::debug!(judge = seat.judge.name(), turn = %turn.id, %fault, "no verdict");
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
                if faults == self.options.quarantine_after && self.judges.sits(seat) {
                    let name = seat.judge.name().to_owned();
                    tracing::warn!(judge = name, faults, %fault, "judge is no longer called");
                    self.status.change(|s| s.quarantined.push(name));
                }
            }
            FaultPolicy::Stop => {
                return Err(Stopped {
                    judge: seat.judge.name().to_owned(),
                    turn: turn.id.to_string(),
                    fault: fault.to_string(),
                });
            }
        }
        Ok(())
    }
}

/// Combines one judge's attempts into the verdict that is recorded.
fn answer(
    seat: &Seat,
    verdicts: Vec<Option<Verdict>>,
    fault: Option<(String, String)>,
    receipts: Vec<Value>,
) -> Answer {
    let votes: Vec<Option<f32>> = verdicts
        .iter()
        .map(|verdict| verdict.as_ref().map(|v| v.reward))
        .collect();
    let reward = combine(&votes);
    let given: Vec<&Verdict> = verdicts.iter().flatten().collect();
    let accept = given.iter().all(|verdict| verdict.accept);
    // The first verdict that agrees with the whole speaks for it.
    let speaker = given
        .iter()
        .find(|verdict| Some(verdict.reward) == reward)
        .or(given.first());
    let (outcome, rationale) = match (reward, fault) {
        (Some(reward), _) => (
            VerdictOutcome::Verdict { reward, accept },
            speaker.map(|v| v.rationale.clone()).unwrap_or_default(),
        ),
        (None, Some((reason, said))) => (VerdictOutcome::None { reason }, said),
        (None, None) => (
            VerdictOutcome::None {
                reason: "not asked".to_owned(),
            },
            String::new(),
        ),
    };
    let metrics = speaker
        .map(|verdict| {
            verdict
                .metrics
                .iter()
                .map(|metric| (metric.name.clone(), json!(metric.value)))
                .collect::<serde_json::Map<_, _>>()
        })
        .unwrap_or_default();
    Answer {
        verdict: NewVerdict {
            source: format!("plugin:{}", seat.judge.name()),
            digest: Some(seat.judge.digest().to_owned()),
            outcome,
            votes: votes_json(&verdicts),
            rationale,
            metrics: Value::Object(metrics),
            ms: now_ms(),
        },
        receipts,
    }
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
