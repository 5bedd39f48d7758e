//! What the journal says about a turn that is to be judged.

use clawhost_journal::{
    HintRecord, Journal, JournalError, JudgementRecord, SampleRecord, TurnRecord, VerdictOutcome,
};

use crate::judgement::USER;

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
    /// What group judges gave when it was judged together with the other choices of its request, if it was.
    pub(crate) together: Option<Vec<VerdictOutcome>>,
}

impl Docket {
    /// Reads what belongs to `turn`, at most `history_turns` earlier turns among it.
    pub(crate) fn of(
        journal: &Journal,
        turn: TurnRecord,
        history_turns: usize,
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
            together: together(&journal.judgements(turn.id)?),
            turn,
        })
    }
}

/// What the judges gave in the last judgement that was one of all choices.
pub(crate) fn together(judgements: &[JudgementRecord]) -> Option<Vec<VerdictOutcome>> {
    let judgement = judgements.iter().rfind(|judgement| judgement.together)?;
    let of_judges = judgement.verdicts.iter().filter(|v| v.source != USER);
    Some(of_judges.map(|verdict| verdict.outcome.clone()).collect())
}
