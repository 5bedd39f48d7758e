//! Decides whether a reward, or a hint without a reward, becomes a sample, and if not, why.

use std::collections::BTreeSet;

use clawhost_chat::AssistantMessage;
use clawhost_journal::{
    ALREADY_TRAINED, Completion, Finish, HintOutcome, HintSource, NewHint, NewSample,
    SampleProvenance, SampleState, TurnKind, VerdictRecord, VerdictSource,
};

use crate::context::TurnContext;
use crate::votes::CombinedVerdict;
use clawhost_config::{JudgingOptions, NeutralPolicy};

/// Skip reason of a turn with a neutral verdict.
pub(crate) const NEUTRAL: &str = "neutral verdict";
/// Skip reason of a turn whose reply was truncated at the token limit.
pub(crate) const TRUNCATED: &str = "truncated reply";

/// The reward that a turn trains with, `None` where its hints alone train it, or the reason why it does not train.
/// `is_rank`: it was given by the group judges, whose 0 is a rank among the choices and not a neutral verdict.
/// `no_verdict` is the reason of a missing reward; `hints` are the hints extracted in this judgement.
pub(crate) fn training_reward(
    context: &TurnContext,
    completion: &Completion,
    verdict: CombinedVerdict,
    is_rank: bool,
    no_verdict: &str,
    hints: &[NewHint],
    options: &JudgingOptions,
) -> Result<Option<f32>, String> {
    let reason = match verdict.reward {
        None => format!("no verdict: {no_verdict}"),
        Some(reward) => {
            match skip_reason(
                context,
                completion,
                reward,
                verdict.accept,
                is_rank,
                options,
            ) {
                None => return Ok(Some(reward)),
                Some(NEUTRAL) => NEUTRAL.to_owned(),
                Some(reason) => return Err(reason.to_owned()),
            }
        }
    };
    let train_on_hints = options.hint_only_samples
        && untrainable_reason(context, completion, options).is_none()
        && (has_new_hints(context, hints) || has_untrained_experience(context));
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
    if reward == 0.0 && !is_rank && options.neutral_policy == NeutralPolicy::Skip {
        return Some(NEUTRAL);
    }
    // New evidence with the same reward must not train the same tokens twice.
    let already_trained = context
        .samples
        .iter()
        .any(|s| s.state == SampleState::Trained && s.reward == Some(reward));
    already_trained.then_some(ALREADY_TRAINED)
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
    (context.turn.kind == TurnKind::Side && !options.train_side_turns).then_some("side turn")
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

/// Whether experience alone trains the turn: once, because its reply does not change.
fn has_untrained_experience(context: &TurnContext) -> bool {
    context.has_experience && context.samples.is_empty()
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
fn is_empty_reply(reply: &AssistantMessage) -> bool {
    let is_blank = |text: &str| text.trim().is_empty();
    let content = reply.content.as_ref();
    content.is_none_or(|content| content.is_text() && is_blank(&content.to_text()))
        && reply.tool_calls.is_empty()
        && reply.reasoning_content.as_deref().is_none_or(is_blank)
}

pub(crate) fn build_sample(
    context: &TurnContext,
    reward: Option<f32>,
    verdicts: &[VerdictRecord],
    hints: &[NewHint],
    options: &JudgingOptions,
) -> NewSample {
    let mut provenance = provenance(verdicts);
    if options.hint_only_samples {
        let earlier = context.hints.iter();
        let earlier = earlier.map(|hint| (&hint.source, &hint.digest, &hint.outcome));
        let new = hints.iter();
        let new = new.map(|hint| (&hint.source, &hint.digest, &hint.outcome));
        add_hint_sources(&mut provenance, earlier.chain(new));
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
fn add_hint_sources<'a>(
    provenance: &mut SampleProvenance,
    hints: impl Iterator<Item = (&'a String, &'a String, &'a HintOutcome)>,
) {
    let sources: BTreeSet<HintSource> = hints
        .filter(|(_, _, outcome)| matches!(outcome, HintOutcome::Hint { .. }))
        .map(|(source, digest, _)| HintSource {
            source: source.clone(),
            digest: digest.clone(),
        })
        .collect();
    let digests = sources.iter().map(|hint| hint.digest.clone());
    provenance.components.extend(digests);
    provenance.components.sort_unstable();
    provenance.components.dedup();
    provenance.hints = sources.into_iter().collect();
}

/// The verdicts behind a sample, and the digests of the components that gave them.
pub(crate) fn provenance(verdicts: &[VerdictRecord]) -> SampleProvenance {
    let components: BTreeSet<&String> = verdicts.iter().flat_map(|v| &v.digest).collect();
    SampleProvenance {
        components: components.into_iter().cloned().collect(),
        verdicts: verdicts
            .iter()
            .map(|verdict| VerdictSource {
                source: verdict.source.clone(),
                digest: verdict.digest.clone(),
                outcome: verdict.outcome.clone(),
            })
            .collect(),
        ..SampleProvenance::default()
    }
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
