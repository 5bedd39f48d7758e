//! The token budget of the next step: decode tokens first, then chunked prefill.
//!
//! Every decoding request gets its one token, so replies keep streaming; the rest of the budget goes to prompts,
//! several per step if they are short. The cost of a step grows with its tokens, so a step in which the reply to a client
//! gets a token takes few prefill tokens: [`MIN_PREFILL_BUDGET`], or [`PREFILL_TOKENS_PER_RUNNING`] per running request in
//! a fuller batch. With a smaller budget most of a full batch would wait for its first token while the others stream
//! faster than anyone reads; with a larger one decoding would stall behind prefill. Nobody reads the replies of judges
//! and training as they grow, so beside these prompts have the whole chunk.

use super::batch_slots::quota;
use super::fair_share::FairShare;
use super::options::Priority;
use super::sequence::Sequence;

/// Minimum prefill tokens in a step that also decodes for a client: below this, prefill slows down and decoding hardly gains.
const MIN_PREFILL_BUDGET: usize = 32;
/// Prefill tokens per running request in a step that also decodes for a client. With 64 conversations of short replies, 3 keeps 49
/// of them decoding; 4 would keep 56, 1 would keep 18.
const PREFILL_TOKENS_PER_RUNNING: usize = 3;

/// Maximum prefill tokens in a step that also decodes for a client, with `running` requests.
pub(super) fn prefill_budget(running: usize, prefill_chunk: usize) -> usize {
    prefill_chunk.min((PREFILL_TOKENS_PER_RUNNING * running).max(MIN_PREFILL_BUDGET))
}

/// Number of tokens of each request in the next step; 0 for requests that are not in it. `sequences` are in order of
/// precedence; `scheduled` marks those that have a batch slot and KV-cache blocks. While a request is isolated after a
/// failed step, it runs alone.
pub(super) fn schedule_tokens(
    sequences: &[Sequence],
    scheduled: &[bool],
    fair_share: &FairShare,
    prefill_chunk: usize,
) -> Vec<usize> {
    let candidates = || {
        sequences
            .iter()
            .zip(scheduled)
            .map(|(one, scheduled)| (one, *scheduled))
    };
    let isolated = candidates().position(|(one, scheduled)| one.isolated && scheduled);
    if let Some(isolated) = isolated {
        let alone = |(index, sequence): (usize, &Sequence)| {
            if index == isolated {
                sequence.uncomputed_tokens().min(prefill_chunk)
            } else {
                0
            }
        };
        return sequences.iter().enumerate().map(alone).collect();
    }
    let decodes = |(one, scheduled): (&Sequence, bool)| scheduled && one.uncomputed_tokens() == 1;
    let mut counts: Vec<usize> = candidates().map(|one| usize::from(decodes(one))).collect();
    let is_streamed = candidates()
        .filter(|one| decodes(*one))
        .any(|(one, _)| one.priority == Priority::Interactive);
    let mut budget = if is_streamed {
        prefill_budget(sequences.len(), prefill_chunk)
    } else {
        prefill_chunk
    };
    let mut prompts: Vec<(usize, &Sequence)> = candidates()
        .enumerate()
        .filter(|(_, (one, scheduled))| *scheduled && one.uncomputed_tokens() > 1)
        .map(|(index, (one, _))| (index, one))
        .collect();
    prompts.sort_by_key(|(_, one)| (one.priority, fair_share.usage(&one.user), one.arrival));
    let mut lower: usize = prompts.iter().map(|(_, one)| one.uncomputed_tokens()).sum();
    for group in prompts.chunk_by(|(_, one), (_, other)| one.priority == other.priority) {
        lower -= group
            .iter()
            .map(|(_, one)| one.uncomputed_tokens())
            .sum::<usize>();
        let mut room = quota(budget, lower);
        for (index, one) in group {
            let take = one.uncomputed_tokens().min(room);
            room -= take;
            budget -= take;
            counts[*index] = take;
        }
    }
    counts
}
