//! What a person says: cues of the language, the rules of English, and the comparison with the request and the reply.
//!
//! The decision is ordered, and each step that decides gives its reason. In doubt there is no reading.

use crate::by_cues::{by_cues, place};
use crate::compare::{Compared, Miss};
use crate::cue::Cue;
use crate::doubt;
use crate::english;
use crate::facts;
use crate::languages::Language;
use crate::model;
use crate::quotations::{ends, is_question, masked_for_english, without_quotations};
use crate::reading::{Kind, Reading};
use crate::scan::Scan;
use crate::seen::Seen;
use crate::speech::Speech;
use crate::tools;
use crate::words::Sentence;

/// A question with this many words has its background in the sentences before.
const BACKGROUND: usize = 12;

/// Auxiliary verbs that begin a polite wish as well as a question.
const POLITE: &str = "kann kannst konnen konntest konnten konnte geht kun kunt kan kunnen peux peut pouvez pourrais puedes puede podrias \
    pode podes poderia puoi puo potresti mozesz mozna moglbys mogłbys можешь можно могли can could would will may";

/// Reads the reaction `text` to `reply`, the answer to `request`.
pub(crate) fn see(text: &str, request: &str, reply: &str) -> Option<Seen> {
    let text = ends(text);
    let (own, quotes) = without_quotations(&text);
    let folded = Speech::folded(&own);
    let (language, speech, scan) = scanned(&own, folded, request)?;
    let mut seen = Seen {
        language,
        speech,
        scan,
        quotes,
        answers: is_question(reply),
        reading: None,
    };
    seen.reading = decide(&mut seen, &text, request, reply);
    if seen.language == Language::English {
        seen.reading = match seen.reading.take() {
            Some(reading) if reading.reason.starts_with("pastes") => Some(reading),
            Some(reading) => {
                let settled = doubt::settle(reading, &seen);
                model::weigh(settled, &seen, &text, request, reply)
            }
            None => {
                let fact = facts::read(&seen, request, reply);
                model::weigh(fact, &seen, &text, request, reply)
            }
        };
    }
    Some(seen)
}

fn decide(seen: &mut Seen, text: &str, request: &str, reply: &str) -> Option<Reading> {
    let Seen {
        language,
        speech,
        scan,
        quotes,
        answers,
        ..
    } = seen;
    let (language, quotes, answers) = (*language, *quotes, *answers);
    let asks =
        scan.questions.iter().any(|is| *is) || scan.hits.iter().any(|hit| hit.cue == Cue::Asking);
    let tasks = scan.hits.iter().any(|hit| hit.cue == Cue::Task);
    let asked_last = scan
        .hits
        .iter()
        .any(|hit| hit.cue == Cue::Asking && hit.sentence + 1 == scan.questions.len());
    weigh(scan, speech);
    let has = |cue: Cue| scan.hits.iter().any(|hit| hit.cue == cue);
    if let Some(pasted) = tools::read_pasted(text).filter(|_| !asks && !tasks) {
        return Some(pasted);
    }
    let only_form = scan
        .hits
        .iter()
        .all(|hit| !(hit.cue.is_negative() || hit.cue.is_positive()) || hit.cue == Cue::Form);
    if quotes > 0 && (asks || tasks || only_form && has(Cue::Form)) {
        return None;
    }
    let negative = scan.hits.iter().any(|hit| hit.cue.is_negative());
    let is_reaction =
        has(Cue::Redo) || has(Cue::Mock) || has(Cue::Thanks) || has(Cue::Praise) && negative;
    if answers && !is_reaction {
        return None;
    }
    let told = by_cues(scan, speech);
    let votes = if language == Language::English && !has(Cue::Aside) {
        by_votes(&english::votes(&masked_for_english(text), request, reply))
    } else {
        None
    };
    let decided = [Cue::Blame, Cue::Redo, Cue::Form, Cue::Missed, Cue::Mock];
    if has(Cue::Unsure) && !decided.iter().any(|cue| has(*cue)) {
        // "Hmm, I think it is 8" is decided in spite of its first word.
        return votes.filter(|reading| reading.score < 0.0);
    }
    let praised_last = scan
        .hits
        .iter()
        .rev()
        .find(|hit| hit.cue.is_negative() || hit.cue.is_positive())
        .is_some_and(|hit| hit.cue.is_positive());
    let said = combine(told, votes, has(Cue::Understood), praised_last);
    // A question with its background: what the sentences before state is not about the reply.
    let last = scan.questions.len().saturating_sub(1);
    let ends_in_question = last > 0 && scan.questions.get(last) == Some(&true) && asked_last;
    let is_background = |reading: &Reading| {
        reading.score < 0.0
            && matches!(
                reading.kind,
                Kind::Correction | Kind::Miss | Kind::Complaint | Kind::Refusal
            )
    };
    if ends_in_question && scan.length >= BACKGROUND && said.as_ref().is_some_and(is_background) {
        return None;
    }
    let mut reading = match said {
        Some(reading) => Some(reading),
        None if answers
            || tasks
            || quotes > 1
            || has(Cue::Aside)
            || has(Cue::Unsure)
            || has(Cue::Standing) =>
        {
            None
        }
        None => by_comparison(text, request, reply, language, speech, scan, asks),
    };
    if let Some(reading) = &mut reading
        && reading.is_concrete
        && matches!(reading.kind, Kind::Miss | Kind::Form)
    {
        reading.is_concrete = scan.length > 2 || reading.kind == Kind::Form;
    }
    reading
}

