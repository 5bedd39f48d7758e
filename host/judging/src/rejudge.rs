//! Judges recorded turns again without writing: what would other judges, or other options, have returned?
//!
//! The judges see a turn exactly as they saw it in the recorded judgement: with the next state and the feedback that
//! existed then, through the same code. With the same component, the same options and the deterministic profile the
//! verdict is identical bit for bit. The fault policies `quarantine` and `stop` are disabled: a fault is part of the
//! result.

use std::sync::Arc;

use clawhost_journal::{
    Journal, JournalError, JudgementRecord, NewSample, TurnId, TurnRecord, VerdictOutcome,
    VerdictRecord,
};
use clawhost_plugins::{Plugin, PluginThreads};

use crate::context::{TurnContext, group_outcomes};
use crate::deferred::deferral_wait;
use crate::evidence::Evidence;
use crate::evidence::USER;
use crate::judgement::Judgement;
use crate::panel::{JudgeError, JudgePanel};
use crate::slots::{JudgeSet, JudgeSlots};
use crate::status::JudgingStatus;
use crate::votes::{CombineVerdicts, CombinedVerdict};
use clawhost_config::CombineRule;
use clawhost_config::{ExperienceOptions, FaultPolicy, JudgingOptions, PluginsConfig};

/// Judges recorded turns again.
pub struct Rejudger {
    panel: Arc<JudgePanel>,
}

/// A recorded turn, judged again.
#[derive(Debug, Clone)]
pub struct RejudgeResult {
    /// The turn as the judges saw it.
    pub turn: TurnRecord,
    /// The recorded verdicts combined by the rule of these options; none when no judge was called.
    pub recorded: Option<CombinedVerdict>,
    /// The recorded verdict of each judge.
    pub recorded_verdicts: Vec<VerdictRecord>,
    /// The new verdicts combined; none when there is nothing to judge (a score alone).
    pub combined: Option<CombinedVerdict>,
    /// The new verdict of each judge.
    pub verdicts: Vec<VerdictRecord>,
    /// The reward that the turn would train with after all its judgements (none where its recorded hints alone would
    /// train it), or why it would not.
    pub sample: Result<Option<f32>, String>,
}

/// The recorded turns cannot be judged again.
#[derive(Debug, thiserror::Error)]
pub enum RejudgeError {
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A judge stopped judging; the options used here do not allow that.
    #[error("{0}")]
    Stopped(String),
}

impl From<JudgeError> for RejudgeError {
    fn from(error: JudgeError) -> Self {
        Self::Stopped(match error {
            JudgeError::Stopped(stopped) => stopped.to_string(),
            JudgeError::Deferred(deferral) => deferral.reason,
        })
    }
}

impl Rejudger {
    /// Uses the judges and the group judges among `plugins`, as [`crate::JudgeWorker`] would. Hint extractors are not
    /// called, because they do not change the reward. `threads` are those of the host of the plugins.
    pub fn new(
        threads: PluginThreads,
        plugins: Vec<Plugin>,
        options: JudgingOptions,
        config: PluginsConfig,
    ) -> Self {
        Self::with_config(threads, JudgeSet::from_plugins(plugins), options, config)
    }

    #[cfg(test)]
    pub(crate) fn with(judges: JudgeSet, options: JudgingOptions) -> Self {
        let threads = crate::tests::plugin_threads();
        Self::with_config(threads, judges, options, PluginsConfig::default())
    }

    fn with_config(
        threads: PluginThreads,
        mut judges: JudgeSet,
        mut options: JudgingOptions,
        plugins: PluginsConfig,
    ) -> Self {
        options.validate().expect("the options were validated");
        options.fault_policy = FaultPolicy::Skip;
        judges.hints.clear();
        let status = JudgingStatus::new();
        Self {
            panel: Arc::new(JudgePanel {
                slots: JudgeSlots::new(judges, status.clone()),
                threads,
                options,
                experience: ExperienceOptions::default(),
                plugins,
                status,
            }),
        }
    }

    /// Judges one turn and retries while the host is too busy, so that the verdict does not depend on the load.
    async fn judge_turn(&self, context: &Arc<TurnContext>) -> Result<Judgement, JudgeError> {
        let options = &self.panel.options;
        for times in 1..=options.max_deferrals {
            match self.panel.judge_turn(context, true).await {
                Err(JudgeError::Deferred(_)) => {
                    tokio::time::sleep(deferral_wait(options, times)).await
                }
                judged => return judged,
            }
        }
        self.panel.judge_turn(context, false).await
    }

