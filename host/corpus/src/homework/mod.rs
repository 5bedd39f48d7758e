//! The homework world: a word problem, a reply in one of two styles, and what people say next.
//!
//! The first reply to a plain question is mostly formatted; a hint, an instruction or a redo
//! request decides otherwise almost always. Replies after a wish was spoken keep to it.

mod formatted;
mod plain;
mod requests;

use crate::conversation::Message;
use crate::dice::Dice;
use crate::hint::with_hint;
use crate::problem::Problem;
use crate::recipe::HomeworkShares;
use crate::words::Split;

pub(crate) use requests::{answer_thanks, thank};

/// How a homework reply is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Style {
    /// Bold, lists, headings, banners.
    Formatted,
    /// Sentences only.
    Plain,
}

impl Style {
    fn other(self) -> Self {
        match self {
            Self::Formatted => Self::Plain,
            Self::Plain => Self::Formatted,
        }
    }
}

/// A reply to `problem` in `style`.
pub fn homework_reply(problem: &Problem, style: Style, dice: &mut Dice) -> String {
    match style {
        Style::Formatted => formatted::reply(problem, dice),
        Style::Plain => plain::reply(problem, dice),
    }
}

/// A first message that asks for help with `problem`.
pub(crate) fn question(problem: &Problem, dice: &mut Dice) -> String {
    requests::ask(problem.text(), dice)
}

/// A wish for `style`, in words that fit a hint or a request.
pub(crate) fn wish(style: Style, dice: &mut Dice) -> String {
    match style {
        Style::Plain => requests::want_plain(dice),
        Style::Formatted => requests::want_formatted(dice),
    }
}

/// Asks to have the last reply again in `style`.
pub(crate) fn redo(style: Style, dice: &mut Dice) -> String {
    match style {
        Style::Plain => requests::redo_plain(dice),
        Style::Formatted => requests::redo_formatted(dice),
    }
}

/// A talk about one to three problems, `turns` exchanges at most.
pub(crate) fn talk(
    dice: &mut Dice,
    split: Split,
    shares: &HomeworkShares,
    turns: usize,
) -> Vec<Message> {
    let mut problem = Problem::random(dice, split);
    let mut asked = question(&problem, dice);
    // What the person said they want, if they said it.
    let mut wanted = first_wish(dice, shares);
    if let Some((style, as_hint)) = wanted {
        let words = wish(style, dice);
        asked = if as_hint {
            with_hint(&asked, &words, dice)
        } else {
            beside(&asked, &words, dice)
        };
    }
    let mut style = match wanted {
        Some((style, _)) => obey(style, shares, dice),
        None if dice.chance(shares.plain_first) => Style::Plain,
        None => Style::Formatted,
    };
    let mut talk = vec![
        Message::user(asked),
        Message::assistant(homework_reply(&problem, style, dice)),
    ];
    for _ in 1..turns {
        match follow_up(dice, shares, style, wanted.map(|(style, _)| style)) {
            FollowUp::End => break,
            FollowUp::Redo => {
                let asked_for = style.other();
                wanted = Some((asked_for, false));
                style = obey(asked_for, shares, dice);
                talk.push(Message::user(redo(asked_for, dice)));
                let lead = if style == Style::Plain && dice.chance(0.12) {
                    plain::lead(dice)
                } else {
                    String::new()
                };
                talk.push(Message::assistant(
                    lead + &homework_reply(&problem, style, dice),
                ));
            }
            FollowUp::Thanks => {
                let (kind, words) = thank(dice);
                talk.push(Message::user(words));
                talk.push(Message::assistant(answer_thanks(kind, dice)));
                if dice.chance(0.6) {
                    break;
                }
            }
            FollowUp::Next => {
                problem = Problem::random(dice, split);
                talk.push(Message::user(requests::ask_next(problem.text(), dice)));
                style = match wanted {
                    Some((style, _)) => obey(style, shares, dice),
                    None if dice.chance(0.85) => style,
                    None => style.other(),
                };
                talk.push(Message::assistant(homework_reply(&problem, style, dice)));
            }
        }
    }
    talk
}

/// The style wished for in the first message, and whether as a hint; `None` for most.
fn first_wish(dice: &mut Dice, shares: &HomeworkShares) -> Option<(Style, bool)> {
    let plain_hint = shares.hint_plain;
    let plain_ask = plain_hint + shares.ask_plain;
    let formatted_hint = plain_ask + shares.hint_formatted;
    let formatted_ask = formatted_hint + shares.ask_formatted;
    let drawn = dice.unit();
    [
        (plain_hint, (Style::Plain, true)),
        (plain_ask, (Style::Plain, false)),
        (formatted_hint, (Style::Formatted, true)),
        (formatted_ask, (Style::Formatted, false)),
    ]
    .into_iter()
    .find(|(below, _)| drawn < *below)
    .map(|(_, wish)| wish)
}

fn obey(asked: Style, shares: &HomeworkShares, dice: &mut Dice) -> Style {
    if dice.chance(shares.obey) {
        asked
    } else {
        asked.other()
    }
}

/// An instruction beside the problem, before or after it.
fn beside(asked: &str, words: &str, dice: &mut Dice) -> String {
    if dice.chance(0.3) {
        format!("{words} {asked}")
    } else {
        format!("{asked} {words}")
    }
}

#[derive(Debug, Clone, Copy)]
enum FollowUp {
    Redo,
    Thanks,
    Next,
    End,
}

fn follow_up(
    dice: &mut Dice,
    shares: &HomeworkShares,
    style: Style,
    wanted: Option<Style>,
) -> FollowUp {
    let unmet = wanted.is_some_and(|wanted| wanted != style);
    let met = wanted == Some(style);
    let redo = match style {
        _ if unmet => 0.9,
        _ if met => 0.03,
        Style::Formatted => shares.redo_plain,
        Style::Plain => shares.redo_formatted,
    };
    let rest = 1.0 - redo;
    dice.weighted(&[
        (redo, FollowUp::Redo),
        (rest * 0.45, FollowUp::Thanks),
        (rest * 0.3, FollowUp::Next),
        (rest * 0.25, FollowUp::End),
    ])
    .unwrap_or(FollowUp::End)
}
