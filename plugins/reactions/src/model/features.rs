//! The features of a reaction that the model weighs: its words in their order, its form, and how it relates to the request
//! and the reply.

use crate::compare::{known, tokens};
use crate::english::lexicon::{Class, blame, class, praise};
use crate::languages::Language;
use crate::seen::Seen;
use crate::words::{Classes, Sentence};

/// Words after a denial that it denies.
const SCOPE: usize = 3;
/// Letters of a stem.
const STEM: usize = 5;

/// Passes each feature as pieces of its name to `sink`.
pub(crate) fn each(
    seen: &Seen,
    text: &str,
    request: &str,
    reply: &str,
    sink: &mut dyn FnMut(&[&str]),
) {
    sink(&["bias"]);
    let sentences = &seen.speech.sentences;
    for (number, sentence) in sentences.iter().enumerate() {
        words(sentence, number + 1 == sentences.len(), sink);
    }
    form(seen, text, sink);
    context(seen, request, reply, sink);
}

fn words(sentence: &Sentence, is_last: bool, sink: &mut dyn FnMut(&[&str])) {
    let asked = if sentence.is_question { "?" } else { "." };
    let mut denied = 0;
    let mut class_before = "";
    let mut before = "^";
    let mut second = "";
    for (at, word) in sentence.words.iter().enumerate() {
        let text = word_of(sentence, at);
        sink(&["w", text]);
        sink(&["w", asked, text]);
        sink(&["b", before, " ", text]);
        if !second.is_empty() {
            sink(&["t", second, " ", before, " ", text]);
            sink(&["g", second, " _ ", text]);
        }
        let stem = text.get(..text.floor_char_boundary(STEM)).unwrap_or(text);
        if stem.len() < text.len() {
            sink(&["s", stem]);
        }
        let own = letter_of(word.classes);
        if !own.is_empty() {
            sink(&["c", own]);
            sink(&["cw", before, " ", own]);
        }
        if !class_before.is_empty() {
            sink(&["wc", class_before, " ", text]);
        }
        class_before = own;
        if word.after_pause {
            denied = 0;
            sink(&["p", text]);
        }
        if denied > 0 {
            sink(&["n", text]);
        }
        let tone = match (praise(&word.text), blame(&word.text)) {
            (Some(_), _) => "good",
            (_, Some(_)) => "bad",
            _ => "",
        };
        if !tone.is_empty() {
            sink(&["tone", tone, if denied > 0 { " denied" } else { "" }, asked]);
            sink(&["tone ", tone, if is_last { " last" } else { " early" }]);
        }
        denied = if class(Class::Not, &word.text)
            || matches!(word.text.as_str(), "no" | "nothing" | "without")
        {
            SCOPE
        } else {
            denied.saturating_sub(1)
        };
        second = before;
        before = text;
    }
    sink(&["b", before, " $"]);
    sink(&["t", second, " ", before, " $"]);
    if is_last {
        sink(&["last", sentence.word(0)]);
    }
}

/// A letter for the first class of a word, or nothing.
fn letter_of(classes: Classes) -> &'static str {
    let at = classes.trailing_zeros() as usize;
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"
        .get(at..=at)
        .unwrap_or_default()
}

/// The word as the model knows it: numbers are all the same.
fn word_of(sentence: &Sentence, at: usize) -> &str {
    let word = sentence.word(at);
    if word.starts_with(|c: char| c.is_ascii_digit()) {
        "#"
    } else {
        word
    }
}

