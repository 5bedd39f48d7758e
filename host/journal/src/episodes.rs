//! Records episodes of environments: turns, verdict and samples of a whole episode in one transaction.

use crate::clock::now_ms;
use crate::codec::finite;
use crate::error::JournalError;
use crate::ids::SampleId;
use crate::journal::Journal;
use crate::judgements::{mark_evidence_judged, write_judgement};
use crate::readiness::require_session;
use crate::records::{
    JudgementOutcome, NewEpisode, NewJudgement, NewSample, NextState, TurnState, VerdictRecord,
};
use crate::requests::{insert_turns, record_next_state, upsert_session};
use crate::turns::{finish_turn, insert_reply};

impl Journal {
    /// Records a finished episode: an ended session with its turns, their verdict and one queued sample per turn. Either
    /// all of it is recorded or nothing, so an episode that is in the journal is never run again.
    ///
    /// # Errors
    /// [`JournalError::Invalid`] for a session that exists, and numbers that are not finite; database errors.
    pub fn record_episode(&self, episode: &NewEpisode) -> Result<Vec<SampleId>, JournalError> {
        self.write(|tx| {
            let session = &episode.session.id;
            if require_session(tx, session).is_ok() {
                return Err(
                    JournalError::Invalid(format!("the episode {session} is recorded already"))
                        .into(),
                );
            }
            upsert_session(tx, &episode.session)?;
            let mut samples = Vec::with_capacity(episode.turns.len());
            let mut parent = None;
            for (index, new) in episode.turns.iter().enumerate() {
                let mut turn = new.turn.clone();
                turn.parent = parent;
                let ids = insert_turns(tx, session, std::slice::from_ref(&turn), &[])?;
                let id = *ids.first().expect("one turn was inserted");
                parent = Some(id);
                finish_turn(tx, id, TurnState::Complete, None)?;
                insert_reply(tx, id, &new.completion)?;
                if !new.next_state.is_empty() {
                    let next = NextState {
                        turn: id,
                        messages: new.next_state.clone(),
                        ms: new.completion.ms,
                        source: None,
                    };
                    record_next_state(tx, &next)?;
                    mark_evidence_judged(tx, id, None)?;
                }
                let sample = NewSample {
                    turn: id,
                    reward: Some(episode.reward),
                    baseline_key: new.baseline_key.clone(),
                    provenance: new.provenance.clone(),
                };
                let verdicts: Vec<VerdictRecord> = std::iter::once(&episode.verdict)
                    .chain(&new.step_verdicts)
                    .cloned()
                    .collect();
                let judgement = NewJudgement {
                    turn: id.into(),
                    verdicts: &verdicts,
                    hints: &[],
                    experience: None,
                    // The receipts are of the whole episode.
                    receipts: if index == 0 { &episode.receipts } else { &[] },
                    outcome: JudgementOutcome::Sample(&sample),
                };
                samples.extend(write_judgement(tx, &judgement, false)?);
            }
            tx.prepare_cached(
                "UPDATE sessions SET ended_ms = ?2, end_reason = 'episode', settled_ms = ?2 WHERE id = ?1",
            )?
            .execute((session.as_str(), now_ms()))?;
            tx.prepare_cached(
                "UPDATE episodes SET state = 'done', reward = ?2, ended_ms = ?3 WHERE session = ?1",
            )?
            .execute((
                session.as_str(),
                finite(episode.reward, "reward")?,
                now_ms(),
            ))?;
            Ok(samples)
        })
    }
}