    /// As [`Rejudger::judge_turn`], for the choices of a request.
    async fn judge_group(
        &self,
        contexts: &Arc<[TurnContext]>,
    ) -> Result<Vec<Judgement>, JudgeError> {
        let options = &self.panel.options;
        for times in 1..=options.max_deferrals {
            match self.panel.judge_group(contexts, true).await {
                Err(JudgeError::Deferred(_)) => {
                    tokio::time::sleep(deferral_wait(options, times)).await
                }
                judged => return judged,
            }
        }
        self.panel.judge_group(contexts, false).await
    }

    /// Whether requests with several complete choices are judged together: a group judge is among the plugins.
    pub fn has_group_judges(&self) -> bool {
        self.panel.slots.has_group_judges()
    }

    /// Judges a single turn again. Of several recorded judgements, the last one in which judges were called defines
    /// what they see, and the last of all defines what the turn would train with. Returns `None` when the turn was
    /// deleted, was never judged, or was judged together with the other choices of its request and received no feedback
    /// text since.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub async fn rejudge_turn(
        &self,
        journal: &Journal,
        turn: TurnId,
    ) -> Result<Option<RejudgeResult>, RejudgeError> {
        let judgements = journal.judgements(turn)?;
        let Some(turn) = journal.turn(turn)? else {
            return Ok(None);
        };
        let history =
            JudgementHistory::new(&turn, &judgements, group_outcomes(&judgements).is_some());
        if history.judged.is_none() && history.user_only.is_none() {
            return Ok(None);
        }
        let mut result = RejudgeResult::not_judged(turn);
        if let Some((seen, judgement)) = history.judged {
            let context = Arc::new(TurnContext::load(journal, seen, &self.panel.options)?);
            let judged = self.judge_turn(&context).await?;
            result.recorded_verdicts = judge_verdicts(judgement);
            result.recorded = Some(combined_verdict(
                self.panel.options.aggregation,
                &result.recorded_verdicts,
            ));
            result.set_judgement(judged);
            result.turn = context.turn.clone();
        }
        // The judgements after that one called no judge; they only contain the user's score.
        if let Some(seen) = history.user_only {
            let context = Arc::new(TurnContext::load(journal, seen, &self.panel.options)?);
            let judged = self.judge_turn(&context).await?;
            result.sample = sample_reward(judged.sample, judged.skip_reason);
        }
        Ok(Some(result))
    }

    /// Judges all choices of the turn's request again, together; returns one result per complete choice, in order. A
    /// request that was judged choice by choice is shown to the group judges as it was when its last choice completed.
    /// Later feedback of the user still decides the reward. Returns nothing when there is no group judge, or fewer than
    /// two choices.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub async fn rejudge_group(
        &self,
        journal: &Journal,
        turn: TurnId,
    ) -> Result<Vec<RejudgeResult>, RejudgeError> {
        let choices = journal.complete_choices(turn)?;
        if choices.len() < 2 || !self.has_group_judges() {
            return Ok(Vec::new());
        }
        let (mut contexts, mut records) = (Vec::new(), Vec::new());
        for choice in choices {
            let judgements = journal.judgements(choice.id)?;
            let seen = match judgements.iter().find(|judgement| judgement.together) {
                Some(judgement) => turn_as_judged(&choice, judgement, None),
                None => turn_without_followup(&choice),
            };
            contexts.push(TurnContext::load_without_history(
                journal,
                seen,
                &self.panel.options,
            )?);
            records.push((choice, judgements));
        }
        let contexts = Arc::from(contexts);
        let judged = self.judge_group(&contexts).await?;
        let mut all = Vec::new();
        for ((context, (choice, judgements)), judged) in contexts.iter().zip(records).zip(judged) {
            let outcomes = judge_outcomes(&judged.verdicts);
            let mut result = RejudgeResult::not_judged(context.turn.clone());
            let recorded = judgements
                .iter()
                .rfind(|judgement| judgement.together)
                .or(judgements.iter().rfind(|j| !judge_verdicts(j).is_empty()));
            if let Some(judgement) = recorded {
                result.recorded_verdicts = judge_verdicts(judgement);
                result.recorded = Some(combined_verdict(
                    self.panel.options.aggregation,
                    &result.recorded_verdicts,
                ));
            }
            result.set_judgement(judged);
            let history = JudgementHistory::new(&choice, &judgements, true);
            if let Some(seen) = history.user_only.or(history.judged.map(|(seen, _)| seen)) {
                let mut context = TurnContext::load(journal, seen, &self.panel.options)?;
                context.group_outcomes = Some(outcomes);
                let judged = self.judge_turn(&Arc::new(context)).await?;
                result.sample = sample_reward(judged.sample, judged.skip_reason);
            }
            all.push(result);
        }
        Ok(all)
    }
}

