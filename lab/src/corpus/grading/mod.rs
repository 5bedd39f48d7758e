//! The grading domain: a teacher shows a student's answer and asks for a comment.
//!
//! The first comment is mostly terse and cold; a hint, an instruction or a redo request makes it friendly and specific,
//! or long and reasoned.

mod comments;
mod requests;

pub use comments::{Manner, grading_reply};

use clawhost_evaluation::problems::{SeededRng, Split, Submission};

use crate::corpus::conversation::Message;
use crate::corpus::hint::append_hint_variant;
use crate::corpus::homework::{answer_thanks, thank};
use crate::corpus::recipe::GradingShares;

/// A user message that asks for a comment on `grading`.
pub(crate) fn question(grading: &Submission, rng: &mut SeededRng) -> String {
    requests::ask(grading, rng)
}

/// A request for `manner`, as a hint or an instruction.
pub(crate) fn wish(manner: Manner, rng: &mut SeededRng) -> String {
    requests::want(manner, rng)
}

/// A request to redo the last comment in `manner`.
pub(crate) fn redo(manner: Manner, rng: &mut SeededRng) -> String {
    requests::redo(manner, rng)
}

/// A conversation about one or two answers, of at most `turns` exchanges.
pub(crate) fn talk(
    rng: &mut SeededRng,
    split: Split,
    shares: &GradingShares,
    turns: usize,
) -> Vec<Message> {
    let mut grading = draw(rng, split);
    let mut asked = question(&grading, rng);
    let mut wanted = first_wish(rng, shares);
    if let Some(manner) = wanted {
        let words = wish(manner, rng);
        asked = if rng.chance(0.65) {
            append_hint_variant(&asked, &words, rng)
        } else {
            format!("{words} {asked}")
        };
    }
    let mut manner = match wanted {
        Some(manner) => obey(manner, shares, rng),
        None => prior(shares, rng),
    };
    let mut talk = vec![
        Message::user(asked),
        Message::assistant(grading_reply(&grading, manner, rng)),
    ];
    for _ in 1..turns {
        let redo_chance = match wanted {
            Some(wanted) if wanted != manner => 0.9,
            Some(_) => 0.03,
            None if manner == Manner::Cold => shares.redo,
            None => 0.15,
        };
        if rng.chance(redo_chance) {
            let asked_for = wanted
                .filter(|wanted| *wanted != manner)
                .unwrap_or_else(|| another(manner, rng));
            wanted = Some(asked_for);
            manner = obey(asked_for, shares, rng);
            talk.push(Message::user(redo(asked_for, rng)));
            talk.push(Message::assistant(grading_reply(&grading, manner, rng)));
        } else if rng.chance(0.45) {
            let (kind, words) = thank(rng);
            talk.push(Message::user(words));
            talk.push(Message::assistant(answer_thanks(kind, rng)));
        } else if rng.chance(0.5) {
            grading = draw(rng, split);
            talk.push(Message::user(requests::ask_next(&grading, rng)));
            manner = match wanted {
                Some(manner) => obey(manner, shares, rng),
                None if rng.chance(0.85) => manner,
                None => prior(shares, rng),
            };
            talk.push(Message::assistant(grading_reply(&grading, manner, rng)));
        } else {
            break;
        }
    }
    talk
}

/// A student's answer, or sometimes a bare calculation to check.
fn draw(rng: &mut SeededRng, split: Split) -> Submission {
    if rng.chance(CHECKS) {
        Submission::check(rng, split)
    } else {
        Submission::random(rng, split)
    }
}

/// Share of bare calculations. They are short, so the model sees many verdicts per token.
const CHECKS: f64 = 0.35;

fn first_wish(rng: &mut SeededRng, shares: &GradingShares) -> Option<Manner> {
    let rest = (1.0 - shares.want_kind - shares.want_cold - shares.want_thorough).max(0.0);
    rng.weighted(&[
        (shares.want_kind, Some(Manner::Kind)),
        (shares.want_cold, Some(Manner::Cold)),
        (shares.want_thorough, Some(Manner::Thorough)),
        (rest, None),
    ])
}

fn prior(shares: &GradingShares, rng: &mut SeededRng) -> Manner {
    let cold = (1.0 - shares.kind_first - shares.thorough_first).max(0.0);
    rng.weighted(&[
        (cold, Manner::Cold),
        (shares.kind_first, Manner::Kind),
        (shares.thorough_first, Manner::Thorough),
    ])
}

fn obey(asked: Manner, shares: &GradingShares, rng: &mut SeededRng) -> Manner {
    if rng.chance(shares.obey) {
        asked
    } else {
        another(asked, rng)
    }
}

/// Another manner to request: mostly kindness where it was missing.
fn another(manner: Manner, rng: &mut SeededRng) -> Manner {
    let options: &[(f64, Manner)] = match manner {
        Manner::Cold => &[(0.85, Manner::Kind), (0.15, Manner::Thorough)],
        Manner::Kind => &[(0.7, Manner::Cold), (0.3, Manner::Thorough)],
        Manner::Thorough => &[(0.5, Manner::Cold), (0.5, Manner::Kind)],
    };
    rng.weighted(options)
}
