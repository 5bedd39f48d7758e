//! One judging job: a single turn or all choices of a request, read from the journal, judged and recorded.

use clawhost_journal::{
    HintOutcome, Journal, JournalError, NewJudgement, TurnId, TurnRecord, VerdictOutcome,
};

use serde_json::Value;

use crate::context::TurnContext;
use crate::judgement::{Deferral, JudgeError, JudgePanel, Judgement, StopError};

/// A unit of judging that is recorded in one transaction.
pub(crate) enum JudgeJob {
    Turn(Box<TurnRecord>),
    /// The complete choices of one request.
    Group(Vec<TurnRecord>),
}

/// How a job ended.
pub(crate) enum JobOutcome {
    Recorded,
    /// The journal could not record the result; the turns are still ready.
    NotRecorded(JournalError),
    /// The host could not finish the calls; the turns are still ready.
    Deferred(Deferral),
    Stopped(StopError),
}

/// What earlier, deferred attempts of a job left.
#[derive(Debug, Default)]
pub(crate) struct PreviousAttempts {
    /// Number of deferrals.
    pub(crate) deferrals: u32,
    /// Receipts of their calls.
    pub(crate) receipts: Vec<Value>,
}

impl JudgeJob {
    /// Loads the ready jobs: at most `limit` turns, and at most `limit` requests if there is a group judge. Also
    /// returns whether this is all of them.
    pub(crate) fn load_ready(
        journal: &Journal,
        panel: &JudgePanel,
        limit: u32,
    ) -> Result<(Vec<Self>, bool), JournalError> {
        let (choices, turns) = if panel.slots.has_group_judges() {
            (
                journal.ready_choice_groups(limit)?,
                journal.ready_single_turns(limit)?,
            )
        } else {
            (Vec::new(), journal.ready_for_judging(limit)?)
        };
        let all_seen = turns.len() < limit as usize && choices.len() < limit as usize;
        let jobs = choices
            .into_iter()
            .map(Self::Group)
            .chain(turns.into_iter().map(|turn| Self::Turn(Box::new(turn))))
            .collect();
        Ok((jobs, all_seen))
    }

    /// The turns of the job.
    pub(crate) fn turns(&self) -> Vec<TurnId> {
        match self {
            Self::Turn(turn) => vec![turn.id],
            Self::Group(turns) => turns.iter().map(|turn| turn.id).collect(),
        }
    }

    /// Judges the turns and records the result.
    pub(crate) async fn run(
        self,
        journal: &Journal,
        panel: &JudgePanel,
        previous: PreviousAttempts,
    ) -> JobOutcome {
        let ids = self.turns();
        let recorded = match self {
            Self::Turn(turn) => run_turn(journal, panel, *turn, previous).await,
            Self::Group(turns) => run_group(journal, panel, turns, previous).await,
        };
        match recorded {
            Ok(()) => JobOutcome::Recorded,
            Err(JobError::Judge(JudgeError::Stopped(error))) => JobOutcome::Stopped(error),
            Err(JobError::Judge(JudgeError::Deferred(deferred))) => JobOutcome::Deferred(deferred),
            // Deleted or judged by another process in the meantime: there is nothing to record.
            Err(JobError::Journal(
                error @ (JournalError::AlreadyJudged { .. }
                | JournalError::NotReady { .. }
                | JournalError::UnknownTurn { .. }),
            )) => {
                tracing::info!(turns = ?ids, %error, "discarding a judgement: its turns were judged or deleted in the meantime");
                JobOutcome::Recorded
            }
            Err(JobError::Journal(error)) => JobOutcome::NotRecorded(error),
        }
    }
}

/// Why a job is not recorded.
enum JobError {
    Judge(JudgeError),
    Journal(JournalError),
}

impl From<JudgeError> for JobError {
    fn from(error: JudgeError) -> Self {
        Self::Judge(error)
    }
}

impl From<JournalError> for JobError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

async fn run_turn(
    journal: &Journal,
    panel: &JudgePanel,
    turn: TurnRecord,
    previous: PreviousAttempts,
) -> Result<(), JobError> {
    let context = TurnContext::load(journal, turn, &panel.options)?;
    let may_defer = previous.deferrals < panel.options.deferrals;
    let mut judgement = panel
        .judge_turn(&context, may_defer)
        .await
        .map_err(|error| error.with_earlier_receipts(previous.receipts.clone()))?;
    judgement.receipts.splice(..0, previous.receipts);
    journal.commit(&judgement.to_record(&context.turn))?;
    update_status(panel, std::slice::from_ref(&judgement));
    Ok(())
}

async fn run_group(
    journal: &Journal,
    panel: &JudgePanel,
    turns: Vec<TurnRecord>,
    previous: PreviousAttempts,
) -> Result<(), JobError> {
    // Earlier turns are part of the prompt that all choices share.
    let contexts: Vec<TurnContext> = turns
        .into_iter()
        .map(|turn| TurnContext::load_without_history(journal, turn, &panel.options))
        .collect::<Result<_, _>>()?;
    let may_defer = previous.deferrals < panel.options.deferrals;
    let mut judgements = panel
        .judge_group(&contexts, may_defer)
        .await
        .map_err(|error| error.with_earlier_receipts(previous.receipts.clone()))?;
    if let Some(first) = judgements.first_mut() {
        first.receipts.splice(..0, previous.receipts);
    }
    let records: Vec<NewJudgement<'_>> = judgements
        .iter()
        .zip(&contexts)
        .map(|(judgement, context)| judgement.to_record(&context.turn))
        .collect();
    journal.commit_choice_group(&records)?;
    update_status(panel, &judgements);
    panel.status.update(|s| s.together += 1);
    Ok(())
}

fn update_status(panel: &JudgePanel, judgements: &[Judgement]) {
    panel.status.update(|s| {
        s.last_error = None;
        for judgement in judgements {
            s.judged += 1;
            if let Some(sample) = &judgement.sample {
                s.samples += 1;
                s.samples_by_hint += u64::from(sample.reward.is_none());
            }
            if let Some(reason) = judgement
                .skip_reason
                .as_ref()
                .filter(|_| !judgement.keeps_previous)
            {
                *s.skipped.entry(reason.clone()).or_default() += 1;
            }
            for verdict in &judgement.verdicts {
                if let VerdictOutcome::None { reason } = &verdict.outcome {
                    *s.no_verdict.entry(reason.clone()).or_default() += 1;
                }
            }
            for hint in &judgement.hints {
                match &hint.outcome {
                    HintOutcome::Hint { .. } => s.hints += 1,
                    HintOutcome::None { reason } => {
                        *s.no_hint.entry(reason.clone()).or_default() += 1;
                    }
                }
            }
        }
    });
}
