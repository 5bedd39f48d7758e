//! What users said about rejected replies: it decides which rehearsal prompts are contrary to what is being learned.

use std::collections::BTreeSet;

use clawhost_chat::Role;
use clawhost_journal::{Journal, JournalError, PreferencePair, TurnId};

use crate::batch_sample::BatchSample;

/// The hints of the samples, and the messages that followed the rejected replies among the samples and the pairs.
pub(crate) fn feedback(
    journal: &Journal,
    chosen: &[BatchSample],
    pairs: &[PreferencePair],
) -> Result<Vec<String>, JournalError> {
    let hints = chosen.iter().flat_map(|chosen| &chosen.sample.hints);
    let mut texts: Vec<String> = hints.map(|hint| hint.text.clone()).collect();
    let rejected = chosen
        .iter()
        .filter(|chosen| chosen.sample.reward.is_some_and(|reward| reward < 0.0))
        .map(|chosen| chosen.sample.turn);
    let of_pairs = pairs.iter().flat_map(|pair| {
        let first = pair.turns.rejected.into_iter();
        first.chain(pair.turns.also_rejected.iter().copied())
    });
    let turns: BTreeSet<TurnId> = rejected.chain(of_pairs).collect();
    for turn in turns {
        // A turn that was forgotten meanwhile says nothing.
        let next = journal.turn(turn)?.and_then(|turn| turn.next_state);
        let messages = next.into_iter().flatten();
        texts.extend(
            messages
                .filter(|m| m.role() == Role::User)
                .map(|m| m.text()),
        );
    }
    Ok(texts)
}
