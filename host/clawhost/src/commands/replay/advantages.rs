//! What the next batch would learn from, if the queued samples had the rewards of the replay.
//!
//! Samples are taken from the queue as training takes them and estimated with training's own estimator and running
//! means, or by the component that takes the estimator's place. A sample that trains by its hint alone has no reward
//! and no advantage here. Samples that are too old for the next step are left out; what training finds out only when the
//! step begins (too long, say) is not looked at here.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use clawhost_journal::{Journal, SampleRecord, TurnId};
use clawhost_training::advantage::{Baselines, Company, Estimator, Relative, Rewarded};
use clawhost_training::{Components, TrainingOptions, next_samples};
use serde::Serialize;

/// Key of training's running means in the journal's table of small values.
const BASELINES: &str = "training.baselines";

/// Why a sample is in no batch of rewards, though it can train.
pub(super) const HINT_ALONE: &str = "trains by its hint alone";

/// What a turn would train with.
pub(super) struct Judged {
    /// After the replay: the reward, or why there is none.
    pub(super) new: Result<f32, String>,
    /// Whether the judges say 0 now.
    pub(super) neutral: bool,
    /// By the judge compared with; none where that is the record.
    pub(super) old: Option<Result<f32, String>>,
    /// Whether that judge says 0.
    pub(super) old_neutral: bool,
}

/// A sample in the queue, before and after.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Change {
    pub(super) sample: i64,
    pub(super) turn: i64,
    pub(super) old: Place,
    pub(super) new: Place,
}

/// Where a sample stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Place {
    /// None where it would not be in the queue.
    pub(super) reward: Option<f32>,
    /// None where it would not be in the next batch.
    pub(super) advantage: Option<f64>,
    /// Why not.
    pub(super) why: Option<String>,
}

/// The advantages of the next batch.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct NextBatch {
    pub(super) estimator: Estimator,
    /// The component that was asked instead of the estimator.
    pub(super) component: Option<String>,
    pub(super) batch: usize,
    pub(super) samples: Vec<Change>,
}

/// Puts the rewards of the replay in place of the recorded ones and estimates both.
pub(super) fn next_batch(
    journal: &Journal,
    options: &TrainingOptions,
    components: &Components,
    judged: &BTreeMap<TurnId, Judged>,
) -> Result<NextBatch> {
    let queue = next_samples(journal, options, components.estimator().is_some())?;
    let mut baselines = Baselines::new(options.baseline_rate, options.baseline_start);
    if let Some(text) = journal.meta(BASELINES)? {
        baselines = baselines.with_json(&text)?;
    }
    let old: Vec<_> = queue.iter().map(|s| before(s, judged)).collect();
    let new: Vec<_> = queue.iter().map(|s| after(s, judged)).collect();
    let by = By {
        options,
        baselines: &baselines,
        components,
    };
    let (old, new) = (by.places(&queue, old)?, by.places(&queue, new)?);
    let samples = queue
        .iter()
        .zip(old.into_iter().zip(new))
        .map(|(sample, (old, new))| Change {
            sample: sample.id.0,
            turn: sample.turn.0,
            old,
            new,
        })
        .collect();
    Ok(NextBatch {
        estimator: options.estimator,
        component: components.estimator(),
        batch: options.batch,
        samples,
    })
}

fn after(sample: &SampleRecord, judged: &BTreeMap<TurnId, Judged>) -> Result<f32, String> {
    match judged.get(&sample.turn) {
        Some(told) => kept(sample, &told.new, told.neutral),
        None => recorded(sample),
    }
}

fn before(sample: &SampleRecord, judged: &BTreeMap<TurnId, Judged>) -> Result<f32, String> {
    match judged
        .get(&sample.turn)
        .and_then(|j| Some((j, j.old.as_ref()?)))
    {
        Some((told, old)) => kept(sample, old, told.old_neutral),
        None => recorded(sample),
    }
}

/// What the sample was recorded with.
fn recorded(sample: &SampleRecord) -> Result<f32, String> {
    sample.reward.ok_or_else(|| HINT_ALONE.to_owned())
}