fn form(seen: &Seen, text: &str, sink: &mut dyn FnMut(&[&str])) {
    let sentences = &seen.speech.sentences;
    let length = match seen.speech.word_count() {
        0..=1 => "1",
        2 => "2",
        3..=4 => "4",
        5..=7 => "7",
        8..=12 => "12",
        13..=20 => "20",
        _ => "more",
    };
    sink(&["length", length]);
    sink(&["sentences", ["0", "1", "2", "3"][sentences.len().min(3)]]);
    let asks = |at: usize| {
        sentences
            .get(at)
            .is_some_and(|sentence| sentence.is_question)
    };
    let last = sentences.len().saturating_sub(1);
    if asks(last) {
        sink(&["asks last"]);
        sink(&["asks last ", length]);
    }
    if sentences.iter().any(|sentence| sentence.is_question) {
        sink(&["asks"]);
        if !asks(last) {
            sink(&["asks before"]);
        }
    }
    for (mark, name) in [
        ("!", "!"),
        ("!!", "!!"),
        ("...", "..."),
        ("?", "?"),
        ("??", "??"),
        ("?!", "?!"),
    ] {
        if text.contains(mark) {
            sink(&["mark", name]);
        }
    }
    for (at, c) in text.char_indices().filter(|(_, c)| *c >= '\u{2190}') {
        sink(&["sign", text.get(at..at + c.len_utf8()).unwrap_or_default()]);
    }
    if seen.quotes > 0 {
        sink(&["quotes"]);
    }
    let (mut accepts, mut rejects) = (false, false);
    for hit in &seen.scan.hits {
        sink(&["cue", hit.cue.name()]);
        accepts |= hit.cue.is_positive();
        rejects |= hit.cue.is_negative();
    }
    if let Some(hit) = seen.scan.hits.last() {
        sink(&["last cue", hit.cue.name()]);
    }
    let rest = sentences.last().map_or(0, |sentence| sentence.words.len());
    let side = match (accepts, rejects) {
        (true, true) => "both",
        (true, false) => "for",
        (false, true) => "against",
        (false, false) => "none",
    };
    let asked = if asks(last) { "?" } else { "." };
    sink(&["side ", side, " ", length, asked]);
    if sentences.len() > 1 {
        sink(&["side ", side, if rest > 3 { " goes on" } else { " ends" }]);
    }
}

fn context(seen: &Seen, request: &str, reply: &str, sink: &mut dyn FnMut(&[&str])) {
    let of = |text: &str| tokens(text, Language::English);
    let (asked, answered) = (of(request), of(reply));
    if seen.answers {
        sink(&["answers"]);
    }
    let (mut new, mut of_request, mut of_reply, mut of_both) = (0, 0, 0, 0);
    for sentence in &seen.speech.sentences {
        for word in sentence.words.iter().flat_map(|word| of(&word.text)) {
            let place = match (known(&asked, &word), known(&answered, &word)) {
                (true, true) => (&mut of_both, "both"),
                (true, false) => (&mut of_request, "request"),
                (false, true) => (&mut of_reply, "reply"),
                (false, false) => (&mut new, "new"),
            };
            *place.0 += 1;
            if word.starts_with(|c: char| c.is_ascii_digit()) {
                sink(&["number of ", place.1]);
            }
        }
    }
    let few = |count: usize| ["0", "1", "2", "3"][count.min(3)];
    for (name, count) in [
        ("new", new),
        ("request", of_request),
        ("reply", of_reply),
        ("both", of_both),
    ] {
        sink(&["known ", name, few(count)]);
    }
    let asks = seen
        .speech
        .sentences
        .iter()
        .any(|sentence| sentence.is_question);
    let speaks = seen.speech.sentences.iter().any(|sentence| {
        let words = &sentence.words;
        words.iter().any(|word| {
            matches!(
                word.text.as_str(),
                "i" | "i'm" | "i've" | "i'll" | "my" | "we" | "our"
            )
        })
    });
    let form = match (asks, speaks) {
        (true, _) => "asks",
        (false, true) => "of self",
        (false, false) => "states",
    };
    let place = match (of_request > 0, of_reply > 0, of_both > 0) {
        (true, true, _) => "request and reply",
        (true, false, _) => "request",
        (false, true, _) => "reply",
        (false, false, true) => "both",
        (false, false, false) => "nothing",
    };
    sink(&["known ", place, " ", form]);
    sink(&["known ", place, if new == 0 { " only" } else { " and new" }]);
}
