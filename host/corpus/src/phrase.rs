//! Phrases with choices and slots, so that one line of data says many sentences.
//!
//! `(a|b|)` is a choice, `{slot}` a value, `{Slot}` the same value with a capital. Parentheses
//! without a bar are parentheses. It refuses to fail: an unknown slot stays as it is written, and
//! a test over every phrase of the corpus finds it.

use crate::dice::Dice;

/// Values for the slots of a phrase.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slots(Vec<(&'static str, String)>);

impl Slots {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Sets `slot`, replacing an earlier value.
    pub(crate) fn set(&mut self, slot: &'static str, value: impl Into<String>) {
        let value = value.into();
        match self.0.iter_mut().find(|(name, _)| *name == slot) {
            Some((_, old)) => *old = value,
            None => self.0.push((slot, value)),
        }
    }

    /// [`Slots::set`] in a chain.
    pub(crate) fn with(mut self, slot: &'static str, value: impl Into<String>) -> Self {
        self.set(slot, value);
        self
    }

    fn find(&self, slot: &str) -> Option<String> {
        if let Some((_, value)) = self.0.iter().find(|(name, _)| *name == slot) {
            return Some(value.clone());
        }
        let mut letters = slot.chars();
        let first = letters.next().filter(|c| c.is_ascii_uppercase())?;
        let lower = format!("{}{}", first.to_ascii_lowercase(), letters.as_str());
        let (_, value) = self.0.iter().find(|(name, _)| *name == lower)?;
        Some(capital(value))
    }
}

/// `text` with its first letter as a capital.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// Says `phrase` once: choices are drawn, slots are filled. Values are not read again, so a value
/// with parentheses or braces is taken as it is.
pub(crate) fn say(phrase: &str, slots: &Slots, dice: &mut Dice) -> String {
    let mut out = String::with_capacity(phrase.len());
    let mut rest = phrase;
    while let Some(at) = rest.find(['(', '{']) {
        let (before, tail) = rest.split_at(at);
        out.push_str(before);
        let consumed = if tail.starts_with('{') {
            slot(tail, slots, &mut out)
        } else {
            choice(tail, slots, dice, &mut out)
        };
        rest = tail.get(consumed..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// Says one of `phrases`, without the space that an empty last choice leaves behind.
pub(crate) fn say_one(phrases: &[&str], slots: &Slots, dice: &mut Dice) -> String {
    let phrase = dice.word(phrases);
    let mut said = say(phrase, slots, dice);
    said.truncate(said.trim_end().len());
    said
}

/// Writes the slot that `tail` begins with; bytes consumed.
fn slot(tail: &str, slots: &Slots, out: &mut String) -> usize {
    let name = tail
        .get(1..)
        .and_then(|t| t.split_once('}'))
        .map(|(name, _)| name);
    match name.and_then(|name| Some((name, slots.find(name)?))) {
        Some((name, value)) => {
            out.push_str(&value);
            name.len() + 2
        }
        None => {
            out.push('{');
            1
        }
    }
}

/// Writes one branch of the choice that `tail` begins with; bytes consumed.
fn choice(tail: &str, slots: &Slots, dice: &mut Dice, out: &mut String) -> usize {
    let mut depth = 0_usize;
    let mut start = 1_usize;
    let mut branches = Vec::new();
    for (at, c) in tail.char_indices() {
        match c {
            '(' => depth += 1,
            '|' if depth == 1 => {
                branches.push(tail.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            ')' => {
                depth -= 1;
                if depth == 0 {
                    branches.push(tail.get(start..at).unwrap_or_default());
                    if let [only] = branches.as_slice() {
                        let inside = say(only, slots, dice);
                        out.push('(');
                        out.push_str(&inside);
                        out.push(')');
                    } else {
                        let branch = dice.word(&branches);
                        out.push_str(&say(branch, slots, dice));
                    }
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    out.push('(');
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn all(phrase: &str) -> BTreeSet<String> {
        let slots = Slots::new().with("name", "ada").with("odd", "(x|y) {name}");
        let mut dice = Dice::new(1, 0);
        (0..200).map(|_| say(phrase, &slots, &mut dice)).collect()
    }

    #[test]
    fn choices_nest_and_slots_fill() {
        let said = all("(a|b (c|d)|) {name} {Name}");
        let expected = [" ada Ada", "a ada Ada", "b c ada Ada", "b d ada Ada"];
        assert_eq!(said, expected.map(str::to_owned).into());
    }

    #[test]
    fn what_is_not_a_choice_stays() {
        for (phrase, said) in [
            ("(plain)", "(plain)"),
            ("1) a", "1) a"),
            ("open ( a | b", "open ( a | b"),
            ("{unknown} {", "{unknown} {"),
            ("| a | b |", "| a | b |"),
            ("{odd}", "(x|y) {name}"),
            ("", ""),
        ] {
            assert_eq!(all(phrase), BTreeSet::from([said.to_owned()]), "{phrase}");
        }
    }
}
