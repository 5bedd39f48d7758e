//! From a reward to a sample, or to the reason why there is none.

use clawhost_journal::{
    Completion, Finish, NewSample, NewVerdict, SampleState, TurnKind, VerdictOutcome,
};
use serde_json::{Value, json};

use crate::docket::Docket;
use crate::options::{JudgingOptions, Neutral};
use crate::votes::Opinion;

/// Why a turn with a neutral verdict was skipped.
pub(crate) const NEUTRAL: &str = "neutral verdict";

/// A reward and who gave it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Given {
    /// The user; nobody's leave is needed.
    ByUser(f32),
    /// Judges of the turn.
    Apart(Opinion),
    /// Judges of all choices of its request. A reward of 0 is a place among the others there, and not neutral.
    Together(Opinion),
    /// Nobody.
    None,
}

impl Given {
    fn reward(self) -> Option<(f32, bool)> {
        match self {
            Given::ByUser(score) => Some((score, true)),
            Given::Apart(opinion) | Given::Together(opinion) => {
                Some((opinion.reward?, opinion.accept))
            }
            Given::None => None,
        }
    }
}

/// The reward that a turn would train with, or why it does not train. `no_verdict` is why nobody gave one.
pub(crate) fn reward(
    docket: &Docket,
    completion: &Completion,
    given: Given,
    no_verdict: &str,
    options: &JudgingOptions,
) -> Result<f32, String> {
    let Some((reward, accepted)) = given.reward() else {
        return Err(format!("no verdict: {no_verdict}"));
    };
    let is_rank = matches!(given, Given::Together(_));
    match refuses(docket, completion, reward, accepted, is_rank, options) {
        Some(why) => Err(why.to_owned()),
        None => Ok(reward),
    }
}

/// Why a turn with a reward gives no sample.
fn refuses(
    docket: &Docket,
    completion: &Completion,
    reward: f32,
    accepted: bool,
    is_rank: bool,
    options: &JudgingOptions,
) -> Option<&'static str> {
    if completion.token_ids.is_empty() || is_empty(&completion.reply) {
        return Some("empty reply");
    }
    match completion.finish {
        Finish::Aborted => return Some("aborted reply"),
        Finish::Length if !options.train_truncated => return Some("truncated reply"),
        Finish::Length | Finish::Stop | Finish::ToolCalls => {}
    }
    if docket.turn.kind == TurnKind::Side && !options.train_side {
        return Some("side turn");
    }
    if !accepted {
        return Some("not accepted by the judge");
    }
    if reward == 0.0 && !is_rank && options.neutral == Neutral::Skip {
        return Some(NEUTRAL);
    }
    // New evidence that says what was already learned must not train the same tokens twice.
    let learned = docket
        .samples
        .iter()
        .any(|s| s.state == SampleState::Trained && s.reward == reward);
    learned.then_some("already trained with this reward")
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

pub(crate) fn sample(docket: &Docket, reward: f32, verdicts: &[NewVerdict]) -> NewSample {
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
