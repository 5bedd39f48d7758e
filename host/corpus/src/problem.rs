//! A word problem with two small numbers and one right answer.
//!
//! The numbers are chosen so that a model of two million parameters can be nearly always right: one
//! step, results below 100 (each number is one token), tables up to nine. It refuses to be clever:
//! no two-step problems, no fractions, no number words.

use crate::dice::Dice;
use crate::phrase::{Slots, say, say_one};
use crate::scenes::{BARE_SCENES, Operation, PEOPLE, SCENES, Scene};
use crate::words::{CONTAINERS, DAYS, PLACES, Split, another_name, draw_thing, name};

/// A problem as it is asked, and what is needed to answer it and to check an answer.
#[derive(Debug, Clone)]
pub struct Problem {
    /// What has to be done.
    pub operation: Operation,
    /// The first number of the calculation.
    pub a: u32,
    /// The second number.
    pub b: u32,
    /// The right answer.
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
    /// Draws a problem. Held-out problems have names and things that training never shows, and pairs
    /// of numbers that it never shows in this kind of story. It does show them in other stories: a
    /// model of this size learns its sums by heart, and what it never saw it does not know.
    pub fn random(dice: &mut Dice, split: Split) -> Self {
        let scene = dice.weighted(SCENES).unwrap_or(SCENE_OF_LAST_RESORT);
        Self::of(scene, dice, split)
    }

    /// Draws a calculation without a story.
    pub(crate) fn bare(dice: &mut Dice, split: Split) -> Self {
        let scene = dice.weighted(BARE_SCENES).unwrap_or(SCENE_OF_LAST_RESORT);
        Self::of(scene, dice, split)
    }

    fn of(scene: &'static Scene, dice: &mut Dice, split: Split) -> Self {
        let (a, b, answer) = numbers(dice, scene, split);
        let who = name(dice, split);
        let friend = another_name(dice, split, &who);
        let thing = draw_thing(dice, split);
        let (container, containers) = dice.pick(CONTAINERS).copied().unwrap_or(("box", "boxes"));
        let place = dice.word(PLACES);
        let day = dice.below(DAYS.len());
        let later = (day + 1 + dice.below(DAYS.len() - 1)) % DAYS.len();
        let verbs = if thing.food && !scene.food_verbs.is_empty() && dice.chance(0.5) {
            scene.food_verbs
        } else {
            scene.verbs
        };
        let (verb, past) = dice.pick(verbs).copied().unwrap_or_default();
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
            .with("otherplace", other(dice, PLACES, place))
            .with("people", dice.word(PEOPLE))
            .with("day", DAYS.get(day).copied().unwrap_or_default())
            .with("otherday", DAYS.get(later).copied().unwrap_or_default())
            .with("verb", verb)
            .with("past", past);
        let text = say_one(scene.questions, &slots, dice);
        // The story may not use every slot: a bare calculation has no one in it.
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

    /// The problem as a person would write it.
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

    /// Whether the training split never tells this story with these numbers.
    pub fn is_held_out(&self) -> bool {
        held_out(self.scene, self.a, self.b)
    }

    /// The clauses that a reply is made from, said anew each time.
    pub(crate) fn clauses(&self, dice: &mut Dice) -> Slots {
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
            ("given", dice.word(self.scene.givens)),
            ("outcome", dice.word(self.scene.outcomes)),
            ("first", self.scene.first),
            ("second", self.scene.second),
            ("unit", self.scene.unit),
        ] {
            let said = say(phrase, &self.slots, dice);
            slots.set(slot, said.trim_end());
        }
        slots
    }
}

const SCENE_OF_LAST_RESORT: &Scene = match SCENES {
    [(_, scene), ..] => scene,
    [] => panic!("there are scenes"),
};

fn other(dice: &mut Dice, words: &[&'static str], but: &str) -> &'static str {
    loop {
        let word = dice.word(words);
        if word != but {
            return word;
        }
    }
}

/// Draws the two numbers and the answer, none of them below 2.
fn numbers(dice: &mut Dice, scene: &Scene, split: Split) -> (u32, u32, u32) {
    loop {
        let (a, b) = match scene.operation {
            Operation::Add => (dice.between(2, 20), dice.between(2, 20)),
            Operation::Subtract => {
                let a = dice.between(4, 30);
                (a, dice.between(2, (a - 2).min(20)))
            }
            Operation::Times => (dice.between(2, 9), dice.between(2, 9)),
            Operation::Share => {
                let b = dice.between(2, 9);
                (b * dice.between(2, 9), b)
            }
        };
        let wanted = held_out(scene, a, b) == (split == Split::HeldOut);
        if let (true, Some(answer)) = (wanted, scene.operation.apply(a, b)) {
            return (a, b, answer);
        }
    }
}

/// One pair of numbers in eleven for each story, and other pairs for each story of one operation.
fn held_out(scene: &Scene, a: u32, b: u32) -> bool {
    (7 * a + 3 * b + 5 * scene.key) % 11 == 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn answers_are_right_and_small_and_numbers_stand_in_the_text() {
        let mut dice = Dice::new(5, 0);
        for _ in 0..20_000 {
            let p = Problem::random(&mut dice, Split::Train);
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
            let mut dice = Dice::new(6, 0);
            let draws = (0..60_000).map(|_| Problem::random(&mut dice, split));
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
