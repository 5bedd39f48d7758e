//! Where an English reading has to be dropped or turned, so that a verdict is rare but right.
//!
//! The rules before it look for words. This module looks at what surrounds them: praise with something left to say, thanks
//! that are part of a task, blame inside a question or a report, a denied complaint, and the speaker's own mistake. It adds
//! no reading to a reaction without cues; `facts` does.

mod clauses;
mod negative;
mod positive;
mod wishes;

pub(crate) use clauses::{owns_mistake, reports_deed, speaks_of_self};

use crate::reading::{Kind, Reading};
use crate::seen::Seen;

/// The reading that remains of `reading`.
pub(crate) fn settle(reading: Reading, seen: &Seen) -> Option<Reading> {
    let clauses = seen.speech.clauses();
    if reading.score > 0.0 {
        positive::settle(reading, seen, &clauses)
    } else {
        negative::settle(reading, seen, &clauses)
    }
}

fn accepted(why: &str) -> Reading {
    Reading {
        score: 1.0,
        kind: Kind::Acceptance,
        reason: format!("{}: {why}", Kind::Acceptance.name()),
        is_concrete: false,
    }
}

fn turned(kind: Kind, why: &str, is_concrete: bool) -> Reading {
    Reading {
        score: -1.0,
        kind,
        reason: format!("{}: {why}", kind.name()),
        is_concrete,
    }
}
