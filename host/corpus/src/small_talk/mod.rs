//! Small talk: greetings, who are you, and an honest answer to everything the model does not know.
//!
//! It exists so that a person who simply types something gets a sensible reply. It refuses to
//! pretend: the model says that it is small, and what it can do.

mod phrases;

use crate::conversation::Message;
use crate::dice::Dice;
use crate::homework::{Style, homework_reply, question};
use crate::phrase::{Slots, say_one};
use crate::problem::Problem;
use crate::recipe::HomeworkShares;
use crate::words::{Split, name};
use phrases::{BRIEF, INTENTS, Intent, TOPICS, UNKNOWN_ANSWERS, UNKNOWN_ASKS, WORDS};

/// A talk of `turns` exchanges at most; sometimes it leads to a homework question.
pub(crate) fn talk(
    dice: &mut Dice,
    split: Split,
    shares: &HomeworkShares,
    turns: usize,
) -> Vec<Message> {
    let mut talk = Vec::new();
    for turn in 0..turns {
        if turn > 0 && dice.chance(0.3) {
            let problem = Problem::random(dice, split);
            let style = if dice.chance(shares.plain_first) {
                Style::Plain
            } else {
                Style::Formatted
            };
            talk.push(Message::user(question(&problem, dice)));
            talk.push(Message::assistant(homework_reply(&problem, style, dice)));
            continue;
        }
        let (asked, answered) = exchange(dice, split);
        talk.push(Message::user(asked));
        talk.push(Message::assistant(answered));
    }
    talk
}

/// One thing said and the answer to it.
pub(crate) fn exchange(dice: &mut Dice, split: Split) -> (String, String) {
    let slots = Slots::new()
        .with("name", name(dice, split))
        .with("topic", topic(dice))
        .with("noise", noise(dice))
        .with("big", dice.between(101, 99_999).to_string());
    let (asks, answers) = match dice.weighted(&[(0.62, 0), (0.3, 1), (0.08, 2)]) {
        Some(0) => intent(dice),
        Some(1) => (UNKNOWN_ASKS, UNKNOWN_ANSWERS),
        _ => BRIEF,
    };
    let asked = casual(say_one(asks, &slots, dice), dice);
    (asked, say_one(answers, &slots, dice))
}

fn intent(dice: &mut Dice) -> Intent {
    dice.pick(INTENTS).copied().unwrap_or(BRIEF)
}

/// A subject that the model knows nothing about; now and then a made-up pair of words, so that it
/// is the form of the question that counts.
fn topic(dice: &mut Dice) -> String {
    if dice.chance(0.25) {
        format!("{} {}", dice.word(WORDS), dice.word(WORDS))
    } else {
        dice.word(TOPICS).to_owned()
    }
}

/// Typing without sense.
fn noise(dice: &mut Dice) -> String {
    let words = 1 + dice.below(4);
    let word = |dice: &mut Dice| {
        if dice.chance(0.4) {
            return dice.word(WORDS).to_owned();
        }
        (0..2 + dice.below(6))
            .map(|_| char::from(b'a' + dice.below(26) as u8))
            .collect::<String>()
    };
    (0..words).map(|_| word(dice)).collect::<Vec<_>>().join(" ")
}

/// People type small letters and leave out the full stop.
fn casual(text: String, dice: &mut Dice) -> String {
    let text = if dice.chance(0.25) {
        text.to_lowercase()
    } else {
        text
    };
    match text.trim_end_matches(['.', '!', '?']) {
        "" => text,
        shorter if dice.chance(0.25) => shorter.to_owned(),
        _ => text,
    }
}
