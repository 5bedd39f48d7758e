//! Which queued samples a step takes, and with which advantage.
//!
//! Nothing is dropped silently: a sample that is too old, damaged or without a signal leaves the
//! queue with its reason and does not take a place in the batch. It refuses to touch the model.

use clawhost_journal::{STALE, SampleId, SampleRecord};
use clawhost_plugins::Fault as ComponentFault;

use crate::advantage::{Baselines, Company, Estimate, Estimation, Overlong, Relative, Rewarded};
use crate::component::{AdvantageComponent, Asked};
use crate::forced::{self, FORCED};
use crate::hints::Hinted;
use crate::lineage::Lineage;
use crate::options::Learning;
use crate::rewarding::{rewarded, unfit, whitened};

/// What a sample must be like to train, and how many a step takes.
pub(crate) struct Rules<'a> {
    /// What is learned from.
    pub(crate) method: Learning,
    /// The prompts with the hints of a sample, or why there are none although it has hints.
    pub(crate) hinted: &'a dyn Fn(&SampleRecord) -> Result<Vec<Hinted>, String>,
    pub(crate) estimation: Estimation,
    /// What overlong replies pay.
    pub(crate) overlong: Option<Overlong>,
    /// Whether the advantages of the whole batch are whitened once it is chosen.
    pub(crate) whitens: bool,
    /// Asked instead of the estimator.
    pub(crate) component: Option<Asked<'a, AdvantageComponent>>,
    pub(crate) batch: usize,
    pub(crate) max_staleness: u64,
    pub(crate) max_tokens: usize,
    pub(crate) vocabulary: usize,
    pub(crate) active: u64,
    pub(crate) lineage: &'a Lineage,
    /// Groups whose newest sample is younger than this wait, when the estimator compares groups.
    pub(crate) settled_ms: i64,
}

/// A sample that trains.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chosen {
    pub(crate) sample: SampleRecord,
    /// What its reward is worth, of the whole reply: the mean over its tokens where they differ. None where only
    /// its hints teach.
    pub(crate) advantage: Option<f64>,
    /// One for each token, where an estimator tells them apart.
    pub(crate) token_advantages: Option<Vec<f32>>,
    /// Its prompt with each of its hints, the longest first; empty where hints do not teach.
    pub(crate) hinted: Vec<Hinted>,
    /// Versions between the adapter that sampled it and the active one.
    pub(crate) staleness: u64,
}

impl Chosen {
    /// What the reward is worth for each token.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "losses are computed in f32, as the parameters are"
    )]
    pub(crate) fn per_token(&self) -> Option<Vec<f32>> {
        let advantage = self.advantage?;
        Some(match &self.token_advantages {
            Some(tokens) => tokens.clone(),
            None => vec![advantage as f32; self.sample.token_ids.len()],
        })
    }
}

impl Rules<'_> {
    fn needs_groups(&self) -> bool {
        self.method.uses_rewards()
            && (self.component.is_some() || self.estimation.estimator.needs_groups())
    }

    /// What the rewards of some samples are worth: one entry for each that has a reward.
    fn estimate(
        &self,
        samples: &[SampleRecord],
        baselines: &Baselines,
    ) -> Result<Vec<Estimate>, ComponentFault> {
        if !self.method.uses_rewards() {
            return Ok(Vec::new());
        }
        if let Some(asked) = &self.component {
            let seen: Vec<(&str, usize, f32)> = samples
                .iter()
                .filter_map(|s| {
                    #[allow(
                        clippy::cast_possible_truncation,
                        reason = "a component reads rewards in f32, as judges give them"
                    )]
                    let reward = self.reward(s)?.reward as f32;
                    Some((s.group.as_str(), s.token_ids.len(), reward))
                })
                .collect();
            if seen.is_empty() {
                return Ok(Vec::new());
            }
            // As one value a token, so that nothing further is done to what a component says.
            let lengths: Vec<usize> = seen.iter().map(|(_, length, _)| *length).collect();
            let estimates = asked
                .component
                .estimate(&seen, asked.step, asked.receipts)?;
            return Ok(estimates
                .into_iter()
                .zip(lengths)
                .map(|(one, length)| one.spread(length))
                .collect());
        }
        let rewarded: Vec<Rewarded<'_>> = samples.iter().filter_map(|s| self.reward(s)).collect();
        Ok(self.estimation.estimate_tokens(&rewarded, baselines))
    }

    /// A sample with the reward that counts; none when it has none.
    fn reward<'s>(&self, sample: &'s SampleRecord) -> Option<Rewarded<'s>> {
        Some(rewarded(sample, sample.reward?, self.overlong.as_ref()))
    }
}

