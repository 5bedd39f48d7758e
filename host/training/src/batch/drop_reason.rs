//! Why a sample cannot train, whatever its advantage.

use clawhost_journal::{STALE_PREFIX, SampleRecord};

use super::BatchRules;
use crate::reward_shaping::missing_input;

/// Why a sample cannot train, as the text recorded in the journal.
pub(super) enum DropReason {
    Stale(String),
    Unusable(String),
}

pub(super) fn staleness(sample: &SampleRecord, rules: &BatchRules<'_>) -> Option<u64> {
    rules.lineage.distance(rules.active, sample.adapter_version)
}

/// Checks whether a sample can train, before its advantage is estimated.
pub(super) fn drop_reason(sample: &SampleRecord, rules: &BatchRules<'_>) -> Option<DropReason> {
    let unusable = |reason: String| Some(DropReason::Unusable(format!("unusable: {reason}")));
    let tokens = sample.token_ids.len();
    if tokens == 0 || sample.prompt_ids.is_empty() {
        return unusable("it has no prompt tokens or no reply tokens".to_owned());
    }
    if sample.full_logprobs.len() != tokens {
        return unusable(format!(
            "{} log-probs for {tokens} tokens",
            sample.full_logprobs.len()
        ));
    }
    if !sample.full_logprobs.iter().all(|lp| lp.is_finite()) {
        return unusable("a recorded log-prob is not finite".to_owned());
    }
    if sample.reward.is_some_and(|reward| !reward.is_finite()) {
        return unusable("its reward is not finite".to_owned());
    }
    if !(sample.temperature.is_finite() && sample.temperature >= 0.0) {
        return unusable(format!("temperature {}", sample.temperature));
    }
    if rules.method.uses_rewards()
        && rules.component.is_none()
        && let Some(reason) = missing_input(rules.estimator_of(sample).estimator, sample)
    {
        return unusable(reason.to_owned());
    }
    let total = sample.prompt_ids.len() + tokens;
    if total > rules.max_tokens {
        return unusable(format!(
            "{total} tokens; training.max_sample_tokens allows {}",
            rules.max_tokens
        ));
    }
    let out_of_vocabulary = sample
        .prompt_ids
        .iter()
        .chain(&sample.token_ids)
        .find(|&&id| usize::try_from(id).is_ok_and(|id| id >= rules.vocabulary));
    if let Some(id) = out_of_vocabulary {
        return unusable(format!(
            "token {id} is outside of the model's vocabulary of {}",
            rules.vocabulary
        ));
    }
    let distance = staleness(sample, rules);
    stale_reason(distance, sample.adapter_version, rules.max_staleness).map(DropReason::Stale)
}

/// The drop reason of a sample whose adapter is more than `max_staleness` versions away; none if it is fresh. A distance
/// of none means that the journal does not know the version.
pub(crate) fn stale_reason(
    distance: Option<u64>,
    version: u64,
    max_staleness: u64,
) -> Option<String> {
    match distance {
        None => Some(format!(
            "{STALE_PREFIX} sampled by adapter version {version}, which the journal does not know"
        )),
        Some(distance) if distance > max_staleness => Some(format!(
            "{STALE_PREFIX} sampled more than {max_staleness} versions away from the active adapter (training.max_staleness)"
        )),
        Some(_) => None,
    }
}
