//! One turn's judgement: ask, combine, decide whether there is a sample. Nothing is written here.

use std::sync::Arc;
use std::time::Duration;

use clawhost_journal::{
    Completion, Finish, NewSample, NewVerdict, SampleRecord, SampleState, TurnKind, TurnRecord,
    VerdictOutcome, now_ms,
};
use clawhost_plugins::{CallContext, Fault, Trajectory, Verdict};
use serde_json::{Value, json};

use crate::evidence::Evidence;
use crate::health::{Health, is_ill, is_passing, reason};
use crate::history::trajectory;
use crate::judge::{Judge, seed};
use crate::options::{FaultPolicy, JudgingOptions, Neutral};
use crate::status::JudgingStatus;
use crate::votes::combine;

/// Source of a verdict that the user gave.
const USER: &str = "user";

/// Why a turn with a neutral verdict was skipped.
pub(crate) const NEUTRAL: &str = "neutral verdict";

/// A judge and how it fares.
pub(crate) struct Seat {
    pub(crate) judge: Arc<dyn Judge>,
    pub(crate) health: Health,
}

/// What the turns of a run are judged with.
pub(crate) struct Bench {
    pub(crate) seats: Vec<Seat>,
    pub(crate) options: JudgingOptions,
    pub(crate) status: JudgingStatus,
}

/// What the journal says about a turn.
pub(crate) struct Docket {
    pub(crate) turn: TurnRecord,
    /// The turns that led to it, oldest first, as many as a judge is shown.
    pub(crate) earlier: Vec<TurnRecord>,
    /// The session's user, as the client named it.
    pub(crate) user: Option<String>,
    /// Samples that earlier judgements of the turn made.
    pub(crate) samples: Vec<SampleRecord>,
}

/// What is to be recorded.
#[derive(Debug)]
pub(crate) struct Judgement {
    pub(crate) verdicts: Vec<NewVerdict>,
    pub(crate) sample: Option<NewSample>,
    /// Why there is no sample.
    pub(crate) skipped: Option<String>,
    pub(crate) receipts: Vec<Value>,
}

/// A fault ended judging, as the policy `stop` asks for.
#[derive(Debug, thiserror::Error)]
#[error(
    "judge {judge} failed on turn {turn} ({fault}) and judging.on_fault is \"stop\"; the turn stays ready for the next start"
)]
pub(crate) struct Stopped {
    judge: String,
    turn: String,
    fault: String,
}

/// One judge's answer over all attempts.
struct Answer {
    verdict: NewVerdict,
    reward: Option<f32>,
    accept: bool,
    receipts: Vec<Value>,
}

impl Bench {
    /// Judges one turn.
    pub(crate) async fn judge(&self, docket: &Docket) -> Result<Judgement, Stopped> {
        let turn = &docket.turn;
        let Some(completion) = &turn.completion else {
            return Ok(skip("no reply"));
        };
        let evidence = match Evidence::of(turn) {
            Ok(evidence) => evidence,
            Err(error) => {
                tracing::warn!(turn = %turn.id, %error, "what followed cannot be read");
                return Ok(skip("what followed cannot be read"));
            }
        };
        let mut judgement = Judgement {
            verdicts: evidence
                .new_scores
                .iter()
                .map(|(feedback, score)| NewVerdict {
                    source: USER.to_owned(),
                    digest: None,
                    outcome: VerdictOutcome::Verdict {
                        reward: *score,
                        accept: true,
                    },
                    votes: json!([]),
                    rationale: feedback.text.clone().unwrap_or_default(),
                    metrics: json!({}),
                    ms: feedback.ms,
                })
                .collect(),
            sample: None,
            skipped: None,
            receipts: Vec::new(),
        };
        let mut rewards = Vec::new();
        let mut accepted = true;
        let mut no_verdict = "no judge";
        let mut reason = None;
        if let Some(next_state) = evidence.for_judges {
            let built = trajectory(turn, completion, &docket.earlier, next_state, &self.options);
            let (trajectory, index) = match built {
                Ok(built) => built,
                Err(error) => {
                    tracing::warn!(turn = %turn.id, %error, "the conversation cannot be read");
                    return Ok(skip("the conversation cannot be read"));
                }
            };
            for seat in &self.seats {
                let answer = self.ask(seat, turn, &trajectory, index).await?;
                match (&answer.verdict.outcome, answer.reward) {
                    (VerdictOutcome::None { reason: why }, _) => reason = Some(why.clone()),
                    (VerdictOutcome::Verdict { .. }, reward) => {
                        rewards.push(reward);
                        accepted &= answer.accept;
                    }
                }
                judgement.verdicts.push(answer.verdict);
                judgement.receipts.extend(answer.receipts);
            }
        }
        if let Some(reason) = &reason {
            no_verdict = reason;
        }
        let (reward, accepted) = match evidence.users_word {
            Some(score) => (Some(score), true),
            None => (combine(&rewards), accepted),
        };
        match reward {
            None => judgement.skipped = Some(format!("no verdict: {no_verdict}")),
            Some(reward) => match self.refuses(docket, completion, reward, accepted) {
                Some(why) => judgement.skipped = Some(why.to_owned()),
                None => judgement.sample = Some(sample(docket, reward, &judgement.verdicts)),
            },
        }
        Ok(judgement)
    }