/// What a step starts from.
#[derive(Debug, PartialEq)]
pub(crate) struct Batch {
    pub(crate) chosen: Vec<Chosen>,
    pub(crate) dropped: Vec<(SampleId, String)>,
    /// The running means after this batch.
    pub(crate) baselines: Baselines,
    /// Samples that were dropped because they were too old.
    pub(crate) stale: usize,
    /// Samples without a signal.
    pub(crate) without_signal: usize,
    /// Groups of two or more whose rewards are all the same: they leave the queue without taking a place.
    pub(crate) constant_groups: usize,
    /// Sum over the chosen of what is added to their rewards for being overlong.
    pub(crate) shaping: f64,
}

/// Why a sample without a signal leaves the queue.
pub(crate) const ALONE: &str = "no signal: the only sample of its group";
pub(crate) const LEVEL: &str = "no signal: its reward is what was expected (advantage 0)";
pub(crate) const NO_REWARD: &str = "no signal: it has no reward";
pub(crate) const NO_HINT: &str = "no signal: it has no hint";

/// What a sample's reward says.
enum Worth {
    Advantage(f64, Option<Vec<f32>>),
    /// It has a reward that teaches nothing, for this reason.
    Nothing(&'static str),
    /// It has no reward, or rewards do not take part.
    None,
}

impl Worth {
    fn of(estimate: Estimate) -> Self {
        match estimate.relative {
            Relative::Value(advantage) => Self::Advantage(advantage, estimate.tokens),
            Relative::Alone => Self::Nothing(ALONE),
            Relative::Level => Self::Nothing(LEVEL),
        }
    }
}

impl Batch {
    /// A batch of nothing, which leaves the running means as they are.
    fn empty(baselines: &Baselines) -> Self {
        Self {
            chosen: Vec::new(),
            dropped: Vec::new(),
            baselines: baselines.clone(),
            stale: 0,
            without_signal: 0,
            constant_groups: 0,
            shaping: 0.0,
        }
    }

    /// A batch that only drops what is stale; none where nothing is.
    pub(crate) fn of_stale(stale: Vec<(SampleId, String)>, baselines: &Baselines) -> Option<Self> {
        let nothing = Self::empty(baselines);
        (!stale.is_empty()).then(|| nothing.with_stale(stale))
    }

    /// The same, with what is stale dropped as well.
    pub(crate) fn with_stale(mut self, stale: Vec<(SampleId, String)>) -> Self {
        self.stale += stale.len();
        self.dropped.extend(stale);
        self
    }

