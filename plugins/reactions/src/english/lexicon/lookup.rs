//! What the lists say of a word: its classes, and its weight as praise or blame.

use super::classes::Class;
use super::table::{self, Entry};
use super::words::{BLAME, PRAISE};
use crate::words::Classes;

/// Whether a word belongs to a class.
pub(crate) fn class(class: Class, word: &str) -> bool {
    classes(word) & class.bit() != 0
}

/// All classes that a word belongs to.
pub(crate) fn classes(word: &str) -> Classes {
    let mut classes = table::entry(word).map_or(0, Entry::classes);
    if word.starts_with(|c: char| c.is_ascii_digit()) {
        classes |= Class::Number.bit();
    } else if word.contains('.') {
        // "notes.txt", but not "3.5".
        classes |= Class::File.bit();
    }
    if is_comparative(word) {
        classes |= Class::More.bit();
    }
    classes
}

/// "kinder" and "simpler", of what a text can be; others are in a list of their own.
fn is_comparative(word: &str) -> bool {
    let Some(stem) = word.strip_suffix("er") else {
        return false;
    };
    let is_known = |stem: &str| {
        let known = Class::Quality.bit() | Class::Cold.bit();
        table::entry(stem).is_some_and(|entry| entry.classes() & known != 0)
    };
    let once = stem.get(..stem.len().saturating_sub(1)).unwrap_or("");
    is_known(stem)
        || is_known(&format!("{stem}e"))
        || (once.len() > 2 && is_known(once))
        || stem
            .strip_suffix('i')
            .is_some_and(|stem| is_known(&format!("{stem}y")))
}

/// The weight of a word of praise; when negated it counts as blame.
pub(crate) fn praise(word: &str) -> Option<f32> {
    weight(PRAISE, table::entry(word).and_then(Entry::praise)?)
}

/// The weight of a word of blame; when negated it counts as weak praise.
pub(crate) fn blame(word: &str) -> Option<f32> {
    weight(BLAME, table::entry(word).and_then(Entry::blame)?)
}

fn weight(lists: &[(f32, &str)], list: usize) -> Option<f32> {
    lists.get(list).map(|(weight, _)| *weight)
}
