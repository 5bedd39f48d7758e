//! What the journal says about a turn that is to be judged.

use clawhost_journal::{
    HintRecord, Journal, JournalError, JudgementRecord, SampleRecord, TurnRecord, VerdictOutcome,
};

use crate::evidence::users_score;
use crate::judgement::USER;
use crate::options::JudgingOptions;
use crate::votes::Combine;

/// A turn with all that a judgement needs to know of it.
pub(crate) struct Docket {
    pub(crate) turn: TurnRecord,
    /// The turns that led to it, oldest first, as many as a judge is shown.
    pub(crate) earlier: Vec<TurnRecord>,
    /// The session's user, as the client named it.
    pub(crate) user: Option<String>,
    /// Samples that earlier judgements of the turn made.
    pub(crate) samples: Vec<SampleRecord>,
    /// What extractors gave in earlier judgements of it.
    pub(crate) hints: Vec<HintRecord>,
    /// Whether it answers a complaint: the verdict on the turn before it is negative.
    pub(crate) after_complaint: bool,
    /// What group judges gave when it was judged together with the other choices of its request, if it was.
    pub(crate) together: Option<Vec<VerdictOutcome>>,
}

impl Docket {
    /// Whether anything followed the reply: a next state, or what the user said of it.
    pub(crate) fn is_followed(&self) -> bool {
        self.turn.next_state.is_some() || !self.turn.feedback.is_empty()
    }

    /// Reads what belongs to `turn`, as many earlier turns among it as judges are shown.
    pub(crate) fn of(
        journal: &Journal,
        turn: TurnRecord,
        options: &JudgingOptions,
    ) -> Result<Self, JournalError> {
        Self::with_history(journal, turn, options.history_turns, options.combine)
    }

    /// The same without earlier turns.
    pub(crate) fn alone(
        journal: &Journal,
        turn: TurnRecord,
        options: &JudgingOptions,
    ) -> Result<Self, JournalError> {
        Self::with_history(journal, turn, 0, options.combine)
    }

    fn with_history(
        journal: &Journal,
        turn: TurnRecord,
        history_turns: usize,
        combine: Combine,
    ) -> Result<Self, JournalError> {
        let mut earlier: Vec<TurnRecord> = Vec::new();
        let (mut below, mut at) = (turn.id, turn.parent);
        // A parent is always older; anything else is damage and ends the walk.
        while let Some(id) = at.filter(|id| *id < below && earlier.len() < history_turns) {
            let Some(record) = journal.turn(id)? else {
                break;
            };
            (below, at) = (id, record.parent);
            earlier.push(record);
        }
        earlier.reverse();
        Ok(Self {
            earlier,
            user: journal
                .session(&turn.session)?
                .and_then(|session| session.user),
            samples: journal.samples_of(turn.id)?,
            hints: journal.hints(turn.id)?,
            after_complaint: after_complaint(journal, &turn, combine)?,
            together: together(&journal.judgements(turn.id)?),
            turn,
        })
    }
}

/// Whether the verdict on the turn before this one is negative. The user's own score wins over the judges; where the
/// choices of a request were ranked against each other, the rank is no complaint.
pub(crate) fn after_complaint(
    journal: &Journal,
    turn: &TurnRecord,
    combine: Combine,
) -> Result<bool, JournalError> {
    let Some(parent) = turn.parent else {
        return Ok(false);
    };
    // A forgotten turn cannot be read any more.
    let Some(before) = journal.turn(parent)? else {
        return Ok(false);
    };
    if let Some(score) = users_score(&before) {
        return Ok(score < 0.0);
    }
    let judgements = journal.judgements(before.id)?;
    let last = judgements.iter().rev().find_map(|judgement| {
        let outcomes: Vec<VerdictOutcome> = of_judges(judgement).collect();
        (!judgement.together && !outcomes.is_empty()).then_some(outcomes)
    });
    let reward = last.and_then(|outcomes| combine.opinion(&outcomes).reward);
    Ok(reward.is_some_and(|reward| reward < 0.0))
}

/// What the judges gave in one judgement, without what the user did.
fn of_judges(judgement: &JudgementRecord) -> impl Iterator<Item = VerdictOutcome> {
    let of_judges = judgement.verdicts.iter().filter(|v| v.source != USER);
    of_judges.map(|verdict| verdict.outcome.clone())
}

/// What the judges gave in the last judgement that was one of all choices.
pub(crate) fn together(judgements: &[JudgementRecord]) -> Option<Vec<VerdictOutcome>> {
    let judgement = judgements.iter().rfind(|judgement| judgement.together)?;
    Some(of_judges(judgement).collect())
}
