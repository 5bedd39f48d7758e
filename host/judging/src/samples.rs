//! Decides whether a reward, or a hint without a reward, becomes a sample, and if not, why.

use clawhost_journal::{
    Completion, Finish, HintOutcome, NewHint, NewSample, NewVerdict, SampleState, TurnKind,
    VerdictOutcome,
};
use serde_json::{Value, json};

use crate::context::TurnContext;
use crate::options::{JudgingOptions, NeutralPolicy};
use crate::votes::CombinedVerdict;

/// Skip reason of a turn with a neutral verdict.
pub(crate) const NEUTRAL: &str = "neutral verdict";
/// Skip reason of a turn whose reply was truncated at the token limit.
pub(crate) const TRUNCATED: &str = "truncated reply";

/// Where a reward comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RewardSource {
    /// A score of the user, accepted without the judges.
    User(f32),
    /// The single-turn judges.
    Judges(CombinedVerdict),
    /// The group judges. Their reward of 0 is a rank among the choices, not a neutral verdict.
    GroupJudges(CombinedVerdict),
    /// No reward.
    None,
}

impl RewardSource {
    fn reward(self) -> Option<(f32, bool)> {
        match self {
            RewardSource::User(score) => Some((score, true)),
            RewardSource::Judges(verdict) | RewardSource::GroupJudges(verdict) => {
                Some((verdict.reward?, verdict.accept))
            }
            RewardSource::None => None,
        }
    }
}

/// The reward that a turn trains with, `None` where its hints alone train it, or the reason why it does not train.
/// `no_verdict` is the reason of the missing reward; `hints` are the hints extracted in this judgement.
pub(crate) fn training_reward(
    context: &TurnContext,
    completion: &Completion,
    source: RewardSource,
    no_verdict: &str,
    hints: &[NewHint],
    options: &JudgingOptions,
) -> Result<Option<f32>, String> {
    let reason = match source.reward() {
        None => format!("no verdict: {no_verdict}"),
        Some((reward, accepted)) => {
            let is_rank = matches!(source, RewardSource::GroupJudges(_));
            match skip_reason(context, completion, reward, accepted, is_rank, options) {
                None => return Ok(Some(reward)),
                Some(NEUTRAL) => NEUTRAL.to_owned(),
                Some(reason) => return Err(reason.to_owned()),
            }
        }
    };
    let train_on_hints = options.hinted_samples
        && untrainable_reason(context, completion, options).is_none()
        && has_new_hints(context, hints);
    if train_on_hints {
        Ok(None)
    } else {
        Err(reason)
    }
}

/// Why a turn with a reward becomes no sample, if so.
fn skip_reason(
    context: &TurnContext,
    completion: &Completion,
    reward: f32,
    accepted: bool,
    is_rank: bool,
    options: &JudgingOptions,
) -> Option<&'static str> {
    if let Some(reason) = untrainable_reason(context, completion, options) {
        return Some(reason);
    }
    if !accepted {
        return Some("not accepted by the judge");
    }
    if reward == 0.0 && !is_rank && options.neutral == NeutralPolicy::Skip {
        return Some(NEUTRAL);
    }
    // New evidence with the same reward must not train the same tokens twice.
    let already_trained = context
        .samples
        .iter()
        .any(|s| s.state == SampleState::Trained && s.reward == Some(reward));
    already_trained.then_some("already trained with this reward")
}

/// Why a turn can never become a sample, whatever its reward, if so.
fn untrainable_reason(
    context: &TurnContext,
    completion: &Completion,
    options: &JudgingOptions,
) -> Option<&'static str> {
    if completion.token_ids.is_empty() || is_empty_reply(&completion.reply) {
        return Some("empty reply");
    }
    match completion.finish {
        Finish::Aborted => return Some("aborted reply"),
        // Truncation says nothing about the quality of a reply; the next state or feedback does.
        Finish::Length if !(options.train_truncated && context.has_followup()) => {
            return Some(TRUNCATED);
        }
        Finish::Length | Finish::Stop | Finish::ToolCalls => {}
    }
    (context.turn.kind == TurnKind::Side && !options.train_side).then_some("side turn")
}

