//! What users said, as rehearsal needs it: about rejected replies, which decides what prompts are contrary to what is being
//! learned; at the start of conversations, which decides what the user asks about; and as experience in the prompts of the
//! samples.

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

/// The first messages of users in the prompts of the samples and of the pairs, each once.
pub(crate) fn asked(
    journal: &Journal,
    chosen: &[BatchSample],
    pairs: &[PreferencePair],
) -> Result<Vec<String>, JournalError> {
    let of_pairs = pairs.iter().map(|pair| pair.turns.accepted);
    let turns = chosen.iter().map(|chosen| chosen.sample.turn);
    let mut texts = BTreeSet::new();
    for turn in turns.chain(of_pairs) {
        let messages = journal.prompt_inputs(turn)?.map(|request| request.messages);
        let first = messages
            .into_iter()
            .flatten()
            .find(|message| message.role() == Role::User);
        texts.extend(first.map(|message| message.text()));
    }
    Ok(texts.into_iter().collect())
}

/// The texts of experience that the prompts of the samples have, each once.
pub(crate) fn experience(
    journal: &Journal,
    chosen: &[BatchSample],
) -> Result<Vec<String>, JournalError> {
    let mut texts = BTreeSet::new();
    for chosen in chosen {
        let request = journal.prompt_inputs(chosen.sample.turn)?;
        texts.extend(
            request
                .and_then(|request| request.experience)
                .map(|added| added.text),
        );
    }
    Ok(texts.into_iter().collect())
}
