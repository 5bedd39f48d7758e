//! Small talk: greetings, questions about the model, and honest answers to unknown subjects.
//!
//! Gives users who simply type something a sensible reply: the model says that it is small, and what it can do.

mod phrases;

use clawhost_evaluation::problems::phrase::{Slots, render_one};
use clawhost_evaluation::problems::{Problem, SeededRng, Split, name};

use crate::corpus::conversation::Message;
use crate::corpus::homework::{Style, homework_reply, question};
use crate::corpus::recipe::HomeworkShares;
use phrases::{BRIEF, INTENTS, Intent, TOPICS, UNKNOWN_ANSWERS, UNKNOWN_ASKS, WORDS};

/// A conversation of at most `turns` exchanges; sometimes it leads to a homework question.
pub(crate) fn talk(
    rng: &mut SeededRng,
    split: Split,
    shares: &HomeworkShares,
    turns: usize,
) -> Vec<Message> {
    let mut talk = Vec::new();
    for turn in 0..turns {
        if turn > 0 && rng.chance(0.3) {
            let problem = Problem::random(rng, split);
            let style = if rng.chance(shares.plain_first) {
                Style::Plain
            } else {
                Style::Formatted
            };
            talk.push(Message::user(question(&problem, rng)));
            talk.push(Message::assistant(homework_reply(&problem, style, rng)));
            continue;
        }
        let (asked, answered) = exchange(rng, split);
        talk.push(Message::user(asked));
        talk.push(Message::assistant(answered));
    }
    talk
}

/// A user message and its reply.
pub(crate) fn exchange(rng: &mut SeededRng, split: Split) -> (String, String) {
    let slots = Slots::new()
        .with("name", name(rng, split))
        .with("topic", topic(rng))
        .with("noise", noise(rng))
        .with("big", rng.between(101, 99_999).to_string());
    let (asks, answers) = match rng.weighted(&[(0.62, 0), (0.3, 1), (0.08, 2)]) {
        0 => intent(rng),
        1 => (UNKNOWN_ASKS, UNKNOWN_ANSWERS),
        _ => BRIEF,
    };
    let asked = casual_case(render_one(asks, &slots, rng), rng);
    (asked, render_one(answers, &slots, rng))
}

fn intent(rng: &mut SeededRng) -> Intent {
    *rng.pick(INTENTS)
}

/// A subject unknown to the model; sometimes a made-up pair of words, so that the form of the question matters.
fn topic(rng: &mut SeededRng) -> String {
    if rng.chance(0.25) {
        format!("{} {}", rng.word(WORDS), rng.word(WORDS))
    } else {
        rng.word(TOPICS).to_owned()
    }
}

/// Random typing.
fn noise(rng: &mut SeededRng) -> String {
    let words = 1 + rng.below(4);
    let word = |rng: &mut SeededRng| {
        if rng.chance(0.4) {
            return rng.word(WORDS).to_owned();
        }
        (0..2 + rng.below(6))
            .map(|_| char::from(b'a' + rng.below(26) as u8))
            .collect::<String>()
    };
    (0..words).map(|_| word(rng)).collect::<Vec<_>>().join(" ")
}

/// Lower case and without the full stop, like casual users.
fn casual_case(text: String, rng: &mut SeededRng) -> String {
    let text = if rng.chance(0.25) {
        text.to_lowercase()
    } else {
        text
    };
    match text.trim_end_matches(['.', '!', '?']) {
        "" => text,
        shorter if rng.chance(0.25) => shorter.to_owned(),
        _ => text,
    }
}
