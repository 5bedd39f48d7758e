//! The homework domain: a word problem, a reply in one of two styles, and follow-ups.
//!
//! The first reply to a plain question is mostly formatted; a hint, an instruction or a redo request almost always
//! overrides that. Replies after a requested style keep to it.

mod formatted;
mod plain;
mod requests;

use clawhost_evaluation::problems::{Problem, SeededRng, Split};

use crate::corpus::conversation::Message;
use crate::corpus::hint::append_hint_variant;
use crate::corpus::recipe::HomeworkShares;

pub(crate) use requests::{answer_thanks, thank};

/// Style of a homework reply.
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
pub fn homework_reply(problem: &Problem, style: Style, rng: &mut SeededRng) -> String {
    match style {
        Style::Formatted => formatted::reply(problem, rng),
        Style::Plain => plain::reply(problem, rng),
    }
}

/// A user message that asks for help with `problem`.
pub(crate) fn question(problem: &Problem, rng: &mut SeededRng) -> String {
    requests::ask(problem.text(), rng)
}

/// A request for `style`, as a hint or an instruction.
pub(crate) fn wish(style: Style, rng: &mut SeededRng) -> String {
    match style {
        Style::Plain => requests::want_plain(rng),
        Style::Formatted => requests::want_formatted(rng),
    }
}

/// A request to redo the last reply in `style`.
pub(crate) fn redo(style: Style, rng: &mut SeededRng) -> String {
    match style {
        Style::Plain => requests::redo_plain(rng),
        Style::Formatted => requests::redo_formatted(rng),
    }
}

/// A conversation about one to three problems, of at most `turns` exchanges.
pub(crate) fn talk(
    rng: &mut SeededRng,
    split: Split,
    shares: &HomeworkShares,
    turns: usize,
) -> Vec<Message> {
    let mut problem = Problem::random(rng, split);
    let mut asked = question(&problem, rng);
    // The style that the user requested, if any.
    let mut wanted = first_wish(rng, shares);
    if let Some((style, as_hint)) = wanted {
        let words = wish(style, rng);
        asked = if as_hint {
            append_hint_variant(&asked, &words, rng)
        } else {
            beside(&asked, &words, rng)
        };
    }
    let mut style = match wanted {
        Some((style, _)) => obey(style, shares, rng),
        None if rng.chance(shares.plain_first) => Style::Plain,
        None => Style::Formatted,
    };
    let mut talk = vec![
        Message::user(asked),
        Message::assistant(homework_reply(&problem, style, rng)),
    ];
    for _ in 1..turns {
        match follow_up(rng, shares, style, wanted.map(|(style, _)| style)) {
            FollowUp::End => break,
            FollowUp::Redo => {
                let asked_for = style.other();
                wanted = Some((asked_for, false));
                style = obey(asked_for, shares, rng);
                talk.push(Message::user(redo(asked_for, rng)));
                let lead = if style == Style::Plain && rng.chance(0.12) {
                    plain::lead(rng)
                } else {
                    String::new()
                };
                talk.push(Message::assistant(
                    lead + &homework_reply(&problem, style, rng),
                ));
            }
            FollowUp::Thanks => {
                let (kind, words) = thank(rng);
                talk.push(Message::user(words));
                talk.push(Message::assistant(answer_thanks(kind, rng)));
                if rng.chance(0.6) {
                    break;
                }
            }
            FollowUp::Next => {
                problem = Problem::random(rng, split);
                talk.push(Message::user(requests::ask_next(problem.text(), rng)));
                style = match wanted {
                    Some((style, _)) => obey(style, shares, rng),
                    None if rng.chance(0.85) => style,
                    None => style.other(),
                };
                talk.push(Message::assistant(homework_reply(&problem, style, rng)));
            }
        }
    }
    talk
}

/// The style requested in the first message, and whether as a hint; `None` mostly.
fn first_wish(rng: &mut SeededRng, shares: &HomeworkShares) -> Option<(Style, bool)> {
    let plain_hint = shares.hint_plain;
    let plain_ask = plain_hint + shares.ask_plain;
    let formatted_hint = plain_ask + shares.hint_formatted;
    let formatted_ask = formatted_hint + shares.ask_formatted;
    let drawn = rng.unit();
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

fn obey(asked: Style, shares: &HomeworkShares, rng: &mut SeededRng) -> Style {
    if rng.chance(shares.obey) {
        asked
    } else {
        asked.other()
    }
}

/// An instruction before or after the problem.
fn beside(asked: &str, words: &str, rng: &mut SeededRng) -> String {
    if rng.chance(0.3) {
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
    rng: &mut SeededRng,
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
    rng.weighted(&[
        (redo, FollowUp::Redo),
        (rest * 0.45, FollowUp::Thanks),
        (rest * 0.3, FollowUp::Next),
        (rest * 0.25, FollowUp::End),
    ])
}