    /// Why a turn with a reward gives no sample.
    fn refuses(
        &self,
        docket: &Docket,
        completion: &Completion,
        reward: f32,
        accepted: bool,
    ) -> Option<&'static str> {
        if completion.token_ids.is_empty() || is_empty(&completion.reply) {
            return Some("empty reply");
        }
        match completion.finish {
            Finish::Aborted => return Some("aborted reply"),
            Finish::Length if !self.options.train_truncated => return Some("truncated reply"),
            Finish::Length | Finish::Stop | Finish::ToolCalls => {}
        }
        if docket.turn.kind == TurnKind::Side && !self.options.train_side {
            return Some("side turn");
        }
        if !accepted {
            return Some("not accepted by the judge");
        }
        if reward == 0.0 && self.options.neutral == Neutral::Skip {
            return Some(NEUTRAL);
        }
        // New evidence that says what was already learned must not train the same tokens twice.
        let learned = docket
            .samples
            .iter()
            .any(|s| s.state == SampleState::Trained && s.reward == reward);
        learned.then_some("already trained with this reward")
    }

    /// Calls one judge as often as the options say and combines what it says.
    async fn ask(
        &self,
        seat: &Seat,
        turn: &TurnRecord,
        trajectory: &Trajectory,
        index: u32,
    ) -> Result<Answer, Stopped> {
        let options = &self.options;
        if let Some(faults) = seat
            .health
            .quarantined(options.on_fault, options.quarantine_after)
        {
            let said = format!("set aside after {faults} faults in a row, until the next start");
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
    fn count(&self, seat: &Seat, turn: &TurnRecord, fault: &Fault) -> Result<(), Stopped> {
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
                if faults == self.options.quarantine_after {
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
        reward,
        accept,
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

/// Whether the reply holds neither text nor a tool call.
fn is_empty(reply: &Value) -> bool {
    let filled = |value: Option<&Value>| match value {
        Some(Value::String(text)) => !text.trim().is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(_)) => true,
        _ => false,
    };
    ![
        "content",
        "tool_calls",
        "function_call",
        "reasoning_content",
    ]
    .into_iter()
    .any(|key| filled(reply.get(key)))
}

fn sample(docket: &Docket, reward: f32, verdicts: &[NewVerdict]) -> NewSample {
    NewSample {
        turn: docket.turn.id,
        reward,
        baseline_key: baseline_key(docket.turn.key.as_deref(), docket.user.as_deref()),
        provenance: provenance(
            verdicts
                .iter()
                .map(|v| (v.source.as_str(), v.digest.as_deref(), &v.outcome)),
        ),
    }
}

/// The verdicts (source, digest, outcome) behind a sample, and the components that gave them.
pub(crate) fn provenance<'a>(
    verdicts: impl Iterator<Item = (&'a str, Option<&'a str>, &'a VerdictOutcome)>,
) -> Value {
    let mut judges = Vec::new();
    let mut components = Vec::new();
    for (source, digest, outcome) in verdicts {
        judges.push(json!({"source": source, "digest": digest, "outcome": outcome}));
        components.extend(digest);
    }
    components.sort_unstable();
    components.dedup();
    json!({ "verdicts": judges, "components": components })
}

/// Whose running mean a reward is compared with: the API key and the user, as far as known.
pub(crate) fn baseline_key(key: Option<&str>, user: Option<&str>) -> String {
    match (key, user) {
        (Some(key), Some(user)) => format!("{key}/{user}"),
        (Some(one), None) | (None, Some(one)) => one.to_owned(),
        (None, None) => "default".to_owned(),
    }
}

fn skip(reason: &str) -> Judgement {
    Judgement {
        verdicts: Vec::new(),
        sample: None,
        skipped: Some(reason.to_owned()),
        receipts: Vec::new(),
    }
}
