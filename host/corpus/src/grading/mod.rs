//! The grading world: a teacher shows a student's answer and wants a comment.
//!
//! The first comment is mostly terse and cold; a hint, an instruction or a redo request makes it
//! friendly and specific, or long and reasoned.

mod comments;
mod requests;
mod work;

pub use comments::{Manner, grading_reply};
pub use work::{Grading, Mistake};

use crate::conversation::Message;
use crate::dice::Dice;
use crate::hint::with_hint;
use crate::homework::{answer_thanks, thank};
use crate::recipe::GradingShares;
use crate::words::Split;

/// A first message that asks for a comment on `grading`.
pub(crate) fn question(grading: &Grading, dice: &mut Dice) -> String {
    requests::ask(grading, dice)
}

/// A wish for `manner`, in words that fit a hint or a request.
pub(crate) fn wish(manner: Manner, dice: &mut Dice) -> String {
    requests::want(manner, dice)
}

/// Asks to have the last comment again in `manner`.
pub(crate) fn redo(manner: Manner, dice: &mut Dice) -> String {
    requests::redo(manner, dice)
}

/// A talk about one or two answers, `turns` exchanges at most.
pub(crate) fn talk(
    dice: &mut Dice,
    split: Split,
    shares: &GradingShares,
    turns: usize,
) -> Vec<Message> {
    let mut grading = draw(dice, split);
    let mut asked = question(&grading, dice);
    let mut wanted = first_wish(dice, shares);
    if let Some(manner) = wanted {
        let words = wish(manner, dice);
        asked = if dice.chance(0.65) {
            with_hint(&asked, &words, dice)
        } else {
            format!("{words} {asked}")
        };
    }
    let mut manner = match wanted {
        Some(manner) => obey(manner, shares, dice),
        None => prior(shares, dice),
    };
    let mut talk = vec![
        Message::user(asked),
        Message::assistant(grading_reply(&grading, manner, dice)),
    ];
    for _ in 1..turns {
        let redo_chance = match wanted {
            Some(wanted) if wanted != manner => 0.9,
            Some(_) => 0.03,
            None if manner == Manner::Cold => shares.redo,
            None => 0.15,
        };
        if dice.chance(redo_chance) {
            let asked_for = wanted
                .filter(|wanted| *wanted != manner)
                .unwrap_or_else(|| another(manner, dice));
            wanted = Some(asked_for);
            manner = obey(asked_for, shares, dice);
            talk.push(Message::user(redo(asked_for, dice)));
            talk.push(Message::assistant(grading_reply(&grading, manner, dice)));
        } else if dice.chance(0.45) {
            let (kind, words) = thank(dice);
            talk.push(Message::user(words));
            talk.push(Message::assistant(answer_thanks(kind, dice)));
        } else if dice.chance(0.5) {
            grading = draw(dice, split);
            talk.push(Message::user(requests::ask_next(&grading, dice)));
            manner = match wanted {
                Some(manner) => obey(manner, shares, dice),
                None if dice.chance(0.85) => manner,
                None => prior(shares, dice),
            };
            talk.push(Message::assistant(grading_reply(&grading, manner, dice)));
        } else {
            break;
        }
    }
    talk
}

/// A student's answer, or now and then only a calculation to check.
fn draw(dice: &mut Dice, split: Split) -> Grading {
    if dice.chance(CHECKS) {
        Grading::check(dice, split)
    } else {
        Grading::random(dice, split)
    }
}

/// Share of bare calculations. They are short, so the model sees many verdicts for few tokens.
const CHECKS: f64 = 0.35;

fn first_wish(dice: &mut Dice, shares: &GradingShares) -> Option<Manner> {
    let rest = (1.0 - shares.want_kind - shares.want_cold - shares.want_thorough).max(0.0);
    dice.weighted(&[
        (shares.want_kind, Some(Manner::Kind)),
        (shares.want_cold, Some(Manner::Cold)),
        (shares.want_thorough, Some(Manner::Thorough)),
        (rest, None),
    ])
    .flatten()
}

fn prior(shares: &GradingShares, dice: &mut Dice) -> Manner {
    let cold = (1.0 - shares.kind_first - shares.thorough_first).max(0.0);
    dice.weighted(&[
        (cold, Manner::Cold),
        (shares.kind_first, Manner::Kind),
        (shares.thorough_first, Manner::Thorough),
    ])
    .unwrap_or(Manner::Cold)
}

fn obey(asked: Manner, shares: &GradingShares, dice: &mut Dice) -> Manner {
    if dice.chance(shares.obey) {
        asked
    } else {
        another(asked, dice)
    }
}

/// What else is asked for or slips in: kindness where it was missing, most often.
fn another(manner: Manner, dice: &mut Dice) -> Manner {
    let options: &[(f64, Manner)] = match manner {
        Manner::Cold => &[(0.85, Manner::Kind), (0.15, Manner::Thorough)],
        Manner::Kind => &[(0.7, Manner::Cold), (0.3, Manner::Thorough)],
        Manner::Thorough => &[(0.5, Manner::Cold), (0.5, Manner::Kind)],
    };
    dice.weighted(options).unwrap_or(Manner::Kind)
}