/// Whether the turn has a hint to train with; if the turn has already trained, one that did not exist then.
fn has_new_hints(context: &TurnContext, new: &[NewHint]) -> bool {
    let known = || hint_texts(context.hints.iter().map(|hint| &hint.outcome));
    let mut new = hint_texts(new.iter().map(|hint| &hint.outcome));
    let has_trained = |s: &clawhost_journal::SampleRecord| s.state == SampleState::Trained;
    if context.samples.iter().any(has_trained) {
        return new.any(|text| known().all(|earlier| earlier != text));
    }
    new.next().is_some() || known().next().is_some()
}

/// The texts of the outcomes that are hints.
fn hint_texts<'a>(
    outcomes: impl Iterator<Item = &'a HintOutcome>,
) -> impl Iterator<Item = &'a str> {
    outcomes.filter_map(|outcome| match outcome {
        HintOutcome::Hint { text, .. } => Some(text.as_str()),
        HintOutcome::None { .. } => None,
    })
}

/// Whether the reply contains neither text nor a tool call.
fn is_empty_reply(reply: &Value) -> bool {
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

pub(crate) fn build_sample(
    context: &TurnContext,
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
        let earlier = context
            .hints
            .iter()
            .map(|h| (h.source.as_str(), h.digest.as_str(), &h.outcome));
        let new = hints
            .iter()
            .map(|h| (h.source.as_str(), h.digest.as_str(), &h.outcome));
        add_hint_provenance(&mut provenance, earlier.chain(new));
    }
    NewSample {
        turn: context.turn.id,
        reward,
        baseline_key: baseline_key(
            context.turn.key.as_deref(),
            context.user.as_deref(),
            context.after_complaint,
        ),
        provenance,
    }
}

/// Adds the sources of hints to the provenance.
fn add_hint_provenance<'a>(
    provenance: &mut Value,
    hints: impl Iterator<Item = (&'a str, &'a str, &'a HintOutcome)>,
) {
    let mut sources: Vec<(&str, &str)> = hints
        .filter(|(_, _, outcome)| matches!(outcome, HintOutcome::Hint { .. }))
        .map(|(source, digest, _)| (source, digest))
        .collect();
    sources.sort_unstable();
    sources.dedup();
    if sources.is_empty() {
        return;
    }
    if let Some(components) = provenance
        .get_mut("components")
        .and_then(Value::as_array_mut)
    {
        for (_, digest) in &sources {
            if !components.iter().any(|known| known == digest) {
                components.push(json!(digest));
            }
        }
        components.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
    }
    let sources: Vec<Value> = sources
        .into_iter()
        .map(|(source, digest)| json!({"source": source, "digest": digest}))
        .collect();
    if let Some(fields) = provenance.as_object_mut() {
        fields.insert("hints".to_owned(), sources.into());
    }
}

/// The verdicts (source, digest, outcome) behind a sample, and the digests of the components that gave them.
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

/// The key of the running mean that is the baseline of a reward: the API key and the user, as far as known, with
/// replies to a complaint separate. A user who complains and then accepts the second reply gives mostly -1 to first
/// replies and mostly +1 to replies after a complaint; a single mean would reward every second reply regardless of its
/// content.
pub(crate) fn baseline_key(key: Option<&str>, user: Option<&str>, after_complaint: bool) -> String {
    let user = match (key, user) {
        (Some(key), Some(user)) => format!("{key}/{user}"),
        (Some(one), None) | (None, Some(one)) => one.to_owned(),
        (None, None) => "default".to_owned(),
    };
    if after_complaint {
        format!("{user} (after a complaint)")
    } else {
        user
    }
}
