//! A person with one wish: asks an everyday question, complains until the reply meets the wish, then says thanks.

use super::questions::{Part, greeting, questions};
use super::{Question, Wish};
use crate::persona::{Key, Persona, Phase, Reaction, Task};
use crate::seeds::{Purpose, choose, derive, generator};

/// A person with one wish, or with its opposite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Person {
    /// Name in the report.
    pub(crate) name: &'static str,
    /// The wish.
    pub(crate) wish: Wish,
    /// The conversation, counted from 0, from which on the person wants the opposite. None: never.
    pub(crate) reversed_from: Option<usize>,
}

/// Satisfied with a reply of this score.
const SATISFIED: f64 = 1.0;

impl Person {
    fn ask(self, question: Question, wording: u64, reversed: bool) -> Task {
        let mut rng = generator(wording);
        Task {
            opening: format!("{}{}", greeting(&mut rng), question.text()),
            key: Key::Wish {
                wish: self.wish,
                reversed,
                question,
            },
        }
    }
}

impl Persona for Person {
    fn name(&self) -> &'static str {
        self.name
    }

    fn begin(&self, task: u64, wording: u64) -> Task {
        let questions = questions(self.wish.spec().topic, Part::Talk);
        let question = *choose(&mut generator(task), &questions);
        self.ask(question, wording, false)
    }

    /// Questions in the order of a permutation that the seed decides, so none is repeated before all were asked.
    fn task(&self, seed: u64, number: usize, phase: Phase) -> Task {
        let (part, purpose, reversed) = match (phase, self.reversed_from) {
            (Phase::Talk, at) => (
                Part::Talk,
                Purpose::Wording,
                at.is_some_and(|at| number >= at),
            ),
            (Phase::Fresh, at) => (Part::HeldOut, Purpose::FreshWording, at.is_some()),
        };
        let mut questions = questions(self.wish.spec().topic, part);
        let round = (number / questions.len()) as u64;
        shuffle(
            &mut questions,
            derive(seed, round, Purpose::Task, u64::from(part == Part::HeldOut)),
        );
        let question = questions[number % questions.len()];
        self.ask(question, derive(seed, number as u64, purpose, 0), reversed)
    }

    fn react(&self, task: &Task, reply: &str, wording: u64, last: bool) -> Reaction {
        let Key::Wish {
            wish,
            reversed,
            question,
        } = task.key
        else {
            unreachable!("a person with a wish asks the questions of that wish");
        };
        let spec = wish.spec();
        let mut rng = generator(wording);
        let (form, complaints) = if reversed {
            (wish.opposite_form(reply), spec.takes_back)
        } else {
            (wish.form(reply), spec.complaints)
        };
        let has_form = form >= SATISFIED;
        if has_form && question.is_answered_by(reply) {
            let thanks = if reversed { THANKS } else { spec.thanks };
            return Reaction::Content((*choose(&mut rng, thanks)).to_owned());
        }
        if last {
            return Reaction::GiveUp((*choose(&mut rng, GIVES_UP)).to_owned());
        }
        let complaints = if has_form { NOT_ANSWERED } else { complaints };
        Reaction::Rewrite((*choose(&mut rng, complaints)).to_owned())
    }
}

/// A random permutation (Fisher and Yates).
fn shuffle(questions: &mut [Question], seed: u64) {
    let mut rng = generator(seed);
    for end in (1..questions.len()).rev() {
        let places: Vec<usize> = (0..=end).collect();
        questions.swap(end, *choose(&mut rng, &places));
    }
}

const THANKS: &[&str] = &[
    "Thank you, much better.",
    "Good, thanks.",
    "Thanks, that is what I meant.",
];
/// About a reply that has the form and says nothing about the question.
const NOT_ANSWERED: &[&str] = &[
    "That doesn't answer my question.",
    "You didn't say anything about what I asked.",
    "That is not an answer to what I asked.",
    "Sorry, but that has nothing to do with my question.",
];
const GIVES_UP: &[&str] = &[
    "No, that is still not it. Never mind.",
    "Still not how I want it. I'll leave it.",
    "That doesn't help me. Forget it.",
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const LONG: &str = "The sky is blue because the air scatters the short waves of the light of the sun far more than its \
        long waves, so that blue light comes from everywhere above us while red light passes straight on to the ground.";

    fn person(wish: Wish) -> Person {
        Person {
            name: wish.name(),
            wish,
            reversed_from: None,
        }
    }

    #[test]
    fn complaints_until_the_wish_is_met_and_then_thanks() {
        let person = person(Wish::Short);
        let task = person.begin(1, 2);
        let mut complaints = HashSet::new();
        for wording in 0..50 {
            match person.react(&task, LONG, wording, false) {
                Reaction::Rewrite(text) => complaints.insert(text),
                other => panic!("{other:?}"),
            };
            assert!(matches!(
                person.react(&task, LONG, wording, true),
                Reaction::GiveUp(_)
            ));
            let Key::Wish { question, .. } = task.key else {
                panic!("{task:?}");
            };
            let answer = format!("In a word, {} green tea.", question.text());
            let content = person.react(&task, &answer, wording, false);
            assert!(matches!(content, Reaction::Content(_)), "{content:?}");
            let evasive = "That is a topic that needs to be clarified.";
            match person.react(&task, evasive, wording, false) {
                Reaction::Rewrite(text) => assert!(NOT_ANSWERED.contains(&text.as_str())),
                other => panic!("{other:?}"),
            };
        }
        assert!(complaints.len() >= 4);
    }

    #[test]
    fn no_question_is_repeated_and_fresh_ones_were_never_talked_about() {
        let person = person(Wish::Bullets);
        let openings = |phase| -> HashSet<String> {
            let task = |number| person.task(3, number, phase).opening;
            let asked = (0..64).map(task);
            // Greetings end with these signs.
            asked
                .map(|text| {
                    text.rsplit(['!', '.', ',', ':'])
                        .next()
                        .unwrap()
                        .trim()
                        .to_owned()
                })
                .collect()
        };
        let (talk, fresh) = (openings(Phase::Talk), openings(Phase::Fresh));
        assert_eq!((talk.len(), fresh.len()), (64, 64));
        assert!(talk.is_disjoint(&fresh));
        assert_eq!(
            person.task(3, 5, Phase::Talk),
            person.task(3, 5, Phase::Talk)
        );
        assert_ne!(
            person.task(3, 5, Phase::Talk),
            person.task(4, 5, Phase::Talk)
        );
    }

    #[test]
    fn a_wish_that_is_taken_back_is_scored_by_its_opposite() {
        let person = Person {
            name: "plain-taken-back",
            wish: Wish::Plain,
            reversed_from: Some(24),
        };
        let reversed = |task: Task| match task.key {
            Key::Wish { reversed, .. } => reversed,
            other => panic!("{other:?}"),
        };
        assert!(!reversed(person.task(1, 23, Phase::Talk)));
        assert!(reversed(person.task(1, 24, Phase::Talk)));
        assert!(reversed(person.task(1, 0, Phase::Fresh)));
        let list = |task: &Task| format!("- {}\n- green\n- tea", task.opening);
        let (before, after) = (
            person.task(1, 0, Phase::Talk),
            person.task(1, 30, Phase::Talk),
        );
        assert!(matches!(
            person.react(&before, &list(&before), 1, false),
            Reaction::Rewrite(_)
        ));
        assert!(matches!(
            person.react(&after, &list(&after), 1, false),
            Reaction::Content(_)
        ));
        let complaint = person.react(&after, LONG, 1, false);
        assert!(Wish::Plain.spec().takes_back.contains(&complaint.text()));
    }
}
