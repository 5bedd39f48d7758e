//! The questions that people with wishes ask: two parts, so that what is measured afterwards was never talked about.

use rand_chacha::ChaCha8Rng;

use super::question::Question;
use super::spec::Topic;
use crate::seeds::choose;

/// Which questions are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// In the conversations.
    Talk,
    /// For measurement only.
    HeldOut,
}

/// The questions of a topic.
pub(super) fn questions(topic: Topic, part: Part) -> Vec<Question> {
    let lines = match (topic, part) {
        (Topic::Everyday, Part::Talk) => EVERYDAY,
        (Topic::Everyday, Part::HeldOut) => EVERYDAY_HELD_OUT,
        (Topic::Quantities, Part::Talk) => QUANTITIES,
        (Topic::Quantities, Part::HeldOut) => QUANTITIES_HELD_OUT,
        (Topic::Programs, Part::Talk) => PROGRAMS,
        (Topic::Programs, Part::HeldOut) => PROGRAMS_HELD_OUT,
    };
    lines.lines().map(Question::parse).collect()
}

/// A greeting before a question, often none.
pub(super) fn greeting(rng: &mut ChaCha8Rng) -> &'static str {
    const GREETINGS: &[&str] = &[
        "",
        "",
        "",
        "Hi! ",
        "Hello. ",
        "Hey there, ",
        "Good evening. ",
        "One question: ",
        "Tell me, ",
        "I was wondering: ",
    ];
    choose::<&'static str>(rng, GREETINGS)
}

const EVERYDAY: &str = include_str!("questions/everyday.txt");
const EVERYDAY_HELD_OUT: &str = include_str!("questions/everyday_held_out.txt");
const QUANTITIES: &str = include_str!("questions/quantities.txt");
const QUANTITIES_HELD_OUT: &str = include_str!("questions/quantities_held_out.txt");
const PROGRAMS: &str = include_str!("questions/programs.txt");
const PROGRAMS_HELD_OUT: &str = include_str!("questions/programs_held_out.txt");

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const TOPICS: [Topic; 3] = [Topic::Everyday, Topic::Quantities, Topic::Programs];

    #[test]
    fn questions_are_distinct_and_their_parts_disjoint() {
        let mut seen = HashSet::new();
        for topic in TOPICS {
            for part in [Part::Talk, Part::HeldOut] {
                for question in questions(topic, part) {
                    let text = question.text();
                    assert!(text.ends_with(['?', '.']), "{text:?}");
                    assert!(seen.insert(text), "{text:?}");
                }
            }
        }
        let everyday = |part| questions(Topic::Everyday, part).len();
        assert!(everyday(Part::Talk) + everyday(Part::HeldOut) >= 120);
        assert!(everyday(Part::HeldOut) >= 64);
    }

    #[test]
    fn no_question_states_a_wish() {
        for topic in TOPICS {
            for part in [Part::Talk, Part::HeldOut] {
                for question in questions(topic, part) {
                    let question = question.text().to_lowercase();
                    for word in [
                        "short answer",
                        "one sentence",
                        "bullet",
                        "french",
                        "spanish",
                        "formal",
                        "metric",
                        "captain",
                        "robin",
                        "explain",
                    ] {
                        assert!(!question.contains(word), "{question:?}: {word}");
                    }
                }
            }
        }
    }
}
