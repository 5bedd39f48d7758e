//! Judging the record anew, without writing: what would other judges, or other options, have said?
//!
//! A turn is put before the judges exactly as its judgements put it: with the next state and the feedback that were
//! there then, through the same code. Where nothing that a judge asks for has changed (same component, same options,
//! deterministic profile), the same verdict comes out bit for bit. It refuses to quarantine or to stop: a fault is
//! part of the answer.

use clawhost_journal::{
    Journal, JournalError, JudgementRecord, NewSample, NewVerdict, TurnId, TurnRecord,
    VerdictOutcome,
};
use clawhost_plugins::Plugin;

use crate::docket::{Docket, together};
use crate::evidence::Evidence;
use crate::judgement::{Bench, Judgement, USER, Unjudged};
use crate::options::{FaultPolicy, JudgingOptions};
use crate::seats::{Seated, Seats};
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
    /// The reward that the turn would train with after all its judgements (none where its recorded hints alone would
    /// teach), or why it would not.
    pub sample: Result<Option<f32>, String>,
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

impl From<Unjudged> for RejudgingError {
    fn from(unjudged: Unjudged) -> Self {
        Self::Stopped(match unjudged {
            Unjudged::Stopped(stopped) => stopped.to_string(),
            Unjudged::Deferred(deferred) => deferred.reason,
        })
    }
}

impl Rejudging {
    /// Judges with the judges and the group judges among `plugins`, as [`crate::Judging`] would. Hint extractors are
    /// not asked: they change no reward.
    pub fn new(plugins: Vec<Plugin>, options: JudgingOptions) -> Self {
        Self::with(Seated::of(plugins), options)
    }

    pub(crate) fn with(mut seated: Seated, mut options: JudgingOptions) -> Self {
        options.attempts = options.attempts.max(1);
        options.on_fault = FaultPolicy::Skip;
        seated.hints.clear();
        let status = JudgingStatus::new();
        Self {
            bench: Bench {
                seats: Seats::new(seated, status.clone()),
                options,
                status,
            },
        }
    }

    /// Judges, and waits for a host that is too busy: what a judge thinks must not depend on it.
    async fn judge(&self, docket: &Docket) -> Result<Judgement, Unjudged> {
        let options = &self.bench.options;
        for times in 1..=options.deferrals {
            match self.bench.judge(docket, true).await {
                Err(Unjudged::Deferred(_)) => tokio::time::sleep(options.defer_wait(times)).await,
                judged => return judged,
            }
        }
        self.bench.judge(docket, false).await
    }

    /// As [`Rejudging::judge`], for the choices of a request.
    async fn judge_together(&self, dockets: &[Docket]) -> Result<Vec<Judgement>, Unjudged> {
        let options = &self.bench.options;
        for times in 1..=options.deferrals {
            match self.bench.judge_together(dockets, true).await {
                Err(Unjudged::Deferred(_)) => tokio::time::sleep(options.defer_wait(times)).await,
                judged => return judged,
            }
        }
        self.bench.judge_together(dockets, false).await
    }

    /// Whether requests of several whole choices are judged together: a group judge is among the plugins.
    pub fn judges_together(&self) -> bool {
        self.bench.seats.judge_together()
    }