/// The single-turn judgements of one turn.
struct JudgementHistory<'a> {
    /// The last one in which judges were called, and the turn as they saw it.
    judged: Option<(TurnRecord, &'a JudgementRecord)>,
    /// The turn as the last later judgement saw it, in which no judge was called.
    user_only: Option<TurnRecord>,
}

impl<'a> JudgementHistory<'a> {
    fn new(turn: &TurnRecord, judgements: &'a [JudgementRecord], judged_in_group: bool) -> Self {
        let mut history = Self {
            judged: None,
            user_only: None,
        };
        let mut previous = None;
        for judgement in judgements {
            let seen = turn_as_judged(turn, judgement, previous);
            previous = Some(judgement);
            if judgement.together {
                continue;
            }
            let evidence = Evidence::from_turn(&seen);
            let user_decides = !judged_in_group || !evidence.new_scores.is_empty();
            if evidence.needs_judges(judged_in_group) {
                history.judged = Some((seen, judgement));
                history.user_only = None;
            } else if user_decides {
                history.user_only = Some(seen);
            }
        }
        history
    }
}

impl RejudgeResult {
    fn not_judged(turn: TurnRecord) -> Self {
        Self {
            turn,
            recorded: None,
            recorded_verdicts: Vec::new(),
            combined: None,
            verdicts: Vec::new(),
            sample: Err("not judged".to_owned()),
        }
    }

    fn set_judgement(&mut self, judged: Judgement) {
        self.combined = judged.combined;
        self.verdicts = judged.verdicts;
        self.verdicts.retain(|verdict| verdict.source != USER);
        self.sample = sample_reward(judged.sample, judged.skip_reason);
    }
}

fn judge_outcomes(verdicts: &[VerdictRecord]) -> Vec<VerdictOutcome> {
    let from_judges = verdicts.iter().filter(|verdict| verdict.source != USER);
    from_judges.map(|verdict| verdict.outcome.clone()).collect()
}

/// The turn as it was when its reply completed.
fn turn_without_followup(turn: &TurnRecord) -> TurnRecord {
    TurnRecord {
        next_state: None,
        next_judged: false,
        feedback: Vec::new(),
        feedback_judged: 0,
        ..turn.clone()
    }
}

/// The turn as it was at the time of a judgement.
fn turn_as_judged(
    turn: &TurnRecord,
    judgement: &JudgementRecord,
    previous: Option<&JudgementRecord>,
) -> TurnRecord {
    let mut seen = turn.clone();
    if !judgement.next_state {
        seen.next_state = None;
    } else if let Some(retracted) = &judgement.retracted {
        seen.next_state = Some(retracted.messages.clone());
        seen.next_ms = Some(retracted.came_ms);
    }
    seen.feedback.truncate(judgement.feedback as usize);
    // A next state that was retracted in between was a different one.
    let number = |judgement: &JudgementRecord| judgement.retracted.as_ref().map(|known| known.id);
    seen.next_judged = previous
        .is_some_and(|previous| previous.next_state && number(previous) == number(judgement));
    seen.feedback_judged = previous.map_or(0, |previous| previous.feedback);
    seen
}

/// The judges' verdicts in a judgement, without the user's scores.
fn judge_verdicts(judgement: &JudgementRecord) -> Vec<VerdictRecord> {
    judgement
        .verdicts
        .iter()
        .filter(|verdict| verdict.source != USER)
        .cloned()
        .collect()
}

fn combined_verdict(combine: CombineRule, verdicts: &[VerdictRecord]) -> CombinedVerdict {
    let outcomes: Vec<VerdictOutcome> = verdicts.iter().map(|v| v.outcome.clone()).collect();
    combine.apply(&outcomes)
}

fn sample_reward(
    sample: Option<NewSample>,
    skip_reason: Option<String>,
) -> Result<Option<f32>, String> {
    match sample {
        Some(sample) => Ok(sample.reward),
        None => Err(skip_reason.unwrap_or_else(|| "nothing to train".to_owned())),
    }
}