    /// Chooses a sample that has something to teach, or drops it with the reason.
    fn take(&mut self, sample: SampleRecord, worth: Worth, rules: &Rules<'_>) {
        if forced::is_whole(&sample) {
            self.without_signal += 1;
            self.dropped.push((sample.id, FORCED.to_owned()));
            return;
        }
        let hinted = if rules.method.uses_hints() {
            (rules.hinted)(&sample)
        } else {
            Ok(Vec::new())
        };
        let (advantage, token_advantages, silent) = match worth {
            Worth::Advantage(advantage, tokens) => (Some(advantage), tokens, ""),
            Worth::Nothing(reason) => (None, None, reason),
            Worth::None if rules.method.uses_rewards() => (None, None, NO_REWARD),
            Worth::None => (None, None, NO_HINT),
        };
        let hinted = match hinted {
            Ok(hinted) => hinted,
            Err(reason) if advantage.is_none() => {
                self.dropped
                    .push((sample.id, format!("unusable: {reason}")));
                return;
            }
            Err(reason) => {
                tracing::warn!(sample = %sample.id, reason, "a sample trains without its hint");
                Vec::new()
            }
        };
        if advantage.is_none() && hinted.is_empty() {
            self.without_signal += 1;
            self.dropped.push((sample.id, silent.to_owned()));
            return;
        }
        let staleness = staleness(&sample, rules).unwrap_or(0);
        if let (Some(overlong), Some(_)) = (&rules.overlong, advantage) {
            self.shaping += overlong.shaping::<f64>(sample.token_ids.len());
        }
        self.chosen.push(Chosen {
            sample,
            advantage,
            token_advantages,
            hinted,
            staleness,
        });
    }
}

/// Takes samples from the queue in their order. None when every sample belongs to a group that may
/// still grow.
///
/// # Errors
/// The component that estimates advantages gave no result.
pub(crate) fn draw(
    queue: Vec<SampleRecord>,
    rules: &Rules<'_>,
    baselines: &Baselines,
) -> Result<Option<Batch>, ComponentFault> {
    let mut batch = Batch::empty(baselines);
    let queue = if rules.needs_groups() {
        settled(queue, rules.settled_ms)
    } else {
        queue
    };
    if queue.is_empty() {
        return Ok(None);
    }
    let mut seen: Vec<(String, f64)> = Vec::new();
    for candidates in portions(queue, rules) {
        if batch.chosen.len() >= rules.batch {
            break;
        }
        let mut usable = Vec::new();
        for sample in candidates {
            match fault(&sample, rules) {
                Some(Fault::Stale(reason)) => {
                    batch.stale += 1;
                    batch.dropped.push((sample.id, reason));
                }
                Some(Fault::Unusable(reason)) => batch.dropped.push((sample.id, reason)),
                None => usable.push(sample),
            }
        }
        let estimates = rules.estimate(&usable, baselines)?;
        if rules.needs_groups() && rules.component.is_none() {
            let level = |one: &Estimate| one.relative == Relative::Level;
            batch.constant_groups +=
                usize::from(estimates.len() > 1 && estimates.iter().all(level));
        }
        let mut estimates = estimates.into_iter();
        for sample in usable {
            let rewarded = match rules.reward(&sample) {
                Some(rewarded) if rules.method.uses_rewards() => {
                    seen.push((sample.baseline_key.clone(), rewarded.reward));
                    estimates.next().map_or(Worth::None, Worth::of)
                }
                _ => Worth::None,
            };
            batch.take(sample, rewarded, rules);
        }
    }
    if rules.whitens && rules.component.is_none() {
        whitened(&mut batch.chosen);
    }
    batch.baselines = baselines.after(seen.iter().map(|(key, reward)| (key.as_str(), *reward)));
    Ok(Some(batch))
}

/// Samples that are looked at together: one by one, group by group, or all that fit a batch.
fn portions(queue: Vec<SampleRecord>, rules: &Rules<'_>) -> Vec<Vec<SampleRecord>> {
    if rules.component.is_some() {
        // A component sees a batch at once, and no group of it in part.
        let mut all: Vec<SampleRecord> = Vec::new();
        for group in by_group(queue) {
            if all.len() < rules.batch {
                all.extend(group);
            }
        }
        return vec![all];
    }
    match rules.estimation.estimator.company() {
        Company::Alone => queue.into_iter().map(|s| vec![s]).collect(),
        Company::Batch => {
            let mut all: Vec<SampleRecord> = queue;
            all.truncate(rules.batch);
            vec![all]
        }
        Company::Group => by_group(queue),
    }
}

/// Groups in the order of their first samples.
fn by_group(queue: Vec<SampleRecord>) -> Vec<Vec<SampleRecord>> {
    let mut groups: Vec<Vec<SampleRecord>> = Vec::new();
    for sample in queue {
        match groups
            .iter_mut()
            .find(|group| group.first().is_some_and(|s| s.group == sample.group))
        {
            Some(group) => group.push(sample),
            None => groups.push(vec![sample]),
        }
    }
    groups
}

/// The samples of groups that have stopped growing.
fn settled(queue: Vec<SampleRecord>, settled_ms: i64) -> Vec<SampleRecord> {
    let young: std::collections::BTreeSet<String> = queue
        .iter()
        .filter(|sample| sample.created_ms > settled_ms)
        .map(|sample| sample.group.clone())
        .collect();
    queue
        .into_iter()
        .filter(|sample| !young.contains(&sample.group))
        .collect()
}

enum Fault {
    Stale(String),
    Unusable(String),
}

fn staleness(sample: &SampleRecord, rules: &Rules<'_>) -> Option<u64> {
    rules.lineage.distance(rules.active, sample.adapter_version)
}

/// Why a sample cannot train.
fn fault(sample: &SampleRecord, rules: &Rules<'_>) -> Option<Fault> {
    let unusable = |reason: String| Some(Fault::Unusable(format!("unusable: {reason}")));
    let tokens = sample.token_ids.len();
    if tokens == 0 || sample.prompt_ids.is_empty() {
        return unusable("it has no prompt or no reply tokens".to_owned());
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
        && let Some(reason) = unfit(rules.estimation.estimator, sample)
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
    let foreign = sample
        .prompt_ids
        .iter()
        .chain(&sample.token_ids)
        .find(|&&id| usize::try_from(id).is_ok_and(|id| id >= rules.vocabulary));
    if let Some(id) = foreign {
        return unusable(format!(
            "token {id} is outside of the model's vocabulary of {}",
            rules.vocabulary
        ));
    }
    let distance = staleness(sample, rules);
    stale_reason(distance, sample.adapter_version, rules.max_staleness).map(Fault::Stale)
}

/// Why a sample of an adapter `distance` versions away is too old, if it is. The distance is none where the journal does
/// not know the version.
pub(crate) fn stale_reason(
    distance: Option<u64>,
    version: u64,
    max_staleness: u64,
) -> Option<String> {
    match distance {
        None => Some(format!(
            "{STALE} sampled by adapter version {version}, which the journal does not know"
        )),
        Some(distance) if distance > max_staleness => Some(format!(
            "{STALE} sampled more than {max_staleness} versions away from the active adapter (training.max_staleness)"
        )),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advantage::Estimator;
    use crate::tests::sample;

    fn rules(lineage: &Lineage, estimator: Estimator) -> Rules<'_> {
        Rules {
            method: Learning::Binary,
            hinted: &|_| Ok(Vec::new()),
            estimation: estimator.into(),
            overlong: None,
            whitens: false,
            component: None,
            batch: 2,
            max_staleness: 4,
            max_tokens: 64,
            vocabulary: 100,
            active: 0,
            lineage,
            settled_ms: 1_000,
        }
    }

    fn ids(batch: &Batch) -> (Vec<i64>, Vec<i64>) {
        (
            batch.chosen.iter().map(|c| c.sample.id.0).collect(),
            batch.dropped.iter().map(|(id, _)| id.0).collect(),
        )
    }

    #[test]
    fn a_batch_is_filled_past_samples_without_signal() {
        let lineage = Lineage::default();
        let queue = vec![
            sample(1, 0.0),
            sample(2, 1.0),
            sample(3, 0.0),
            sample(4, -1.0),
            sample(5, 1.0),
        ];
        let batch = draw(
            queue,
            &rules(&lineage, Estimator::Raw),
            &Baselines::new(0.5, 0.0),
        )
        .unwrap()
        .unwrap();
        assert_eq!(ids(&batch), (vec![2, 4], vec![1, 3]));
        assert_eq!(batch.without_signal, 2);
    }

    #[test]
    fn the_baseline_moves_with_every_sample_that_was_looked_at() {
        let lineage = Lineage::default();
        let queue = vec![
            sample(1, 0.0),
            sample(2, 1.0),
            sample(3, 1.0),
            sample(4, -1.0),
        ];
        let before = Baselines::new(0.5, 0.0).after([("default", 0.0)]);
        let batch = draw(queue, &rules(&lineage, Estimator::Baseline), &before)
            .unwrap()
            .unwrap();
        assert_eq!(ids(&batch), (vec![2, 3], vec![1]));
        let mean = batch.baselines.of("default");
        assert!((mean - 1.0 / 3.0).abs() < 1e-12, "{mean}");
    }

    #[test]
    fn unusable_samples_say_why() {
        let lineage = Lineage::default();
        let mut bad = vec![
            sample(1, 1.0),
            sample(2, 1.0),
            sample(3, f32::NAN),
            sample(4, 1.0),
            sample(5, 1.0),
            sample(6, 1.0),
        ];
        bad[0].token_ids.clear();
        bad[1].full_logprobs.pop();
        bad[3].token_ids[0] = 100;
        bad[4].prompt_ids = vec![1; 64];
        bad[5].adapter_version = 7;
        let batch = draw(
            bad,
            &rules(&lineage, Estimator::Raw),
            &Baselines::new(0.5, 0.0),
        )
        .unwrap()
        .unwrap();
        assert!(batch.chosen.is_empty());
        let said: Vec<&str> = batch.dropped.iter().map(|(_, r)| r.as_str()).collect();
        for (i, part) in [
            "no prompt or no reply",
            "1 log-probs for 2 tokens",
            "reward is not finite",
            "outside of the model's vocabulary of 100",
            "max_sample_tokens allows 64",
            "the journal does not know",
        ]
        .iter()
        .enumerate()
        {
            assert!(said[i].contains(part), "{said:?}");
        }
        assert_eq!(batch.stale, 1);
    }

    #[test]
    fn groups_are_taken_whole_and_only_once_they_have_settled() {
        let lineage = Lineage::default();
        let grouped = |id, reward, group: &str, created_ms| {
            let mut s = sample(id, reward);
            s.group = group.to_owned();
            s.created_ms = created_ms;
            s
        };
        let queue = vec![
            grouped(1, 1.0, "young", 0),
            grouped(2, 1.0, "a", 0),
            grouped(3, 0.5, "level", 0),
            grouped(4, -1.0, "a", 5),
            grouped(5, 0.5, "level", 5),
            grouped(6, 0.0, "a", 6),
            grouped(7, -1.0, "young", 2_000),
            grouped(8, 1.0, "alone", 7),
        ];
        let rules = rules(&lineage, Estimator::Group);
        let batch = draw(queue.clone(), &rules, &Baselines::new(0.5, 0.0))
            .unwrap()
            .unwrap();
        assert_eq!(ids(&batch), (vec![2, 4], vec![6]));
        let young = vec![queue[0].clone(), queue[6].clone()];
        let waiting = draw(young, &rules, &Baselines::new(0.5, 0.0)).unwrap();
        assert!(waiting.is_none());
    }
}