    /// Judges a turn anew by itself. Of several judgements, the last in which judges were asked says what they think,
    /// and the last of all what the turn would train with. None when the turn is gone, was never judged, or was judged
    /// together with the other choices of its request and nobody has spoken of it since.
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
        let story = Story::of(&turn, &judgements, together(&judgements).is_some());
        if story.asked.is_none() && story.last.is_none() {
            return Ok(None);
        }
        let mut told = Rejudged::nothing(turn);
        if let Some((seen, judgement)) = story.asked {
            let docket = Docket::of(journal, seen, &self.bench.options)?;
            let judged = self.judge(&docket).await?;
            told.recorded_verdicts = of_judges(judgement);
            told.recorded = Some(opinion(self.bench.options.combine, &told.recorded_verdicts));
            told.take(judged);
            told.turn = docket.turn;
        }
        // A judgement after that one asked nobody: the user's word is all there is in it.
        if let Some(seen) = story.last {
            let docket = Docket::of(journal, seen, &self.bench.options)?;
            let judged = self.judge(&docket).await?;
            told.sample = sample(judged.sample, judged.skipped);
        }
        Ok(Some(told))
    }

    /// Judges all choices of the request that a turn answers anew, together; one for each whole choice, in order. A
    /// request that was judged choice by choice is put before the group judges as it was when its last choice had
    /// ended. What a user said of a choice afterwards has the last word. None when there is no group judge, or
    /// nothing to compare.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub async fn together(
        &self,
        journal: &Journal,
        turn: TurnId,
    ) -> Result<Vec<Rejudged>, RejudgingError> {
        let choices = journal.choices_of(turn)?;
        if choices.len() < 2 || !self.judges_together() {
            return Ok(Vec::new());
        }
        let (mut dockets, mut records) = (Vec::new(), Vec::new());
        for choice in choices {
            let judgements = journal.judgements(choice.id)?;
            let seen = match judgements.iter().find(|judgement| judgement.together) {
                Some(judgement) => as_seen(&choice, judgement, None),
                None => unseen(&choice),
            };
            dockets.push(Docket::alone(journal, seen, &self.bench.options)?);
            records.push((choice, judgements));
        }
        let judged = self.judge_together(&dockets).await?;
        let mut all = Vec::new();
        for ((docket, (choice, judgements)), judged) in dockets.into_iter().zip(records).zip(judged)
        {
            let outcomes = of_judges_now(&judged.verdicts);
            let mut told = Rejudged::nothing(docket.turn);
            let recorded = judgements
                .iter()
                .rfind(|judgement| judgement.together)
                .or(judgements.iter().rfind(|j| !of_judges(j).is_empty()));
            if let Some(judgement) = recorded {
                told.recorded_verdicts = of_judges(judgement);
                told.recorded = Some(opinion(self.bench.options.combine, &told.recorded_verdicts));
            }
            told.take(judged);
            let story = Story::of(&choice, &judgements, true);
            if let Some(seen) = story.last.or(story.asked.map(|(seen, _)| seen)) {
                let mut docket = Docket::of(journal, seen, &self.bench.options)?;
                docket.together = Some(outcomes);
                let judged = self.judge(&docket).await?;
                told.sample = sample(judged.sample, judged.skipped);
            }
            all.push(told);
        }
        Ok(all)
    }
}

/// The judgements of one turn by itself.
struct Story<'a> {
    /// The last in which judges were asked, and the turn as they saw it.
    asked: Option<(TurnRecord, &'a JudgementRecord)>,
    /// The turn as the last one after that saw it, which asked nobody.
    last: Option<TurnRecord>,
}

impl<'a> Story<'a> {
    fn of(turn: &TurnRecord, judgements: &'a [JudgementRecord], together: bool) -> Self {
        let mut story = Self {
            asked: None,
            last: None,
        };
        let mut before = None;
        for judgement in judgements {
            let seen = as_seen(turn, judgement, before);
            before = Some(judgement);
            if judgement.together {
                continue;
            }
            let evidence = Evidence::of(&seen);
            if evidence.as_ref().is_ok_and(|e| e.asks_judges(together)) {
                drop(evidence);
                story.asked = Some((seen, judgement));
                story.last = None;
            } else if !together || evidence.is_ok_and(|e| !e.new_scores.is_empty()) {
                story.last = Some(seen);
            }
        }
        story
    }
}

impl Rejudged {
    fn nothing(turn: TurnRecord) -> Self {
        Self {
            turn,
            recorded: None,
            recorded_verdicts: Vec::new(),
            opinion: None,
            verdicts: Vec::new(),
            sample: Err("not judged".to_owned()),
        }
    }

    fn take(&mut self, judged: Judgement) {
        self.opinion = judged.opinion;
        self.verdicts = judged.verdicts;
        self.verdicts.retain(|verdict| verdict.source != USER);
        self.sample = sample(judged.sample, judged.skipped);
    }
}

fn of_judges_now(verdicts: &[NewVerdict]) -> Vec<VerdictOutcome> {
    let of_judges = verdicts.iter().filter(|verdict| verdict.source != USER);
    of_judges.map(|verdict| verdict.outcome.clone()).collect()
}

/// The turn as it was when its reply had ended.
fn unseen(turn: &TurnRecord) -> TurnRecord {
    TurnRecord {
        next_state: None,
        next_judged: false,
        feedback: Vec::new(),
        feedback_judged: 0,
        ..turn.clone()
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
    } else if let Some(retracted) = &judgement.retracted {
        seen.next_state = Some(retracted.messages.clone());
        seen.next_ms = Some(retracted.came_ms);
    }
    seen.feedback
        .truncate(usize::try_from(judgement.feedback).unwrap_or(usize::MAX));
    // A next state that was retracted in between was another one.
    let number = |judgement: &JudgementRecord| judgement.retracted.as_ref().map(|known| known.id);
    seen.next_judged =
        before.is_some_and(|before| before.next_state && number(before) == number(judgement));
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

fn sample(sample: Option<NewSample>, skipped: Option<String>) -> Result<Option<f32>, String> {
    match sample {
        Some(sample) => Ok(sample.reward),
        None => Err(skipped.unwrap_or_else(|| "nothing to train".to_owned())),
    }
}
