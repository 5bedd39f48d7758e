//! Rule 1: praise or blame of the response.

use crate::english::vote::Vote;

use crate::compiled::{compiled, texts};
use crate::english::lexicon::{BLAME, Class, PRAISE, blame, class, praise};
use crate::pattern::{Pattern, find};
use crate::speech::Speech;
use crate::words::Sentence;

/// Words of contrast: the part after them counts, the part before hardly does.
const TURNS: &[&str] = &[
    "but",
    "however",
    "except",
    "yet",
    "still",
    "unfortunately",
    "only",
];
/// The weight factor of a remark before a contrast.
const TAKEN_BACK: f32 = 0.2;
/// Minimum weight for a vote.
const ENOUGH: f32 = 0.75;

/// One remark and its position.
struct Remark {
    at: usize,
    weight: f32,
    words: String,
}

/// Votes on the tone. Politeness around a wish for a change is no praise, so with `wants_change` only blame counts.
pub(crate) fn vote(speech: &Speech, wants_change: bool) -> Option<Vote> {
    let mut praised: Vec<(f32, String)> = Vec::new();
    let mut blamed: Vec<(f32, String)> = Vec::new();
    for sentence in &speech.sentences {
        let turn = last_turn(sentence);
        let opens_with_concession =
            matches!(sentence.word(0), "although" | "though" | "while" | "even");
        let pause = sentence.words.iter().position(|word| word.after_pause);
        for remark in remarks(sentence) {
            let before_turn = turn.is_some_and(|turn| remark.at < turn);
            let conceded = opens_with_concession && pause.is_some_and(|pause| remark.at < pause);
            let softened_question =
                sentence.is_question && remark.weight < 0.0 && is_neutral_question(sentence);
            let weight = if softened_question {
                0.0
            } else if before_turn || conceded {
                remark.weight * TAKEN_BACK
            } else {
                remark.weight
            };
            if weight > 0.0 {
                praised.push((weight, remark.words));
            } else if weight < 0.0 {
                blamed.push((-weight, remark.words));
            }
        }
    }
    let sum = |side: &[(f32, String)]| side.iter().map(|(weight, _)| weight).sum::<f32>();
    let (up, down) = (sum(&praised), sum(&blamed));
    if down >= ENOUGH && down >= up * 0.6 {
        return Some(Vote::new(
            -1.0,
            format!("the user complains: {}", quoted(&blamed)),
        ));
    }
    if up >= ENOUGH && up > down && !wants_change {
        return Some(Vote::new(
            1.0,
            format!("the user is pleased: {}", quoted(&praised)),
        ));
    }
    None
}

fn quoted(side: &[(f32, String)]) -> String {
    let words: Vec<String> = side
        .iter()
        .take(3)
        .map(|(_, words)| format!("\"{words}\""))
        .collect();
    words.join(", ")
}

/// The last word of contrast inside the sentence. At its beginning it contrasts with the previous sentence, which needs no
/// discount here.
fn last_turn(sentence: &Sentence) -> Option<usize> {
    (1..sentence.words.len())
        .rev()
        .find(|at| TURNS.contains(&sentence.word(*at)) && !is_negated_only(sentence, *at))
}

/// "not only", "still" after a negation and "only" before a noun are no contrast.
fn is_negated_only(sentence: &Sentence, at: usize) -> bool {
    matches!(sentence.word(at), "only" | "still" | "yet")
        && !sentence.words.get(at).is_some_and(|word| word.after_pause)
}

/// "What is wrong with the second fraction?" asks about the subject and not about the response.
fn is_neutral_question(sentence: &Sentence) -> bool {
    matches!(
        sentence.word(0),
        "what" | "what's" | "how" | "when" | "where" | "which" | "who" | "is" | "are"
    ) && !sentence
        .words
        .iter()
        .any(|word| matches!(word.text.as_str(), "you" | "your" | "this" | "it" | "still"))
}

/// Blame and then praise, in matching order.
fn phrases() -> impl Iterator<Item = (Pattern, f32)> {
    const BLAMED: [&str; BLAME.len()] = texts(BLAME);
    const PRAISED: [&str; PRAISE.len()] = texts(PRAISE);
    let blame = compiled!(&BLAMED).iter().zip(BLAME);
    let praise = compiled!(&PRAISED).iter().zip(PRAISE);
    blame
        .chain(praise)
        .map(|(pattern, (_, weight))| (pattern, *weight))
}

fn remarks(sentence: &Sentence) -> Vec<Remark> {
    let mut used = vec![false; sentence.words.len()];
    let mut found = Vec::new();
    for (pattern, weight) in phrases() {
        let mut from = 0;
        while let Some(hit) = find(pattern, sentence, from) {
            from = hit.start + 1;
            let range = hit.start..hit.end.max(hit.start + 1);
            if used
                .get(range.clone())
                .is_none_or(|words| words.contains(&true))
            {
                continue;
            }
            for at in range {
                if let Some(used) = used.get_mut(at) {
                    *used = true;
                }
            }
            found.push(Remark {
                at: hit.start,
                weight: if weight > 0.0 && is_negated(sentence, hit.start) {
                    -weight
                } else {
                    weight
                },
                words: between(sentence, hit.start, hit.end),
            });
        }
    }
    for at in 0..sentence.words.len() {
        if used.get(at) == Some(&true) {
            continue;
        }
        let word = sentence.word(at);
        let negated = is_negated(sentence, at);
        let weight = match (praise(word), blame(word)) {
            (Some(good), _) if negated => -good,
            (Some(good), _) => good,
            (None, Some(bad)) if negated => 0.5 * bad,
            (None, Some(bad)) => -bad,
            (None, None) => continue,
        };
        let start = if negated { at.saturating_sub(1) } else { at };
        found.push(Remark {
            at,
            weight,
            words: between(sentence, start, at + 1),
        });
    }
    found
}

/// A negation up to three words before, without a pause in between; "no" only directly before, and not the "no" of "no that's
/// good".
fn is_negated(sentence: &Sentence, at: usize) -> bool {
    for back in 1..=3 {
        let Some(place) = at.checked_sub(back) else {
            return false;
        };
        let paused = sentence
            .words
            .get(place + 1)
            .is_some_and(|word| word.after_pause);
        if paused {
            return false;
        }
        let word = sentence.word(place);
        if class(Class::Not, word) {
            return sentence.word(place + 1) != "only";
        }
        if word == "no" && back <= 2 {
            return !matches!(
                sentence.word(place + 1),
                "that" | "that's" | "it" | "it's" | "this" | "i" | "you" | "they"
            );
        }
    }
    false
}

fn between(sentence: &Sentence, start: usize, end: usize) -> String {
    let words: Vec<&str> = (start..end).map(|at| sentence.word(at)).collect();
    words.join(" ")
}
