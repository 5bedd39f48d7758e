//! At least one: what an ended session contributes when every judged turn of it was neutral.
//!
//! Such a session has a reward as well, 0, and where the others' running mean is not 0 that tells something. All of its
//! turns would say the same thing once more, so one of them speaks for it: the most informative one, which is the
//! one whose tokens the policy was least sure of (the lowest mean log-prob of its reply, the earlier of two equal ones).
//! The gradient of a token's log-prob vanishes as its probability goes to 1, so a reply that the policy was sure of
//! would take a place in the batch and change nothing. Whether the reward moves anything is the trainer's to say: it
//! drops an advantage of exactly 0 as "no signal".
//!
//! Neutral is an opinion, and abstaining is none. A turn takes part only if a judge voted neutral or the user scored it
//! 0; one on which every judge abstained has no reward, and the running mean is not held against it.

use clawhost_journal::{Journal, JournalError, NewSample, SessionId, TurnId};

use crate::docket::after_complaint;
use crate::judgement::Bench;
use crate::samples::{NEUTRAL, baseline_key, provenance};

/// Sessions settled at once.
const AT_ONCE: u32 = 64;

/// Settles ended sessions whose turns are all judged.
pub(crate) fn close(journal: &Journal, bench: &Bench) -> Result<(), JournalError> {
    for session in journal.sessions_to_settle(AT_ONCE)? {
        // What its choices are worth is not known yet.
        if bench.seats.judge_together() && journal.awaits_judging_together(&session)? {
            continue;
        }
        match settle(journal, bench, &session) {
            Ok(sample) => bench.status.change(|s| s.samples += u64::from(sample)),
            // Forgotten meanwhile.
            Err(JournalError::UnknownSession { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Settles one session and tells whether it gave a sample.
fn settle(journal: &Journal, bench: &Bench, session: &SessionId) -> Result<bool, JournalError> {
    let sample = match bench.options.at_least_one {
        true => contribution(journal, bench, session)?,
        false => None,
    };
    let given = journal.settle_session(session, NEUTRAL, sample.as_ref())?;
    if let (Some(sample), Some(id)) = (&sample, given) {
        tracing::debug!(%session, turn = %sample.turn, sample = %id, "a neutral session contributes a turn");
    }
    Ok(given.is_some())
}

/// The sample of a session whose judged turns were all neutral.
fn contribution(
    journal: &Journal,
    bench: &Bench,
    session: &SessionId,
) -> Result<Option<NewSample>, JournalError> {
    let turns = journal.neutral_turns(session, NEUTRAL)?;
    let Some((chosen, mean)) = most_informative(&turns) else {
        return Ok(None);
    };
    let (Some(turn), Some(session)) = (journal.turn(chosen)?, journal.session(session)?) else {
        return Ok(None);
    };
    let verdicts = journal.verdicts(chosen)?;
    let mut provenance = provenance(
        verdicts
            .iter()
            .map(|v| (v.source.as_str(), v.digest.as_deref(), &v.outcome)),
    );
    if let Some(fields) = provenance.as_object_mut() {
        let why = serde_json::json!({
            "rule": "at least one", "neutral_turns": turns.len(), "mean_logprob": mean,
        });
        fields.insert("chosen".to_owned(), why);
    }
    Ok(Some(NewSample {
        turn: chosen,
        reward: Some(0.0),
        baseline_key: baseline_key(
            turn.key.as_deref(),
            session.user.as_deref(),
            after_complaint(journal, &turn, bench.options.combine)?,
        ),
        provenance,
    }))
}

/// The turn with the lowest mean log-prob, and that mean. The earlier of two equal ones.
fn most_informative(turns: &[(TurnId, Vec<f32>)]) -> Option<(TurnId, f64)> {
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
    fn the_least_sure_reply_informs_most() {
        let turns = |means: &[&[f32]]| -> Vec<(TurnId, Vec<f32>)> {
            (1..)
                .map(TurnId)
                .zip(means.iter().map(|m| m.to_vec()))
                .collect()
        };
        let chosen = |means: &[&[f32]]| most_informative(&turns(means)).map(|(turn, _)| turn.0);
        assert_eq!(chosen(&[&[-0.1], &[-2.0, -1.0], &[-1.4]]), Some(2));
        // Length alone informs nothing.
        assert_eq!(chosen(&[&[-0.1; 50], &[-0.2]]), Some(2));
        assert_eq!(chosen(&[&[-0.5], &[-0.5, -0.5]]), Some(1));
        assert_eq!(chosen(&[&[], &[-0.0]]), Some(2));
        assert_eq!(chosen(&[&[]]), None);
    }
}
