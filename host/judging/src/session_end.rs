//! The `keep_one_neutral_turn` rule: the sample of an ended session in which every judged turn was neutral.
//!
//! Such a session has reward 0, which carries a signal where the running mean of other sessions is not 0. All of its
//! turns would carry the same signal, so only the most informative one becomes a sample: the turn with the lowest mean
//! log-prob of its reply (the earlier one of equal turns). The gradient of a token's log-prob vanishes as its
//! probability approaches 1, so a reply with high probability would take space in the batch and change nothing. The
//! trainer decides whether the reward has an effect: it drops samples with an advantage of exactly 0 as "no signal".
//!
//! A neutral vote differs from an abstention. A turn counts only if a judge voted 0 or the user scored it 0; a turn on
//! which every judge abstained has no reward and is not compared with the running mean.

use clawhost_journal::{Journal, JournalError, NeutralChoice, NewSample, SessionId, TurnId};

use crate::context::after_complaint;
use crate::panel::JudgePanel;
use crate::samples::{NEUTRAL, baseline_key, provenance};

/// Number of sessions handled per pass.
const SESSION_BATCH: u32 = 64;

/// Finalizes ended sessions whose turns are all judged.
pub(crate) fn finalize_ended_sessions(
    journal: &Journal,
    panel: &JudgePanel,
) -> Result<(), JournalError> {
    for session in journal.sessions_to_finalize(SESSION_BATCH)? {
        // The rewards of its choices are not known yet.
        if panel.slots.has_group_judges() && journal.has_open_choice_group(&session)? {
            continue;
        }
        match finalize_session(journal, panel, &session) {
            Ok(sample) => panel.status.update(|s| s.samples += u64::from(sample)),
            // The session was deleted in the meantime.
            Err(JournalError::UnknownSession { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Finalizes one session. Returns whether it produced a sample.
fn finalize_session(
    journal: &Journal,
    panel: &JudgePanel,
    session: &SessionId,
) -> Result<bool, JournalError> {
    let sample = match panel.options.keep_one_neutral_turn {
        true => neutral_session_sample(journal, panel, session)?,
        false => None,
    };
    let sample_id = journal.finalize_session(session, NEUTRAL, sample.as_ref())?;
    if let (Some(sample), Some(id)) = (&sample, sample_id) {
        tracing::debug!(%session, turn = %sample.turn, sample = %id, "created a sample from a neutral session");
    }
    Ok(sample_id.is_some())
}

/// Builds the sample of a session whose judged turns were all neutral.
fn neutral_session_sample(
    journal: &Journal,
    panel: &JudgePanel,
    session: &SessionId,
) -> Result<Option<NewSample>, JournalError> {
    let turns = journal.neutral_turns(session, NEUTRAL)?;
    let Some((chosen, mean)) = lowest_mean_logprob(&turns) else {
        return Ok(None);
    };
    let (Some(turn), Some(session)) = (journal.turn(chosen)?, journal.session(session)?) else {
        return Ok(None);
    };
    let mut provenance = provenance(&journal.verdicts(chosen)?);
    provenance.chosen = Some(NeutralChoice {
        rule: "at least one".to_owned(),
        neutral_turns: turns.len(),
        mean_logprob: mean,
    });
    Ok(Some(NewSample {
        turn: chosen,
        reward: Some(0.0),
        baseline_key: baseline_key(
            turn.key.as_deref(),
            session.user.as_deref(),
            after_complaint(journal, &turn, panel.options.aggregation)?,
        ),
        provenance,
    }))
}

/// The turn with the lowest mean log-prob, and that mean; the earlier one of equal turns.
fn lowest_mean_logprob(turns: &[(TurnId, Vec<f32>)]) -> Option<(TurnId, f64)> {
    turns
        .iter()
        .filter(|(_, logprobs)| !logprobs.is_empty())
        .map(|(turn, logprobs)| {
            let sum: f64 = logprobs.iter().copied().map(f64::from).sum();
            (*turn, sum / logprobs.len() as f64)
        })
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turn_with_the_lowest_mean_logprob_is_chosen() {
        let turns = |means: &[&[f32]]| -> Vec<(TurnId, Vec<f32>)> {
            (1..)
                .map(TurnId)
                .zip(means.iter().map(|m| m.to_vec()))
                .collect()
        };
        let chosen = |means: &[&[f32]]| lowest_mean_logprob(&turns(means)).map(|(turn, _)| turn.0);
        assert_eq!(chosen(&[&[-0.1], &[-2.0, -1.0], &[-1.4]]), Some(2));
        // Length alone does not count.
        assert_eq!(chosen(&[&[-0.1; 50], &[-0.2]]), Some(2));
        assert_eq!(chosen(&[&[-0.5], &[-0.5, -0.5]]), Some(1));
        assert_eq!(chosen(&[&[], &[-0.0]]), Some(2));
        assert_eq!(chosen(&[&[]]), None);
    }
}
