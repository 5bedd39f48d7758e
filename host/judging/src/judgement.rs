//! One turn's judgement: ask, combine, decide whether there is a sample. Nothing is written here.

use clawhost_journal::{
    Completion, Finish, NewSample, NewVerdict, SampleState, TurnKind, VerdictOutcome,
};
use serde_json::{Value, json};

use crate::docket::Docket;
use crate::evidence::Evidence;
use crate::history::trajectory;
use crate::options::{JudgingOptions, Neutral};
use crate::seats::Judges;
use crate::status::JudgingStatus;
use crate::votes::Opinion;

/// Source of a verdict that the user gave.
pub(crate) const USER: &str = "user";

/// Why a turn with a neutral verdict was skipped.
pub(crate) const NEUTRAL: &str = "neutral verdict";

/// What the turns of a run are judged with.
pub(crate) struct Bench {
    pub(crate) judges: Judges,
    pub(crate) options: JudgingOptions,
    pub(crate) status: JudgingStatus,
}

/// What is to be recorded.
#[derive(Debug)]
pub(crate) struct Judgement {
    pub(crate) verdicts: Vec<NewVerdict>,
    /// What the judges say together; none when they were not asked.
    pub(crate) opinion: Option<Opinion>,
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
    pub(crate) judge: String,
    pub(crate) turn: String,
    pub(crate) fault: String,
}

impl Bench {
    /// Judges one turn.
    pub(crate) async fn judge(&self, docket: &Docket) -> Result<Judgement, Stopped> {
        let turn = &docket.turn;
        let Some(completion) = &turn.completion else {
            return Ok(skip("no reply"));
        };
        // A judgement ends with the judges that it began with.
        let seats = self.judges.now();
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
            opinion: None,
            sample: None,
            skipped: None,
            receipts: Vec::new(),
        };
        let mut no_verdict = "no judge".to_owned();
        if let Some(next_state) = evidence.for_judges {
            let built = trajectory(turn, completion, &docket.earlier, next_state, &self.options);
            let (trajectory, index) = match built {
                Ok(built) => built,
                Err(error) => {
                    tracing::warn!(turn = %turn.id, %error, "the conversation cannot be read");
                    return Ok(skip("the conversation cannot be read"));
                }
            };
            let mut opinions = Vec::new();
            for seat in seats.iter() {
                let answer = self.ask(seat, turn, &trajectory, index).await?;
                let outcome = answer.verdict.outcome.clone();
                judgement.verdicts.push(answer.verdict);
                judgement.receipts.extend(answer.receipts);
                if let VerdictOutcome::None { reason } = &outcome {
                    no_verdict.clone_from(reason);
                }
                opinions.push(outcome);
                if self.options.combine.is_decided(&opinions) {
                    break;
                }
            }
            judgement.opinion = Some(self.options.combine.opinion(&opinions));
        }
        let (reward, accepted) = match (evidence.users_word, judgement.opinion) {
            (Some(score), _) => (Some(score), true),
            (None, Some(opinion)) => (opinion.reward, opinion.accept),
            (None, None) => (None, true),
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
        opinion: None,
        sample: None,
        skipped: Some(reason.to_owned()),
        receipts: Vec::new(),
    }
}
