//! Which tokens go into the next step.
//!
//! Every request that only lacks its last token is in, so that replies flow; then come prompts, several in one step
//! if they are short. What a step costs goes with its tokens, so beside replies that are being written it takes
//! few of prompts: [`BESIDE`], and in a fuller batch [`EACH`] for every request in it. With fewer, most of a full batch
//! would wait for its first token while the others write faster than anybody reads; with more, replies would wait
//! for prompts.

use super::places::own;
use super::sequence::Sequence;
use super::shares::Shares;

/// Prompt tokens in a step beside replies, however few they are: below it prompts get slow and replies hardly faster.
const BESIDE: usize = 32;
/// The same for each running request: 64 conversations of short replies then have 49 that write, 4 would have 56 and 1
/// would have 18.
const EACH: usize = 3;

/// Most prompt tokens in a step beside replies, with so many requests running.
pub(super) fn beside(running: usize, prefill_chunk: usize) -> usize {
    prefill_chunk.min((EACH * running).max(BESIDE))
}

/// Tokens of each request in the next step, 0 for those that sit it out. `sequences` are in order of
/// precedence; `seated` are those that take part.
pub(super) fn plan(
    sequences: &[Sequence],
    seated: &[bool],
    shares: &Shares,
    prefill_chunk: usize,
) -> Vec<usize> {
    let seated = || {
        sequences
            .iter()
            .zip(seated)
            .map(|(one, seated)| (one, *seated))
    };
    let suspect = seated().position(|(one, seated)| one.suspect && seated);
    if let Some(suspect) = suspect {
        let alone = |(index, sequence): (usize, &Sequence)| {
            if index == suspect {
                sequence.unseen().min(prefill_chunk)
            } else {
                0
            }
        };
        return sequences.iter().enumerate().map(alone).collect();
    }
    let replies = |(one, seated): (&Sequence, bool)| usize::from(seated && one.unseen() == 1);
    let mut counts: Vec<usize> = seated().map(replies).collect();
    let replies: usize = counts.iter().sum();
    let mut budget = if replies == 0 {
        prefill_chunk
    } else {
        beside(sequences.len(), prefill_chunk)
    };
    let mut prompts: Vec<(usize, &Sequence)> = seated()
        .enumerate()
        .filter(|(_, (one, seated))| *seated && one.unseen() > 1)
        .map(|(index, (one, _))| (index, one))
        .collect();
    prompts.sort_by_key(|(_, one)| (one.priority, shares.of(&one.user), one.order));
    let mut lower: usize = prompts.iter().map(|(_, one)| one.unseen()).sum();
    for equals in prompts.chunk_by(|(_, one), (_, other)| one.priority == other.priority) {
        lower -= equals.iter().map(|(_, one)| one.unseen()).sum::<usize>();
        let mut room = own(budget, lower);
        for (index, one) in equals {
            let take = one.unseen().min(room);
            room -= take;
            budget -= take;
            if let Some(count) = counts.get_mut(*index) {
                *count = take;
            }
        }
    }
    counts
}
