//! One judging job: a single turn or all choices of a request, read from the journal, judged and recorded. The journal
//! is read and written on the blocking threads of the caller's runtime, the components are called on their own threads.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use clawhost_journal::{
    EvidenceSnapshot, HintOutcome, Journal, JournalError, JudgementOutcome, NewJudgement, TurnId,
    TurnRecord, VerdictOutcome, run_blocking,
};
use clawhost_plugins::panic_message;
use futures_util::FutureExt as _;
use serde_json::Value;

use crate::context::TurnContext;
use crate::judgement::Judgement;
use crate::panel::{Deferral, JudgeError, JudgePanel, StopError};

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
        has_group_judges: bool,
        limit: u32,
    ) -> Result<(Vec<Self>, bool), JournalError> {
        let (choices, turns) = if has_group_judges {
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

    /// The evidence of its turns.
    fn evidence(&self) -> Vec<EvidenceSnapshot> {
        match self {
            Self::Turn(turn) => vec![EvidenceSnapshot::from(&**turn)],
            Self::Group(turns) => turns.iter().map(EvidenceSnapshot::from).collect(),
        }
    }

    /// Judges the turns and records the result. After a panic, the turns are recorded as skipped for that reason, so
    /// that they neither wait for ever nor panic again.
    pub(crate) async fn run(
        self,
        journal: &Journal,
        panel: &Arc<JudgePanel>,
        previous: PreviousAttempts,
    ) -> JobOutcome {
        let (ids, evidence) = (self.turns(), self.evidence());
        let work = async {
            match self {
                Self::Turn(turn) => run_turn(journal, panel, *turn, previous).await,
                Self::Group(turns) => run_group(journal, panel, turns, previous).await,
            }
        };
        let recorded = match AssertUnwindSafe(work).catch_unwind().await {
            Ok(recorded) => recorded,
            Err(panic) => {
                let message = panic_message(&*panic);
                tracing::error!(turns = ?ids, message, "judging panicked; its turns are skipped");
                record_panic(journal, panel, evidence, message).await
            }
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
    panel: &Arc<JudgePanel>,
    turn: TurnRecord,
    previous: PreviousAttempts,
) -> Result<(), JobError> {
    let (read, options) = (journal.clone(), panel.options.clone());
    let distills = panel.experience.mode.distills();
    let load = move || TurnContext::load(&read, turn, &options)?.with_experience(&read, distills);
    let context = Arc::new(run_blocking(load).await?);
    let may_defer = previous.deferrals < panel.options.max_deferrals;
    let mut judgement = panel
        .judge_turn(&context, may_defer)
        .await
        .map_err(|error| error.with_earlier_receipts(previous.receipts.clone()))?;
    judgement.receipts.splice(..0, previous.receipts);
    let (journal, panel) = (journal.clone(), panel.clone());
    run_blocking(move || {
        journal.commit(&judgement.to_record(&context.turn, &panel.experience))?;
        update_status(&panel, std::slice::from_ref(&judgement));
        Ok(())
    })
    .await
}

async fn run_group(
    journal: &Journal,
    panel: &Arc<JudgePanel>,
    turns: Vec<TurnRecord>,
    previous: PreviousAttempts,
) -> Result<(), JobError> {
    let (read, options) = (journal.clone(), panel.options.clone());
    // Earlier turns are part of the prompt that all choices share.
    let distills = panel.experience.mode.distills();
    let load = move |turn| {
        TurnContext::load_without_history(&read, turn, &options)?.with_experience(&read, distills)
    };
    let contexts =
        run_blocking(move || turns.into_iter().map(load).collect::<Result<Arc<[_]>, _>>());
    let contexts = contexts.await?;
    let may_defer = previous.deferrals < panel.options.max_deferrals;
    let mut judgements = panel
        .judge_group(&contexts, may_defer)
        .await
        .map_err(|error| error.with_earlier_receipts(previous.receipts.clone()))?;
    let first = judgements.first_mut();
    let first = first.expect("a group has at least two choices");
    first.receipts.splice(..0, previous.receipts);
    let (journal, panel) = (journal.clone(), panel.clone());
    run_blocking(move || {
        let records: Vec<NewJudgement<'_>> = judgements
            .iter()
            .zip(contexts.iter())
            .map(|(judgement, context)| judgement.to_record(&context.turn, &panel.experience))
            .collect();
        journal.commit_choice_group(&records)?;
        update_status(&panel, &judgements);
        panel.status.update(|s| s.together += 1);
        Ok(())
    })
    .await
}

/// Records that judging panicked.
async fn record_panic(
    journal: &Journal,
    panel: &Arc<JudgePanel>,
    evidence: Vec<EvidenceSnapshot>,
    message: &str,
) -> Result<(), JobError> {
    let reason = format!("judging panicked: {message}");
    let (journal, panel) = (journal.clone(), panel.clone());
    run_blocking(move || {
        let record = |turn: &EvidenceSnapshot| NewJudgement {
            turn: *turn,
            verdicts: &[],
            hints: &[],
            experience: None,
            receipts: &[],
            outcome: JudgementOutcome::Skipped(&reason),
        };
        let records: Vec<NewJudgement<'_>> = evidence.iter().map(record).collect();
        match records.as_slice() {
            [turn] => drop(journal.commit(turn)?),
            choices => drop(journal.commit_choice_group(choices)?),
        }
        let skipped: Vec<Judgement> = records.iter().map(|_| Judgement::skip(&reason)).collect();
        update_status(&panel, &skipped);
        Ok(())
    })
    .await
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
                let objection = judgement.objection.as_ref();
                let counted = objection.map_or(reason, |objection| &objection.source);
                *s.skipped.entry(counted.clone()).or_default() += 1;
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
