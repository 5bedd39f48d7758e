//! Everything a judgement needs to know about a turn, loaded from the journal.

use clawhost_journal::{
    HintRecord, Journal, JournalError, JudgementRecord, SampleRecord, TurnRecord, VerdictOutcome,
};

use crate::evidence::{USER, last_user_score};
use crate::votes::CombineVerdicts;
use clawhost_config::CombineRule;
use clawhost_config::JudgingOptions;

/// A turn with its history, samples, hints and earlier verdicts.
pub(crate) struct TurnContext {
    pub(crate) turn: TurnRecord,
    /// The preceding turns, oldest first, at most `judging.max_history_turns`.
    pub(crate) earlier: Vec<TurnRecord>,
    /// The session's user, as named by the client.
    pub(crate) user: Option<String>,
    /// Samples created by earlier judgements of the turn.
    pub(crate) samples: Vec<SampleRecord>,
    /// Hints extracted in earlier judgements of the turn.
    pub(crate) hints: Vec<HintRecord>,
    /// Whether the turn answers a complaint: the verdict on the preceding turn is negative.
    pub(crate) after_complaint: bool,
    /// The outcomes of the group judges if the turn was judged together with the other choices of its request.
    pub(crate) group_outcomes: Option<Vec<VerdictOutcome>>,
    /// Whether the API key of the turn has experience that its reply can be distilled with.
    pub(crate) has_experience: bool,
}

impl TurnContext {
    /// Whether the reply has a next state or feedback.
    pub(crate) fn has_followup(&self) -> bool {
        self.turn.next_state.is_some() || !self.turn.feedback.is_empty()
    }

    /// Loads the context of `turn`, with as many preceding turns as judges see.
    pub(crate) fn load(
        journal: &Journal,
        turn: TurnRecord,
        options: &JudgingOptions,
    ) -> Result<Self, JournalError> {
        Self::with_history(
            journal,
            turn,
            options.max_history_turns,
            options.aggregation,
        )
    }

    /// Also loads whether there is experience to distil the turn with; there is none in a prompt that has it already.
    pub(crate) fn with_experience(
        mut self,
        journal: &Journal,
        distills: bool,
    ) -> Result<Self, JournalError> {
        let key = self.turn.key.as_deref();
        self.has_experience = distills
            && self.turn.experience.is_none()
            && !journal.active_experience(key)?.is_empty();
        Ok(self)
    }

    /// Loads the context without preceding turns.
    pub(crate) fn load_without_history(
        journal: &Journal,
        turn: TurnRecord,
        options: &JudgingOptions,
    ) -> Result<Self, JournalError> {
        Self::with_history(journal, turn, 0, options.aggregation)
    }

    fn with_history(
        journal: &Journal,
        turn: TurnRecord,
        history_turns: usize,
        combine: CombineRule,
    ) -> Result<Self, JournalError> {
        let mut earlier: Vec<TurnRecord> = Vec::new();
        let (mut below, mut at) = (turn.id, turn.parent);
        // A parent always has a smaller id; anything else is a damaged record and ends the walk.
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
            samples: journal.samples_of_turn(turn.id)?,
            hints: journal.hints(turn.id)?,
            after_complaint: after_complaint(journal, &turn, combine)?,
            group_outcomes: group_outcomes(&journal.judgements(turn.id)?),
            has_experience: false,
            turn,
        })
    }
}

/// Whether the verdict on the preceding turn is negative. The user's score wins over the judges. A group rank is not a
/// complaint.
pub(crate) fn after_complaint(
    journal: &Journal,
    turn: &TurnRecord,
    combine: CombineRule,
) -> Result<bool, JournalError> {
    let Some(parent) = turn.parent else {
        return Ok(false);
    };
    // The parent may have been deleted.
    let Some(before) = journal.turn(parent)? else {
        return Ok(false);
    };
    if let Some(score) = last_user_score(&before) {
        return Ok(score < 0.0);
    }
    let judgements = journal.judgements(before.id)?;
    let last = judgements.iter().rev().find_map(|judgement| {
        let outcomes: Vec<VerdictOutcome> = judge_outcomes(judgement).collect();
        (!judgement.together && !outcomes.is_empty()).then_some(outcomes)
    });
    let reward = last.and_then(|outcomes| combine.apply(&outcomes).reward);
    Ok(reward.is_some_and(|reward| reward < 0.0))
}

/// The judges' outcomes in one judgement, without the user's scores.
fn judge_outcomes(judgement: &JudgementRecord) -> impl Iterator<Item = VerdictOutcome> {
    let verdicts = judgement.verdicts.iter().filter(|v| v.source != USER);
    verdicts.map(|verdict| verdict.outcome.clone())
}

/// The outcomes of the last group judgement, if any.
pub(crate) fn group_outcomes(judgements: &[JudgementRecord]) -> Option<Vec<VerdictOutcome>> {
    let judgement = judgements.iter().rfind(|judgement| judgement.together)?;
    Some(judge_outcomes(judgement).collect())
}
