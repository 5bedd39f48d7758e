//! A word problem with two small numbers and one correct answer.
//!
//! The numbers are chosen so that a model of two million parameters is nearly always right: one step, results below 100
//! (each number is one token), tables up to nine. No two-step problems, fractions or number words.

use super::names::{PEOPLE, another_name, name};
use super::operation::Operation;
use super::phrase::{Slots, render, render_one};
use super::rng::SeededRng;
use super::scenes::{BARE_SCENES, SCENES, Scene};
use super::split::Split;
use super::things::{CONTAINERS, DAYS, PLACES, draw_thing};

/// A problem, its answer, and what is needed to check an answer.
#[derive(Debug, Clone)]
pub struct Problem {
    /// The operation.
    pub operation: Operation,
    /// The first number of the calculation.
    pub a: u32,
    /// The second number.
    pub b: u32,
    /// The correct answer.
    pub answer: u32,
    /// The person in the story; empty in a bare calculation.
    pub name: String,
    /// What is counted, as a plural; empty in a bare calculation.
    pub things: String,
    text: String,
    scene: &'static Scene,
    slots: Slots,
}

impl Problem {
    /// Draws a problem. Held-out problems have names and things, and number pairs for this kind of story, that are not
    /// in the training split. The pairs do occur in other stories: a model of this size memorises its sums.
    pub fn random(rng: &mut SeededRng, split: Split) -> Self {
        Self::from_scene(rng.weighted(SCENES), rng, split)
    }

    /// Draws a calculation without a story.
    pub(super) fn bare(rng: &mut SeededRng, split: Split) -> Self {
        Self::from_scene(rng.weighted(BARE_SCENES), rng, split)
    }

    fn from_scene(scene: &'static Scene, rng: &mut SeededRng, split: Split) -> Self {
        let (a, b, answer) = numbers(rng, scene, split);
        let who = name(rng, split);
        let friend = another_name(rng, split, &who);
        let thing = draw_thing(rng, split);
        let (container, containers) = *rng.pick(CONTAINERS);
        let place = rng.word(PLACES);
        let day = rng.below(DAYS.len());
        let later = (day + 1 + rng.below(DAYS.len() - 1)) % DAYS.len();
        let verbs = if thing.food && !scene.food_verbs.is_empty() && rng.chance(0.5) {
            scene.food_verbs
        } else {
            scene.verbs
        };
        let (verb, past) = *rng.pick(verbs);
        let slots = Slots::new()
            .with("a", a.to_string())
            .with("b", b.to_string())
            .with("answer", answer.to_string())
            .with("name", &*who)
            .with("friend", friend)
            .with("thing", &*thing.one)
            .with("things", &*thing.many)
            .with("container", container)
            .with("containers", containers)
            .with("place", place)
            .with("otherplace", other(rng, PLACES, place))
            .with("people", rng.word(PEOPLE))
            .with("day", DAYS[day])
            .with("otherday", DAYS[later])
            .with("verb", verb)
            .with("past", past);
        let text = render_one(scene.questions, &slots, rng);
        // The story may not use every slot: a bare calculation has no person.
        let named = |word: &str| {
            if text.contains(word) {
                word.to_owned()
            } else {
                String::new()
            }
        };
        let (name, things) = (named(&who), named(&thing.many));
        Self {
            operation: scene.operation,
            a,
            b,
            answer,
            name,
            things,
            text,
            scene,
            slots,
        }
    }

    /// The problem's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The calculation with its result, `12 + 7 = 19`.
    pub fn equation(&self) -> String {
        format!(
            "{} {} {} = {}",
            self.a,
            self.operation.sign(),
            self.b,
            self.answer
        )
    }

    /// Whether this story with these numbers is not in the training split.
    pub fn is_held_out(&self) -> bool {
        held_out(self.scene, self.a, self.b)
    }

    /// The clauses of a reply, rendered anew each time.
    pub fn clauses(&self, rng: &mut SeededRng) -> Slots {
        let operation = self.operation;
        let mut slots = self.slots.clone();
        slots.set("sign", operation.sign());
        slots.set("equation", self.equation());
        slots.set(
            "formula",
            format!("{} {} {}", self.a, operation.sign(), self.b),
        );
        slots.set("noun", operation.noun());
        for (slot, phrase) in [
            ("operate", operation.operate()),
            ("operating", operation.operating()),
            ("spoken", operation.spoken()),
            ("reason", operation.reason()),
            ("given", rng.word(self.scene.givens)),
            ("outcome", rng.word(self.scene.outcomes)),
            ("first", self.scene.first),
            ("second", self.scene.second),
            ("unit", self.scene.unit),
        ] {
            let clause = render(phrase, &self.slots, rng);
            slots.set(slot, clause.trim_end());
        }
        slots
    }
}

fn other(rng: &mut SeededRng, words: &[&'static str], but: &str) -> &'static str {
    loop {
        let word = rng.word(words);
        if word != but {
            return word;
        }
    }
}

/// Draws the two numbers and the answer, none of them below 2.
fn numbers(rng: &mut SeededRng, scene: &Scene, split: Split) -> (u32, u32, u32) {
    loop {
        let (a, b) = match scene.operation {
            Operation::Add => (rng.between(2, 20), rng.between(2, 20)),
            Operation::Subtract => {
                let a = rng.between(4, 30);
                (a, rng.between(2, (a - 2).min(20)))
            }
            Operation::Times => (rng.between(2, 9), rng.between(2, 9)),
            Operation::Share => {
                let b = rng.between(2, 9);
                (b * rng.between(2, 9), b)
            }
        };
        let wanted = held_out(scene, a, b) == (split == Split::HeldOut);
        if let (true, Some(answer)) = (wanted, scene.operation.apply(a, b)) {
            return (a, b, answer);
        }
    }
}

/// One number pair in eleven per story, with different pairs for the stories of one operation.
fn held_out(scene: &Scene, a: u32, b: u32) -> bool {
    (7 * a + 3 * b + 5 * scene.key) % 11 == 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn answers_are_right_and_small_and_numbers_stand_in_the_text() {
        let mut rng = SeededRng::new(5, 0);
        for _ in 0..20_000 {
            let p = Problem::random(&mut rng, Split::Train);
            assert_eq!(p.operation.apply(p.a, p.b), Some(p.answer));
            assert!((2..100).contains(&p.answer), "{p:?}");
            for number in [p.a, p.b] {
                assert!(p.text().contains(&number.to_string()), "{}", p.text());
            }
            assert!(!p.text().contains(['{', '}', '|', '(']), "{}", p.text());
            assert!(!p.text().contains("  "), "{}", p.text());
        }
    }

    #[test]
    fn held_out_stories_never_train_but_their_sums_do() {
        let drawn = |split| {
            let mut rng = SeededRng::new(6, 0);
            let draws = (0..60_000).map(|_| Problem::random(&mut rng, split));
            draws
                .map(|p| ((p.scene.key, p.a, p.b), (p.operation, p.a, p.b)))
                .unzip::<_, _, HashSet<_>, HashSet<_>>()
        };
        let ((train, train_sums), (held, held_sums)) = (drawn(Split::Train), drawn(Split::HeldOut));
        assert!(train.is_disjoint(&held));
        let share = held.len() as f64 / (held.len() + train.len()) as f64;
        assert!((0.08..0.11).contains(&share), "{share}");
        assert!(
            held_sums.is_subset(&train_sums),
            "{:?}",
            held_sums.difference(&train_sums)
        );
        let keys: HashSet<_> = SCENES.iter().map(|(_, scene)| scene.key).collect();
        assert_eq!(keys.len(), SCENES.len());
    }
}