/// A turn that speaks for its neutral session stays in the queue for as long as it is neutral.
fn kept(sample: &SampleRecord, told: &Result<f32, String>, neutral: bool) -> Result<f32, String> {
    match told {
        Err(_) if neutral && sample.provenance.get("chosen").is_some() => Ok(0.0),
        told => told.clone(),
    }
}

/// What advantages are estimated by.
struct By<'a> {
    options: &'a TrainingOptions,
    baselines: &'a Baselines,
    components: &'a Components,
}

impl By<'_> {
    /// Where each sample of the queue stands with these rewards.
    fn places(
        &self,
        queue: &[SampleRecord],
        rewards: Vec<Result<f32, String>>,
    ) -> Result<Vec<Place>> {
        let mut places: Vec<Place> = rewards
            .into_iter()
            .map(|reward| Place {
                reward: reward.as_ref().ok().copied(),
                advantage: None,
                why: Some(
                    reward
                        .err()
                        .unwrap_or_else(|| "the batch is full".to_owned()),
                ),
            })
            .collect();
        let mut chosen = 0;
        for portion in self.portions(queue, &places) {
            if chosen >= self.options.batch {
                break;
            }
            let rewarded: Vec<(&SampleRecord, f32)> = portion
                .iter()
                .filter_map(|at| Some((queue.get(*at)?, places.get(*at)?.reward?)))
                .collect();
            let estimates = self.estimates(&rewarded)?;
            for (at, estimate) in portion.into_iter().zip(estimates) {
                let Some(place) = places.get_mut(at) else {
                    continue;
                };
                (place.advantage, place.why) = match estimate {
                    Relative::Value(advantage) => {
                        chosen += 1;
                        (Some(advantage), None)
                    }
                    Relative::Alone => (None, Some("the only one of its group".to_owned())),
                    Relative::Level => (None, Some("its reward is what was expected".to_owned())),
                };
            }
        }
        Ok(places)
    }

    fn estimates(&self, rewarded: &[(&SampleRecord, f32)]) -> Result<Vec<Relative>> {
        let seen: Vec<(&str, usize, f32)> = rewarded
            .iter()
            .map(|(sample, reward)| (sample.group.as_str(), sample.token_ids.len(), *reward))
            .collect();
        if !seen.is_empty()
            && let Some(estimates) = self
                .components
                .estimate(&seen)
                .context("the advantage component gave no result")?
        {
            return Ok(estimates);
        }
        let rewarded: Vec<Rewarded<'_>> = rewarded
            .iter()
            .map(|(sample, reward)| self.options.rewarded(sample, *reward))
            .collect();
        let estimation = self.options.estimation();
        Ok(estimation.estimate(&rewarded, self.baselines))
    }

    /// Samples that are looked at together, as training does: one by one, group by group, or all that fit a batch. A
    /// component sees whole groups until they fill a batch, all at once.
    fn portions(&self, queue: &[SampleRecord], places: &[Place]) -> Vec<Vec<usize>> {
        let queued = queue
            .iter()
            .zip(places)
            .enumerate()
            .filter(|(_, (_, place))| place.reward.is_some())
            .map(|(at, (sample, _))| (at, sample.group.as_str()));
        let is_component = self.components.estimator().is_some();
        if is_component || self.options.estimator.needs_groups() {
            let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
            for (at, group) in queued {
                match groups.iter_mut().find(|(name, _)| *name == group) {
                    Some((_, members)) => members.push(at),
                    None => groups.push((group, vec![at])),
                }
            }
            let groups = groups.into_iter().map(|(_, members)| members);
            if !is_component {
                return groups.collect();
            }
            let mut all: Vec<usize> = Vec::new();
            for group in groups {
                if all.len() < self.options.batch {
                    all.extend(group);
                }
            }
            return vec![all];
        }
        match self.options.estimator.company() {
            Company::Batch => vec![queued.map(|(at, _)| at).take(self.options.batch).collect()],
            _ => queued.map(|(at, _)| vec![at]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clawhost_journal::{SampleId, SampleState, SessionId};
    use serde_json::json;

    use super::*;

    fn sample(id: i64, group: &str) -> SampleRecord {
        SampleRecord {
            id: SampleId(id),
            turn: TurnId(id),
            session: SessionId("s".to_owned()),
            group: group.to_owned(),
            reward: Some(1.0),
            hints: Vec::new(),
            baseline_key: "ann".to_owned(),
            provenance: json!({}),
            state: SampleState::Queued,
            reason: None,
            step: None,
            advantage: None,
            created_ms: 0,
            prompt_ids: vec![1],
            token_ids: vec![2],
            logprobs: vec![-0.1],
            full_logprobs: vec![-0.1],
            forced: Vec::new(),
            temperature: 1.0,
            adapter_version: 0,
        }
    }

    fn places(
        queue: &[SampleRecord],
        rewards: Vec<Result<f32, String>>,
        options: &TrainingOptions,
        baselines: &Baselines,
    ) -> Vec<Place> {
        let components = Components::default();
        let by = By {
            options,
            baselines,
            components: &components,
        };
        by.places(queue, rewards).unwrap()
    }

    fn options(estimator: Estimator, batch: usize) -> TrainingOptions {
        TrainingOptions {
            estimator,
            batch,
            ..TrainingOptions::default()
        }
    }

    #[test]
    fn a_batch_is_filled_past_what_leaves_and_what_is_level() {
        let queue: Vec<SampleRecord> = (1..=5).map(|id| sample(id, "g")).collect();
        let rewards = vec![
            Ok(0.5),
            Err("no verdict: cpu".to_owned()),
            Ok(-1.0),
            Ok(1.0),
            Ok(1.0),
        ];
        let baselines = Baselines::new(0.5, 0.5);
        let places = places(
            &queue,
            rewards,
            &options(Estimator::Baseline, 2),
            &baselines,
        );
        let advantages: Vec<Option<f64>> = places.iter().map(|p| p.advantage).collect();
        assert_eq!(advantages, [None, None, Some(-1.5), Some(0.5), None]);
        let why: Vec<Option<&str>> = places.iter().map(|p| p.why.as_deref()).collect();
        assert_eq!(why[1], Some("no verdict: cpu"));
        assert_eq!(why[0], Some("its reward is what was expected"));
        assert_eq!(why[4], Some("the batch is full"));
    }

    #[test]
    fn a_sample_without_a_reward_is_in_no_batch_of_rewards() {
        let hinted = SampleRecord {
            reward: None,
            ..sample(1, "g")
        };
        let queue = [hinted, sample(2, "g")];
        let rewards = queue.iter().map(|s| after(s, &BTreeMap::new())).collect();
        let baselines = Baselines::new(0.5, 0.0);
        let places = places(&queue, rewards, &options(Estimator::Raw, 9), &baselines);
        assert_eq!((places[0].reward, places[0].advantage), (None, None));
        assert_eq!(places[0].why.as_deref(), Some(HINT_ALONE));
        assert_eq!(places[1].advantage, Some(1.0));
    }

    #[test]
    fn groups_are_estimated_together() {
        let queue = [sample(1, "a"), sample(2, "b"), sample(3, "a")];
        let rewards = || vec![Ok(1.0), Ok(1.0), Ok(-1.0)];
        let baselines = Baselines::new(0.5, 0.0);
        let of = |estimator| -> Vec<Option<f64>> {
            let places = places(&queue, rewards(), &options(estimator, 9), &baselines);
            places.iter().map(|p| p.advantage).collect()
        };
        assert_eq!(of(Estimator::GroupMean), [Some(1.0), None, Some(-1.0)]);
        assert_eq!(of(Estimator::Raw), [Some(1.0), Some(1.0), Some(-1.0)]);
        let level: Vec<bool> = of(Estimator::Batch).iter().map(Option::is_some).collect();
        assert_eq!(level, [true; 3]);
    }

    #[test]
    fn a_neutral_turn_that_speaks_for_its_session_stays() {
        let mut chosen = sample(1, "g");
        chosen.provenance = json!({"chosen": {"rule": "at least one"}});
        let none = Err("neutral verdict".to_owned());
        assert_eq!(kept(&chosen, &none, true), Ok(0.0));
        assert_eq!(kept(&chosen, &none, false), none);
        assert_eq!(kept(&sample(1, "g"), &none, true), none);
    }
}
