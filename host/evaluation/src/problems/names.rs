//! Names in the problems, and which are held out.
//!
//! Some names are made up from syllables, in the training split too: a model that copies only a hundred names memorises
//! them; thousands teach it to copy.

use super::rng::SeededRng;
use super::split::Split;

const TRAIN_NAMES: &[&str] = &[
    "Tom", "Ana", "Ben", "Mia", "Sam", "Lea", "Max", "Eva", "Leo", "Zoe", "Jon", "Ivy", "Anna",
    "Paul", "Lucy", "Jack", "Emma", "Omar", "Nina", "Carl", "Rosa", "Hugo", "Lily", "Adam", "Ruth",
    "Alex", "Sara", "Finn", "Maya", "Noah", "Clara", "David", "Elena", "Frank", "Grace", "Henry",
    "Irene", "James", "Karen", "Louis", "Maria", "Nadia", "Oscar", "Petra", "Ravi", "Sofia",
    "Tariq", "Vera", "Will", "Yara", "Aisha", "Bruno", "Chloe", "Diego", "Erik", "Fatima", "Gina",
    "Hana", "Igor", "Julia", "Kofi", "Laura", "Marco", "Nora", "Olga", "Priya", "Kim", "Simon",
    "Tina", "Uma", "Victor", "Wendy", "Amir", "Bella", "Cora", "Daniel", "Edith", "Felix", "Greta",
    "Ines", "Jonas", "Kira", "Linus", "Mona", "Nils", "Paula", "Rita", "Stefan", "Thea", "Ursula",
    "Viktor", "Yusuf", "Peter", "Mary", "John", "Lisa", "Mark", "Jane", "Kate", "Luke", "Amy",
    "Dan", "Sue", "Bob", "Joe", "Meg",
];

const HELD_OUT_NAMES: &[&str] = &[
    "Milo", "Freya", "Tobias", "Selma", "Arjun", "Odette", "Callum", "Zainab", "Rufus", "Leona",
    "Gareth", "Ingrid", "Pablo", "Marta", "Dario", "Nell",
];

/// Recipients in sharing stories.
pub(super) const PEOPLE: &[&str] = &[
    "friends",
    "children",
    "pupils",
    "neighbours",
    "players",
    "students",
    "cousins",
];

const ONSETS: &[&str] = &[
    "B", "D", "F", "G", "H", "J", "K", "L", "M", "N", "P", "R", "S", "T", "V", "Z", "Br", "Kr",
    "Tr", "St", "Sh",
];
const VOWELS: &[&str] = &["a", "e", "i", "o", "u", "ai", "ea"];
const MIDDLES: &[&str] = &[
    "l", "r", "n", "m", "v", "d", "t", "k", "s", "b", "nd", "rl", "lm", "st",
];
const ENDS: &[&str] = &["", "", "n", "s", "l", "r", "x", "ck", "th"];

/// Share of made-up names in training.
const MADE_UP_NAMES: f64 = 0.3;

/// A name of the split; in training sometimes made up.
pub fn name(rng: &mut SeededRng, split: Split) -> String {
    match split {
        Split::HeldOut => rng.word(HELD_OUT_NAMES).to_owned(),
        Split::Train if rng.chance(MADE_UP_NAMES) => loop {
            let made = made_up(rng);
            if !HELD_OUT_NAMES.contains(&made.as_str()) {
                break made;
            }
        },
        Split::Train => rng.word(TRAIN_NAMES).to_owned(),
    }
}

/// A word of two syllables with a capital.
pub(super) fn made_up(rng: &mut SeededRng) -> String {
    [ONSETS, VOWELS, MIDDLES, VOWELS, ENDS]
        .map(|part| rng.word(part))
        .concat()
}

/// A name other than `other`.
pub(super) fn another_name(rng: &mut SeededRng, split: Split, other: &str) -> String {
    loop {
        let name = name(rng, split);
        if name != other {
            return name;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_splits_share_no_name() {
        let draws = |split| {
            let mut rng = SeededRng::new(3, 0);
            (0..20_000)
                .map(|_| name(&mut rng, split))
                .collect::<HashSet<_>>()
        };
        let (train, held) = (draws(Split::Train), draws(Split::HeldOut));
        assert!(train.is_disjoint(&held));
        assert_eq!(held.len(), HELD_OUT_NAMES.len());
        assert!(
            train.len() > 1000,
            "made-up names are many: {}",
            train.len()
        );
    }
}
