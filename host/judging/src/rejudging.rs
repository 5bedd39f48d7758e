//! Judging the record anew, without writing: what would other judges, or other options, have said?
//!
//! A turn is put before the judges exactly as its judgements put it: with the next state and the feedback that were
//! there then, through the same code. Where nothing that a judge asks for has changed (same component, same options,
//! deterministic profile), the same verdict comes out bit for bit. It refuses to quarantine or to stop: a fault is
//! part of the answer.

use std::sync::Arc;

use clawhost_journal::{
    Journal, JournalError, JudgementRecord, NewVerdict, TurnId, TurnRecord, VerdictOutcome,
};
use clawhost_plugins::Plugin;

use crate::docket::Docket;
use crate::evidence::Evidence;
use crate::judge::Judge;
use crate::judgement::{Bench, Stopped, USER};
use crate::options::{FaultPolicy, JudgingOptions};
use crate::seats::Judges;
use crate::status::JudgingStatus;
use crate::votes::{Combine, Opinion};

/// Judges for the record.
pub struct Rejudging {
    bench: Bench,
}

/// A recorded turn, judged anew.
#[derive(Debug, Clone)]
pub struct Rejudged {
    /// The turn, as the judgement below saw it.
    pub turn: TurnRecord,
    /// What the recorded judges said together, by the rule of these options; none when none was asked.
    pub recorded: Option<Opinion>,
    /// What each recorded judge gave.
    pub recorded_verdicts: Vec<NewVerdict>,
    /// What the judges say together now; none when there is nothing to ask them about (a score alone).
    pub opinion: Option<Opinion>,
    /// What each judge gives now.
    pub verdicts: Vec<NewVerdict>,
    /// The reward that the turn would train with after all its judgements, or why it would not.
    pub sample: Result<f32, String>,
}

/// The record cannot be judged anew.
#[derive(Debug, thiserror::Error)]
pub enum RejudgingError {
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A judge stopped judging, which the options do not allow here.
    #[error("{0}")]
    Stopped(String),
}

impl From<Stopped> for RejudgingError {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped.to_string())
    }
}

impl Rejudging {
    /// Judges with all of `judges`, as [`crate::Judging`] would.
    pub fn new(judges: Vec<Plugin>, options: JudgingOptions) -> Self {
        let judges = judges
            .into_iter()
            .map(|plugin| Arc::new(plugin) as Arc<dyn Judge>)
            .collect();
        Self::with(judges, options)
    }

    pub(crate) fn with(judges: Vec<Arc<dyn Judge>>, mut options: JudgingOptions) -> Self {
        options.attempts = options.attempts.max(1);
        options.on_fault = FaultPolicy::Skip;
        let status = JudgingStatus::new();
        Self {
            bench: Bench {
                judges: Judges::new(judges, status.clone()),
                options,
                status,
            },
        }
    }

    /// Judges a turn anew. Of several judgements, the last in which judges were asked says what they think, and the
    /// last of all what the turn would train with. None when the turn is gone, or was never judged.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub async fn turn(
        &self,
        journal: &Journal,
        turn: TurnId,
    ) -> Result<Option<Rejudged>, RejudgingError> {
        let judgements = journal.judgements(turn)?;
        let Some(turn) = journal.turn(turn)? else {
            return Ok(None);
        };
        let mut before = None;
        let mut asked = None;
        let mut last = None;
        for judgement in &judgements {
            let seen = as_seen(&turn, judgement, before);
            before = Some(judgement);
            if Evidence::of(&seen).is_ok_and(|evidence| evidence.for_judges.is_some()) {
                asked = Some((seen, judgement));
                last = None;
            } else {
                last = Some(seen);
            }
        }
        if asked.is_none() && last.is_none() {
            return Ok(None);
        }
        let history = self.bench.options.history_turns;
        let mut told = Rejudged {
            turn,
            recorded: None,
            recorded_verdicts: Vec::new(),
            opinion: None,
            verdicts: Vec::new(),
            sample: Err("not judged".to_owned()),
        };
        if let Some((seen, judgement)) = asked {
            let docket = Docket::of(journal, seen, history)?;
            let judged = self.bench.judge(&docket).await?;
            told.recorded_verdicts = of_judges(judgement);
            told.recorded = Some(opinion(self.bench.options.combine, &told.recorded_verdicts));
            told.opinion = judged.opinion;
            told.verdicts = judged.verdicts;
            told.verdicts.retain(|verdict| verdict.source != USER);
            told.sample = sample(judged.sample.map(|s| s.reward), judged.skipped);
            told.turn = docket.turn;
        }
        // A judgement after that one asked nobody: the user's word is all there is in it.
        if let Some(seen) = last {
            let docket = Docket::of(journal, seen, history)?;
            let judged = self.bench.judge(&docket).await?;
            told.sample = sample(judged.sample.map(|s| s.reward), judged.skipped);
        }
        Ok(Some(told))
    }
}

/// The turn as it was when a judgement took it up.
fn as_seen(
    turn: &TurnRecord,
    judgement: &JudgementRecord,
    before: Option<&JudgementRecord>,
) -> TurnRecord {
    let mut seen = turn.clone();
    if !judgement.next_state {
        seen.next_state = None;
    }
    seen.feedback
        .truncate(usize::try_from(judgement.feedback).unwrap_or(usize::MAX));
    seen.next_judged = before.is_some_and(|before| before.next_state);
    seen.feedback_judged = before.map_or(0, |before| before.feedback);
    seen
}

/// What the judges gave in a judgement, without what the user did.
fn of_judges(judgement: &JudgementRecord) -> Vec<NewVerdict> {
    judgement
        .verdicts
        .iter()
        .filter(|verdict| verdict.source != USER)
        .map(|verdict| NewVerdict {
            source: verdict.source.clone(),
            digest: verdict.digest.clone(),
            outcome: verdict.outcome.clone(),
            votes: verdict.votes.clone(),
            rationale: verdict.rationale.clone(),
            metrics: verdict.metrics.clone(),
            ms: verdict.ms,
        })
        .collect()
}

fn opinion(combine: Combine, verdicts: &[NewVerdict]) -> Opinion {
    let outcomes: Vec<VerdictOutcome> = verdicts.iter().map(|v| v.outcome.clone()).collect();
    combine.opinion(&outcomes)
}

fn sample(reward: Option<f32>, skipped: Option<String>) -> Result<f32, String> {
    reward.ok_or_else(|| skipped.unwrap_or_else(|| "nothing to train".to_owned()))
}
