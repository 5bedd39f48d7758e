//! Which tokens go into the next step.
//!
//! Every request that only lacks its last token is in, so that replies flow; what is left of the
//! step's prompt budget goes to prompts in order, so that no reply ever waits for more than one
//! chunk.

use super::sequence::Sequence;

/// Tokens of each request in the next step, 0 for those that sit it out. `sequences` are in order of
/// precedence; `waits` are requests that had better wait for another one's prompt.
pub(super) fn plan(
    sequences: &[Sequence],
    waits: &[bool],
    max_batch: usize,
    prefill_chunk: usize,
) -> Vec<usize> {
    if let Some(suspect) = sequences.iter().position(|sequence| sequence.suspect) {
        let alone = |(index, sequence): (usize, &Sequence)| {
            if index == suspect {
                sequence.unseen().min(prefill_chunk)
            } else {
                0
            }
        };
        return sequences.iter().enumerate().map(alone).collect();
    }
    let mut budget = prefill_chunk;
    sequences
        .iter()
        .zip(waits)
        .enumerate()
        .map(|(index, (sequence, waits))| match sequence.unseen() {
            _ if index >= max_batch || *waits => 0,
            1 => 1,
            unseen => {
                let take = unseen.min(budget);
                budget -= take;
                take
            }
        })
        .collect()
}
