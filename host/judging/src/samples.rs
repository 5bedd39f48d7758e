//! From a reward, or a hint where there is none, to a sample, or to the reason why there is none.

use clawhost_journal::{
    Completion, Finish, HintOutcome, NewHint, NewSample, NewVerdict, SampleState, TurnKind,
    VerdictOutcome,
};
use serde_json::{Value, json};

use crate::docket::Docket;
use crate::options::{JudgingOptions, Neutral};
use crate::votes::Opinion;

/// Why a turn with a neutral verdict was skipped.
pub(crate) const NEUTRAL: &str = "neutral verdict";
/// Why a turn whose reply was cut at the token limit was skipped.
pub(crate) const TRUNCATED: &str = "truncated reply";

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

/// The reward that a turn would train with, none where its hints alone would teach, or why it does not train.
/// `no_verdict` is why nobody gave a reward; `hints` is what extractors gave in this judgement.
pub(crate) fn reward(
    docket: &Docket,
    completion: &Completion,
    given: Given,
    no_verdict: &str,
    hints: &[NewHint],
    options: &JudgingOptions,
) -> Result<Option<f32>, String> {
    let why = match given.reward() {
        None => format!("no verdict: {no_verdict}"),
        Some((reward, accepted)) => {
            let is_rank = matches!(given, Given::Together(_));
            match refuses(docket, completion, reward, accepted, is_rank, options) {
                None => return Ok(Some(reward)),
                Some(NEUTRAL) => NEUTRAL.to_owned(),
                Some(why) => return Err(why.to_owned()),
            }
        }
    };
    let teaches = options.hinted_samples
        && unfit(docket, completion, options).is_none()
        && hints_teach(docket, hints);
    if teaches { Ok(None) } else { Err(why) }
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
    if let Some(why) = unfit(docket, completion, options) {
        return Some(why);
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
        .any(|s| s.state == SampleState::Trained && s.reward == Some(reward));
    learned.then_some("already trained with this reward")
}

/// Why a turn gives no sample, whatever anybody thinks of it.
fn unfit(
    docket: &Docket,
    completion: &Completion,
    options: &JudgingOptions,
) -> Option<&'static str> {
    if completion.token_ids.is_empty() || is_empty(&completion.reply) {
        return Some("empty reply");
    }
    match completion.finish {
        Finish::Aborted => return Some("aborted reply"),
        // Being cut is no evidence of how good a reply is; what followed it is.
        Finish::Length if !(options.train_truncated && docket.is_followed()) => {
            return Some(TRUNCATED);
        }
        Finish::Length | Finish::Stop | Finish::ToolCalls => {}
    }
    (docket.turn.kind == TurnKind::Side && !options.train_side).then_some("side turn")
}

/// Whether the turn's hints can teach: there is one, and, where the turn has trained, one that was not there then.
fn hints_teach(docket: &Docket, new: &[NewHint]) -> bool {
    let known = || texts(docket.hints.iter().map(|hint| &hint.outcome));
    let mut new = texts(new.iter().map(|hint| &hint.outcome));
    let has_trained = |s: &clawhost_journal::SampleRecord| s.state == SampleState::Trained;
    if docket.samples.iter().any(has_trained) {
        return new.any(|text| known().all(|earlier| earlier != text));
    }
    new.next().is_some() || known().next().is_some()
}

/// The texts of those that are hints.
fn texts<'a>(outcomes: impl Iterator<Item = &'a HintOutcome>) -> impl Iterator<Item = &'a str> {
    outcomes.filter_map(|outcome| match outcome {
        HintOutcome::Hint { text, .. } => Some(text.as_str()),
        HintOutcome::None { .. } => None,
    })
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

pub(crate) fn sample(
    docket: &Docket,
    reward: Option<f32>,
    verdicts: &[NewVerdict],
    hints: &[NewHint],
    options: &JudgingOptions,
) -> NewSample {
    let mut provenance = provenance(
        verdicts
            .iter()
            .map(|v| (v.source.as_str(), v.digest.as_deref(), &v.outcome)),
    );
    if options.hinted_samples {
        let earlier = docket
            .hints
            .iter()
            .map(|h| (h.source.as_str(), h.digest.as_str(), &h.outcome));
        let new = hints
            .iter()
            .map(|h| (h.source.as_str(), h.digest.as_str(), &h.outcome));
        add_hints(&mut provenance, earlier.chain(new));
    }
    NewSample {
        turn: docket.turn.id,
        reward,
        baseline_key: baseline_key(
            docket.turn.key.as_deref(),
            docket.user.as_deref(),
            docket.after_complaint,
        ),
        provenance,
    }
}

/// Who gave the hints that may teach beside the reward, or in place of one.
fn add_hints<'a>(
    provenance: &mut Value,
    hints: impl Iterator<Item = (&'a str, &'a str, &'a HintOutcome)>,
) {
    let mut givers: Vec<(&str, &str)> = hints
        .filter(|(_, _, outcome)| matches!(outcome, HintOutcome::Hint { .. }))
        .map(|(source, digest, _)| (source, digest))
        .collect();
    givers.sort_unstable();
    givers.dedup();
    if givers.is_empty() {
        return;
    }
    if let Some(components) = provenance
        .get_mut("components")
        .and_then(Value::as_array_mut)
    {
        for (_, digest) in &givers {
            if !components.iter().any(|known| known == digest) {
                components.push(json!(digest));
            }
        }
        components.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
    }
    let givers: Vec<Value> = givers
        .into_iter()
        .map(|(source, digest)| json!({"source": source, "digest": digest}))
        .collect();
    if let Some(fields) = provenance.as_object_mut() {
        fields.insert("hints".to_owned(), givers.into());
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

/// Which running mean a reward is compared with: that of the API key and the user, as far as known, and of replies to a
/// complaint apart from all others. A person who complains and then accepts the second reply gives mostly -1 to first
/// replies and mostly +1 to those after a complaint; one mean of both would praise every second reply whatever it says.
pub(crate) fn baseline_key(key: Option<&str>, user: Option<&str>, after_complaint: bool) -> String {
    let person = match (key, user) {
        (Some(key), Some(user)) => format!("{key}/{user}"),
        (Some(one), None) | (None, Some(one)) => one.to_owned(),
        (None, None) => "default".to_owned(),
    };
    if after_complaint {
        format!("{person} (after a complaint)")
    } else {
        person
    }
}
