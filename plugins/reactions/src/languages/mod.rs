//! The phrases of each language, and which language a text has.
//!
//! Languages with spaces between words have word patterns, the others pieces of text. Accents are removed from the tables of
//! Latin scripts, since people leave them out.

mod ar;
mod de;
mod en;
mod es;
mod fr;
mod hi;
mod hi_latin;
mod it;
mod ja;
mod nl;
mod pl;
mod pt;
mod ru;
mod tr;
mod zh;

use crate::compiled::{Patterns, compiled, texts};
use crate::cue::Cue;
use crate::words::hash;

/// A language that the rules know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    English,
    German,
    Dutch,
    French,
    Spanish,
    Portuguese,
    Italian,
    Polish,
    Turkish,
    /// Hindi in Latin letters.
    HindiLatin,
    Russian,
    Japanese,
    Chinese,
    Hindi,
    Arabic,
}

/// The phrases of a language, in matching order.
pub(crate) enum Phrases {
    /// Word patterns, each with its meaning.
    Words(Patterns, &'static [(&'static str, Cue)]),
    /// Pieces of text, each list with its meaning.
    Texts(&'static [(Cue, &'static str)]),
}

macro_rules! words {
    ($module:ident) => {{
        const PATTERNS: [&str; $module::CUES.len()] = texts($module::CUES);
        Phrases::Words(compiled!(&PATTERNS), $module::CUES)
    }};
}

impl Language {
    /// Its phrases.
    pub(crate) fn phrases(self) -> Phrases {
        match self {
            Language::English => words!(en),
            Language::German => words!(de),
            Language::Dutch => words!(nl),
            Language::French => words!(fr),
            Language::Spanish => words!(es),
            Language::Portuguese => words!(pt),
            Language::Italian => words!(it),
            Language::Polish => words!(pl),
            Language::Turkish => words!(tr),
            Language::HindiLatin => words!(hi_latin),
            Language::Russian => words!(ru),
            Language::Japanese => Phrases::Texts(ja::TEXTS),
            Language::Chinese => Phrases::Texts(zh::TEXTS),
            Language::Hindi => Phrases::Texts(hi::TEXTS),
            Language::Arabic => Phrases::Texts(ar::TEXTS),
        }
    }

    /// The languages that a reaction can have, by its script and its common words; `words` are folded. The words of the
    /// request decide where those of the reaction do not. Several are returned where neither does.
    pub(crate) fn candidates(
        reaction: &str,
        words: &[&str],
        request_words: &[&str],
    ) -> Vec<Language> {
        if let Some(language) = by_script(reaction) {
            return vec![language];
        }
        let mut scores = [0_u32; LATIN.len()];
        for (words, weight) in [(words, 10), (request_words, 1)] {
            for word in words.iter().take(40) {
                let mask = common(word);
                for (at, score) in scores.iter_mut().enumerate() {
                    *score += weight * u32::from((mask >> at) & 1);
                }
            }
        }
        let letters = [
            ("ßäöü", 1),
            ("êœù", 3),
            ("¿¡ñ", 4),
            ("ãõ", 5),
            ("ìò", 6),
            ("łąęśżź", 7),
            ("ğış", 8),
        ];
        let lower = reaction.to_lowercase();
        for (signs, at) in letters {
            if lower.contains(|c| signs.contains(c))
                && let Some(score) = scores.get_mut(at)
            {
                *score += 15;
            }
        }
        let best = scores.iter().copied().max().unwrap_or_default();
        let candidates: Vec<Language> = LATIN
            .iter()
            .zip(scores)
            .filter(|(_, score)| *score == best)
            .map(|((language, _), _)| *language)
            .collect();
        if best == 0 && words.len() > SHORT {
            return vec![Language::English];
        }
        candidates
    }
}

/// A text with more words has common ones, or is in no language of the table.
const SHORT: usize = 6;

/// The language of a script that tells it.
fn by_script(text: &str) -> Option<Language> {
    let mut han = false;
    let mut found = None;
    for c in text.chars() {
        found = match c {
            '\u{3040}'..='\u{30ff}' => return Some(Language::Japanese),
            '\u{4e00}'..='\u{9fff}' => {
                han = true;
                found
            }
            '\u{400}'..='\u{4ff}' => Some(Language::Russian),
            '\u{900}'..='\u{97f}' => Some(Language::Hindi),
            '\u{600}'..='\u{6ff}' => Some(Language::Arabic),
            _ => found,
        };
    }
    if han { Some(Language::Chinese) } else { found }
}

/// The languages in Latin letters, with their most common words.
const LATIN: [(Language, &str); 10] = [
    (Language::English, en::COMMON),
    (Language::German, de::COMMON),
    (Language::Dutch, nl::COMMON),
    (Language::French, fr::COMMON),
    (Language::Spanish, es::COMMON),
    (Language::Portuguese, pt::COMMON),
    (Language::Italian, it::COMMON),
    (Language::Polish, pl::COMMON),
    (Language::Turkish, tr::COMMON),
    (Language::HindiLatin, hi_latin::COMMON),
];

/// Slots of the table of common words: about three times their number.
const SLOTS: usize = 2048;

/// For each slot the hash of a word and the languages that have it.
#[allow(long_running_const_eval, reason = "the lists are long, and they end")]
static COMMON: [(u32, u16); SLOTS] = read_common();

const fn read_common() -> [(u32, u16); SLOTS] {
    let mut table = [(0, 0); SLOTS];
    let mut language = 0;
    while language < LATIN.len() {
        let mut rest = LATIN[language].1;
        while !rest.is_empty() {
            let bytes = rest.as_bytes();
            let mut end = 0;
            while end < bytes.len() && bytes[end] != b' ' {
                end += 1;
            }
            let (word, after) = rest.split_at(end);
            rest = if after.is_empty() {
                after
            } else {
                after.split_at(1).1
            };
            if word.is_empty() {
                continue;
            }
            let hash = hash(word);
            let mut slot = hash as usize % SLOTS;
            while table[slot].1 != 0 && table[slot].0 != hash {
                slot = (slot + 1) % SLOTS;
            }
            table[slot] = (hash, table[slot].1 | (1 << language));
        }
        language += 1;
    }
    table
}

/// The languages in which a word is common, one bit each in the order of [`LATIN`].
pub(crate) fn common(word: &str) -> u16 {
    let hash = hash(word);
    let mut slot = hash as usize % SLOTS;
    while let Some((known, languages)) = COMMON.get(slot) {
        if *languages == 0 {
            return 0;
        }
        if *known == hash {
            return *languages;
        }
        slot = (slot + 1) % SLOTS;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_is_told_by_script_and_by_common_words() {
        for (text, language) in [
            ("das hilft mir nicht", Language::German),
            ("hier heb ik niks aan", Language::Dutch),
            ("je ne suis pas convaincu", Language::French),
            ("eso no es lo que yo pedi", Language::Spanish),
            ("isso nao e o que eu queria", Language::Portuguese),
            ("questo non e quello che volevo", Language::Italian),
            ("to nie jest to co chcialem", Language::Polish),
            ("bu cok iyi ama daha kisa", Language::Turkish),
            ("yeh sahi nahi hai", Language::HindiLatin),
            ("это не то", Language::Russian),
            ("違います", Language::Japanese),
            ("不对", Language::Chinese),
            ("गलत है", Language::Hindi),
            ("هذا خطا", Language::Arabic),
            ("that is not it", Language::English),
        ] {
            let words: Vec<&str> = text.split(' ').collect();
            assert_eq!(
                Language::candidates(text, &words, &[]),
                [language],
                "{text}"
            );
        }
    }
}