/// Drops the cues that are part of a question, of a new task or of another topic, and decides the weak ones.
fn weigh(scan: &mut Scan, speech: &Speech) {
    let all = scan.hits.clone();
    let aside = all.iter().find(|hit| hit.cue == Cue::Aside).map(place);
    let questions = scan.questions.clone();
    let accepts = all
        .iter()
        .any(|hit| matches!(hit.cue, Cue::Works | Cue::Accept | Cue::Understood));
    for hit in &mut scan.hits {
        match hit.cue {
            Cue::MockWeak => {
                let mocks = ["yeah", "oh", "sure", "well", "gee", "wow", "how"]
                    .iter()
                    .any(|word| hit.words.split(' ').any(|one| one == *word));
                hit.cue = if mocks { Cue::Mock } else { Cue::Praise };
            }
            Cue::RefusalWeak if accepts => hit.cue = Cue::Thanks,
            _ => {}
        }
    }
    scan.hits.retain(|hit| {
        if hit.cue == Cue::Standing || hit.cue == Cue::Aside {
            return true;
        }
        if aside.is_some_and(|aside| place(hit) > aside) {
            return false;
        }
        let opener = all.iter().find(|one| {
            one.sentence == hit.sentence
                && matches!(one.cue, Cue::Asking | Cue::Task)
                && place(one) <= place(hit)
        });
        let is_question = questions.get(hit.sentence) == Some(&true);
        match opener {
            Some(opener) if hit.cue != opener.cue => {
                let polite = opener.cue == Cue::Asking
                    && speech.sentences.get(hit.sentence).is_some_and(is_polite);
                match hit.cue {
                    Cue::Mock => true,
                    Cue::Redo => true,
                    Cue::Form => polite,
                    cue => !cue.is_negative() && !cue.is_positive(),
                }
            }
            None if is_question => {
                let before_pause = speech
                    .sentences
                    .get(hit.sentence)
                    .and_then(|sentence| sentence.words.get(hit.end))
                    .is_some_and(|word| word.after_pause);
                before_pause || !hit.cue.is_positive() && hit.cue != Cue::Fix
            }
            _ => true,
        }
    });
}

fn is_polite(sentence: &Sentence) -> bool {
    (0..3).any(|at| {
        POLITE
            .split_whitespace()
            .any(|word| word == sentence.word(at))
    })
}

