//! One piece of judging from the journal and back into it: a turn, or all choices of a request.

use clawhost_journal::{
    HintOutcome, Journal, JournalError, NewJudgement, TurnId, TurnRecord, VerdictOutcome,
};

use serde_json::Value;

use crate::docket::Docket;
use crate::judgement::{Bench, Deferred, Judgement, Stopped, Unjudged};

/// What is judged at once and recorded in one transaction.
pub(crate) enum Work {
    Turn(Box<TurnRecord>),
    /// The whole choices of one request.
    Choices(Vec<TurnRecord>),
}

/// How a piece of work ended.
pub(crate) enum Ended {
    Recorded,
    /// The journal could not record it; it is still ready.
    NotRecorded(JournalError),
    /// The host could not finish it; it is still ready.
    Deferred(Deferred),
    Stopped(Stopped),
}

/// What earlier tries of a piece of work left, which the host could not finish.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    /// How many there were.
    pub(crate) deferrals: u32,
    /// Of their calls.
    pub(crate) receipts: Vec<Value>,
}

impl Work {
    /// What waits: at most `limit` turns, and as many requests where there is somebody who judges choices together.
    pub(crate) fn ready(
        journal: &Journal,
        bench: &Bench,
        limit: u32,
    ) -> Result<(Vec<Self>, bool), JournalError> {
        let (choices, turns) = if bench.seats.judge_together() {
            (journal.ready_together(limit)?, journal.ready_apart(limit)?)
        } else {
            (Vec::new(), journal.ready_for_judging(limit)?)
        };
        let all_seen = turns.len() < limit as usize && choices.len() < limit as usize;
        let work = choices
            .into_iter()
            .map(Self::Choices)
            .chain(turns.into_iter().map(|turn| Self::Turn(Box::new(turn))))
            .collect();
        Ok((work, all_seen))
    }

    /// The turns that it is about.
    pub(crate) fn turns(&self) -> Vec<TurnId> {
        match self {
            Self::Turn(turn) => vec![turn.id],
            Self::Choices(turns) => turns.iter().map(|turn| turn.id).collect(),
        }
    }

    /// Judges and records it.
    pub(crate) async fn done(self, journal: &Journal, bench: &Bench, earlier: Earlier) -> Ended {
        let ids = self.turns();
        let recorded = match self {
            Self::Turn(turn) => one(journal, bench, *turn, earlier).await,
            Self::Choices(turns) => together(journal, bench, turns, earlier).await,
        };
        match recorded {
            Ok(()) => Ended::Recorded,
            Err(Undone::Unjudged(Unjudged::Stopped(stopped))) => Ended::Stopped(stopped),
            Err(Undone::Unjudged(Unjudged::Deferred(deferred))) => Ended::Deferred(deferred),
            // Forgotten, or judged elsewhere, while it was being judged: there is nothing to record.
            Err(Undone::Journal(
                error @ (JournalError::AlreadyJudged { .. }
                | JournalError::NotReady { .. }
                | JournalError::UnknownTurn { .. }),
            )) => {
                tracing::info!(turns = ?ids, %error, "a judgement came too late");
                Ended::Recorded
            }
            Err(Undone::Journal(error)) => Ended::NotRecorded(error),
        }
    }
}

/// Why a piece of work is not recorded.
enum Undone {
    Unjudged(Unjudged),
    Journal(JournalError),
}

impl From<Unjudged> for Undone {
    fn from(unjudged: Unjudged) -> Self {
        Self::Unjudged(unjudged)
    }
}

impl From<JournalError> for Undone {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

async fn one(
    journal: &Journal,
    bench: &Bench,
    turn: TurnRecord,
    earlier: Earlier,
) -> Result<(), Undone> {
    let docket = Docket::of(journal, turn, &bench.options)?;
    let may_defer = earlier.deferrals < bench.options.deferrals;
    let mut judgement = bench
        .judge(&docket, may_defer)
        .await
        .map_err(|unjudged| unjudged.after(earlier.receipts.clone()))?;
    judgement.receipts.splice(..0, earlier.receipts);
    journal.commit(&judgement.record(&docket.turn))?;
    tell(bench, std::slice::from_ref(&judgement));
    Ok(())
}

async fn together(
    journal: &Journal,
    bench: &Bench,
    turns: Vec<TurnRecord>,
    earlier: Earlier,
) -> Result<(), Undone> {
    // What came before stands in their prompt.
    let dockets: Vec<Docket> = turns
        .into_iter()
        .map(|turn| Docket::alone(journal, turn, &bench.options))
        .collect::<Result<_, _>>()?;
    let may_defer = earlier.deferrals < bench.options.deferrals;
    let mut judgements = bench
        .judge_together(&dockets, may_defer)
        .await
        .map_err(|unjudged| unjudged.after(earlier.receipts.clone()))?;
    if let Some(first) = judgements.first_mut() {
        first.receipts.splice(..0, earlier.receipts);
    }
    let records: Vec<NewJudgement<'_>> = judgements
        .iter()
        .zip(&dockets)
        .map(|(judgement, docket)| judgement.record(&docket.turn))
        .collect();
    journal.commit_together(&records)?;
    tell(bench, &judgements);
    bench.status.change(|s| s.together += 1);
    Ok(())
}

fn tell(bench: &Bench, judgements: &[Judgement]) {
    bench.status.change(|s| {
        s.last_error = None;
        for judgement in judgements {
            s.judged += 1;
            if let Some(sample) = &judgement.sample {
                s.samples += 1;
                s.samples_by_hint += u64::from(sample.reward.is_none());
            }
            if let Some(reason) = judgement.skipped.as_ref().filter(|_| !judgement.as_before) {
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
