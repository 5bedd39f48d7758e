//! Collecting from live traffic: which session a request belongs to, which older turn it answers, what it answers it
//! with, what is a retry, and when a session is over.
//!
//! It works for a client that sends no header at all: continuity is anchored on our own replies, and on what the user said
//! where a client leaves them out. It refuses to guess
//! silently (every turn carries the reason of its match), to drop a turn because it looks like a side request, to keep
//! anything in memory that a restart would lose, and to score or train: it only writes what was seen to the journal.
//!
//! | module | idea |
//! |---|---|
//! | `normalise` | what of a message survives a client's reformatting |
//! | `anchor` | digests of a reply and of a request |
//! | `likeness` | how alike two texts are when a client decorates them |
//! | `history` | how much of two histories agrees |
//! | `lookup` | the questions put to the journal, all answered by an index |
//! | `matching` | the turn whose reply a request continues |
//! | `ephemeral` | trailing messages that a client replaces in each request |
//! | `loose` | what of a text survives being rendered |
//! | `user_side` | the turn that a request continues, by what the user said, where our reply is not there as given |
//! | `doubt` | requests that are shaped unlike their conversation wait for proof |
//! | `rivals` | several requests that go on from one reply |
//! | `retry` | the same request again |
//! | `following` | the next state: what came after our reply |
//! | `deciding` | continue, fork, retry or new, with the reason |
//! | `opening` | the same for requests without a reply of ours |
//! | `handing` | next states handed out, at once or when the proof has come, and corrected by later evidence |
//! | `collecting` | [`Sessions`]: arrivals, completions, ends |
//! | `idle` | ends sessions that nobody talks to any more |
//! | `unrecorded` | ends of turns that a full disk refused, until it takes them |
//! | `asked` | what a person asked in a turn |
//! | `explain` | tells a person what became of each turn, and why |
//! | `corrections` | what it says of next states that are doubtful or were retracted |
//! | `steps` | tells which samples a training step was made of, and what each moved |

mod anchor;
mod asked;
mod collecting;
mod corrections;
mod deciding;
mod doubt;
mod ephemeral;
mod error;
mod explain;
mod following;
mod handing;
mod history;
mod idle;
mod likeness;
mod lookup;
mod loose;
mod matching;
mod narrowing;
mod normalise;
mod opening;
mod options;
mod request;
mod retry;
mod rivals;
mod steps;
mod unrecorded;
mod user_side;

pub use anchor::reply_anchor;
pub use collecting::Sessions;
pub use error::SessionError;
pub use options::SessionOptions;
pub use request::{Arrived, Incoming, MALFORMED_CALLS, Reply};