/// The majority of the votes of the rules of English.
fn by_votes(votes: &[english::Vote]) -> Option<Reading> {
    let sum: f32 = votes.iter().map(|vote| vote.score).sum();
    let first = votes.iter().find(|vote| vote.score * sum > 0.0)?;
    Some(Reading {
        score: sum.signum(),
        kind: match (sum > 0.0, first.is_wish) {
            (true, _) => Kind::Acceptance,
            (false, true) => Kind::Form,
            (false, false) if first.is_repetition => Kind::Redo,
            (false, false) => Kind::Complaint,
        },
        reason: first.reason.clone(),
        is_concrete: sum < 0.0 && votes.iter().any(|vote| vote.is_wish),
    })
}

/// One reading of the cues and the rules of English.
fn combine(
    told: Option<Reading>,
    votes: Option<Reading>,
    understood: bool,
    praised_last: bool,
) -> Option<Reading> {
    let (told, votes) = match (told, votes) {
        (told, None) => return told,
        (None, votes) => return votes,
        (Some(told), Some(votes)) => (told, votes),
    };
    if told.score * votes.score > 0.0 {
        let is_concrete = told.is_concrete || votes.is_concrete;
        return Some(Reading {
            is_concrete,
            ..told
        });
    }
    let decisive = match told.kind {
        Kind::Sarcasm | Kind::Refusal | Kind::StandingWish => true,
        Kind::Correction | Kind::Miss => !praised_last,
        _ => told.score > 0.0 && understood,
    };
    Some(if decisive { told } else { votes })
}

fn by_comparison(
    text: &str,
    request: &str,
    reply: &str,
    language: Language,
    speech: &Speech,
    scan: &Scan,
    asks: bool,
) -> Option<Reading> {
    if scan
        .hits
        .iter()
        .any(|hit| hit.cue == Cue::Asking || hit.cue == Cue::Skip)
    {
        return None;
    }
    let compared = Compared::new(request, reply, text, language);
    let (miss, why) = compared.miss(speech, asks, scan.length)?;
    if miss == Miss::BareAnswer && is_task(request, language) {
        return None;
    }
    let kind = match miss {
        Miss::Repeated | Miss::Contradiction => Kind::Miss,
        Miss::OtherNumber | Miss::BareAnswer => Kind::Correction,
    };
    Some(Reading {
        score: -1.0,
        kind,
        reason: format!("{}: {why}", kind.name()),
        is_concrete: true,
    })
}

/// The language of the text, with its words and cues. Of several possible languages it is the one with most cues.
fn scanned(text: &str, folded: Speech, request: &str) -> Option<(Language, Speech, Scan)> {
    fn words(speech: &Speech) -> Vec<&str> {
        speech
            .sentences
            .iter()
            .flat_map(|sentence| sentence.words.iter())
            .map(|word| word.text.as_str())
            .collect()
    }
    let before = Speech::folded(&without_quotations(&ends(request)).0);
    Language::candidates(text, &words(&folded), &words(&before))
        .into_iter()
        .map(|language| {
            let speech = if language == Language::English {
                Speech::read(text)
            } else {
                folded.clone()
            };
            let scan = Scan::read(text, &speech, language);
            (language, speech, scan)
        })
        .reduce(|best, other| {
            if other.2.covered() > best.2.covered() {
                other
            } else {
                best
            }
        })
}

/// The request is a task, so that no few words are another answer to it.
fn is_task(request: &str, language: Language) -> bool {
    let (start, _) = without_quotations(&ends(request));
    let start = start
        .get(..start.floor_char_boundary(150))
        .unwrap_or_default();
    let speech = if language == Language::English {
        Speech::read(start)
    } else {
        Speech::folded(start)
    };
    let scan = Scan::read(start, &speech, language);
    scan.hits
        .iter()
        .any(|hit| hit.cue == Cue::Task && hit.start < 3)
}
