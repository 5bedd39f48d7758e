//! Phrase templates with choices and slots.
//!
//! `(a|b|)` is a choice, `{slot}` a value, `{Slot}` the same value capitalised. Parentheses without a bar are literal.
//! Rendering never fails: an unknown slot is left as it is, and a test over all phrases of the corpus finds it.

use super::rng::SeededRng;

/// Slot values of a phrase.
#[derive(Debug, Clone, Default)]
pub struct Slots(Vec<(&'static str, String)>);

impl Slots {
    /// No slots.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `slot`, replacing an earlier value.
    pub fn set(&mut self, slot: &'static str, value: impl Into<String>) {
        let value = value.into();
        match self.0.iter_mut().find(|(name, _)| *name == slot) {
            Some((_, old)) => *old = value,
            None => self.0.push((slot, value)),
        }
    }

    /// [`Slots::set`] in a chain.
    pub fn with(mut self, slot: &'static str, value: impl Into<String>) -> Self {
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
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// Renders `phrase`: draws choices and fills slots. Values are inserted literally.
pub fn render(phrase: &str, slots: &Slots, rng: &mut SeededRng) -> String {
    let mut out = String::with_capacity(phrase.len());
    let mut rest = phrase;
    while let Some(at) = rest.find(['(', '{']) {
        let (before, tail) = rest.split_at(at);
        out.push_str(before);
        let consumed = if tail.starts_with('{') {
            slot(tail, slots, &mut out)
        } else {
            choice(tail, slots, rng, &mut out)
        };
        rest = &tail[consumed..];
    }
    out.push_str(rest);
    out
}

/// Renders one of `phrases`, trimming the space left by an empty last choice.
pub fn render_one(phrases: &[&str], slots: &Slots, rng: &mut SeededRng) -> String {
    let phrase = rng.word(phrases);
    let mut text = render(phrase, slots, rng);
    text.truncate(text.trim_end().len());
    text
}

/// Writes the slot at the start of `tail`; returns the bytes consumed.
fn slot(tail: &str, slots: &Slots, out: &mut String) -> usize {
    let name = tail[1..].split_once('}').map(|(name, _)| name);
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

/// Writes one branch of the choice at the start of `tail`; returns the bytes consumed.
fn choice(tail: &str, slots: &Slots, rng: &mut SeededRng, out: &mut String) -> usize {
    let mut depth = 0_usize;
    let mut start = 1_usize;
    let mut branches = Vec::new();
    for (at, c) in tail.char_indices() {
        match c {
            '(' => depth += 1,
            '|' if depth == 1 => {
                branches.push(&tail[start..at]);
                start = at + 1;
            }
            ')' => {
                depth -= 1;
                if depth == 0 {
                    branches.push(&tail[start..at]);
                    if let [only] = branches.as_slice() {
                        let inside = render(only, slots, rng);
                        out.push('(');
                        out.push_str(&inside);
                        out.push(')');
                    } else {
                        let branch = rng.word(&branches);
                        out.push_str(&render(branch, slots, rng));
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
        let mut rng = SeededRng::new(1, 0);
        (0..200).map(|_| render(phrase, &slots, &mut rng)).collect()
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
