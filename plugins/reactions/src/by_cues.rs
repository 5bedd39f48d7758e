//! The decision by the cues of a language.

use crate::cue::Cue;
use crate::reading::{Kind, Reading};
use crate::scan::{Hit, Scan};
use crate::speech::Speech;

/// The decision by the cues of the language.
pub(super) fn by_cues(scan: &Scan, speech: &Speech) -> Option<Reading> {
    let first = |is: fn(Cue) -> bool| scan.hits.iter().find(|hit| is(hit.cue));
    let mocks = first(|cue| cue == Cue::Mock);
    if let Some(mock) = mocks {
        return Some(reading(-1.0, Kind::Sarcasm, mock, false));
    }
    let positive = first(Cue::is_positive);
    let standing = first(|cue| cue == Cue::Standing);
    let strong = [Cue::Blame, Cue::Redo, Cue::Refusal];
    if let (Some(standing), Some(_)) = (standing, positive)
        && !scan
            .hits
            .iter()
            .any(|hit| strong.contains(&hit.cue) && place(hit) < place(standing))
    {
        return Some(reading(1.0, Kind::StandingWish, standing, true));
    }
    let negative = strongest(scan);
    if let (None, Some(positive)) = (negative, positive)
        && let Some(contrast) = open_contrast(scan, speech, positive)
    {
        return Some(reading(-1.0, Kind::Miss, contrast, true));
    }
    if let Some(accepted) = negative.and_then(|negative| own_mistake(scan, negative)) {
        return Some(reading(1.0, Kind::Acceptance, accepted, false));
    }
    match (negative, positive) {
        (Some(negative), None) => Some(reading(
            -1.0,
            kind(negative.cue),
            negative,
            matches!(negative.cue, Cue::Missed | Cue::Fix | Cue::Form)
                || names_more(scan, negative),
        )),
        (Some(negative), Some(positive)) => {
            let last = scan.hits.iter().rev().find(|hit| hit.cue.is_negative())?;
            let contrast = |from: (usize, usize), to: (usize, usize)| {
                scan.hits
                    .iter()
                    .any(|hit| hit.cue == Cue::But && (from..=to).contains(&place(hit)))
            };
            let praised_last = scan.hits.iter().rev().find(|hit| hit.cue.is_positive())?;
            if place(last) > place(positive) {
                let concrete = negative.cue != Cue::Refusal && negative.cue != Cue::RefusalWeak;
                return Some(reading(-1.0, kind(negative.cue), negative, concrete));
            }
            if contrast(place(last), place(praised_last)) {
                return Some(reading(1.0, Kind::Acceptance, praised_last, false));
            }
            matches!(
                negative.cue,
                Cue::Redo | Cue::Form | Cue::Missed | Cue::Fix | Cue::Refusal
            )
            .then(|| reading(-1.0, kind(negative.cue), negative, true))
        }
        (None, Some(positive)) => Some(reading(1.0, Kind::Acceptance, positive, false)),
        (None, None) => None,
    }
}

/// Words after "but" that state something.
const STATEMENT: usize = 3;

/// A "but" after praise that is followed by a statement without praise: "nice, but the second one has no punchline".
fn open_contrast<'a>(scan: &'a Scan, speech: &Speech, positive: &Hit) -> Option<&'a Hit> {
    let but = scan
        .hits
        .iter()
        .find(|hit| hit.cue == Cue::But && place(hit) > place(positive))?;
    let praised = scan
        .hits
        .iter()
        .any(|hit| hit.cue.is_positive() && place(hit) > place(but));
    let words: usize = speech
        .sentences
        .iter()
        .skip(but.sentence)
        .map(|sentence| sentence.words.len())
        .sum();
    let states = scan.by_pieces || words >= but.end + STATEMENT;
    (!praised && states).then_some(but)
}

/// Who understands or reports that it works speaks of their own mistake: "ah, I used the wrong file", "changed it to <, runs now".
fn own_mistake<'a>(scan: &'a Scan, negative: &Hit) -> Option<&'a Hit> {
    let last = scan.hits.iter().rev().find(|hit| hit.cue.is_negative())?;
    let understood = scan
        .hits
        .iter()
        .find(|hit| hit.cue == Cue::Understood)
        .filter(|hit| {
            let turned = scan
                .hits
                .iter()
                .any(|but| but.cue == Cue::But && place(but) > place(hit));
            !turned
                && place(hit) < place(negative)
                && matches!(
                    negative.cue,
                    Cue::Missed | Cue::Fix | Cue::Form | Cue::Blame
                )
        });
    understood.or_else(|| {
        scan.hits
            .iter()
            .rev()
            .find(|hit| hit.cue == Cue::Works)
            .filter(|hit| {
                place(hit) > place(last) && matches!(negative.cue, Cue::Missed | Cue::Fix)
            })
    })
}

/// A complaint that has a wish or a fact besides.
fn names_more(scan: &Scan, negative: &Hit) -> bool {
    scan.hits
        .iter()
        .any(|hit| hit != negative && matches!(hit.cue, Cue::Missed | Cue::Fix | Cue::Form))
}

/// The negative cue that says most.
fn strongest(scan: &Scan) -> Option<&Hit> {
    [
        Cue::Fix,
        Cue::Missed,
        Cue::Form,
        Cue::Blame,
        Cue::Redo,
        Cue::Refusal,
        Cue::RefusalWeak,
    ]
    .into_iter()
    .find_map(|cue| scan.hits.iter().find(|hit| hit.cue == cue))
}

pub(super) fn place(hit: &Hit) -> (usize, usize) {
    (hit.sentence, hit.start)
}

fn kind(cue: Cue) -> Kind {
    match cue {
        Cue::Fix => Kind::Correction,
        Cue::Missed => Kind::Miss,
        Cue::Form => Kind::Form,
        Cue::Redo => Kind::Redo,
        Cue::Refusal | Cue::RefusalWeak => Kind::Refusal,
        Cue::Mock => Kind::Sarcasm,
        _ => Kind::Complaint,
    }
}

fn reading(score: f32, kind: Kind, hit: &Hit, is_concrete: bool) -> Reading {
    Reading {
        score,
        kind,
        reason: format!("{}: '{}'", kind.name(), hit.words),
        is_concrete,
    }
}
