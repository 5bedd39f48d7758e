//! Finds the phrases of a language in a text.

use crate::cue::Cue;
use crate::languages::{Language, Phrases};
use crate::pattern::find;
use crate::speech::Speech;

/// A phrase in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) cue: Cue,
    /// Index of the sentence.
    pub(crate) sentence: usize,
    /// Where it begins and ends: words, or characters of a text without spaces.
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) words: String,
}

/// A text as the rules see it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scan {
    /// By position.
    pub(crate) hits: Vec<Hit>,
    /// For each sentence, whether it ends with a question mark.
    pub(crate) questions: Vec<bool>,
    /// Words in all, with two characters of a text without spaces for one word.
    pub(crate) length: usize,
    /// The text has no spaces between words.
    pub(crate) by_pieces: bool,
}

/// Words between a negation and what it negates.
const REACH: usize = 2;

impl Scan {
    pub(crate) fn read(text: &str, speech: &Speech, language: Language) -> Scan {
        let mut scan = match language.phrases() {
            Phrases::Words(patterns, cues) => {
                let mut scan = Scan::default();
                for (number, sentence) in speech.sentences.iter().enumerate() {
                    let mut used = vec![false; sentence.words.len()];
                    for (pattern, (_, cue)) in patterns.iter().zip(cues) {
                        let mut from = 0;
                        while let Some(hit) = find(pattern, sentence, from) {
                            from = hit.start + 1;
                            let Some(words) = used.get_mut(hit.start..hit.end) else {
                                break;
                            };
                            if words.is_empty() || words.contains(&true) {
                                continue;
                            }
                            words.fill(true);
                            let words: Vec<&str> =
                                (hit.start..hit.end).map(|at| sentence.word(at)).collect();
                            scan.hits.push(Hit {
                                cue: *cue,
                                sentence: number,
                                start: hit.start,
                                end: hit.end,
                                words: words.join(" "),
                            });
                        }
                    }
                    scan.questions.push(sentence.is_question);
                    scan.length += sentence.words.len();
                }
                scan
            }
            Phrases::Texts(lists) => of_pieces(text, lists),
        };
        scan.hits.sort_by_key(|hit| (hit.sentence, hit.start));
        scan.negate(speech);
        scan
    }

    /// Words, or characters, that belong to a phrase.
    pub(crate) fn covered(&self) -> usize {
        self.hits.iter().map(|hit| hit.end - hit.start).sum()
    }

    /// "not good" is blame, and "not bad" is praise.
    fn negate(&mut self, speech: &Speech) {
        let all = self.hits.clone();
        for hit in &mut self.hits {
            let turned = match hit.cue {
                Cue::Praise | Cue::Works | Cue::Accept | Cue::Understood => Cue::Blame,
                Cue::Blame => Cue::Praise,
                _ => continue,
            };
            let negation = all.iter().find(|not| {
                not.cue == Cue::Not
                    && not.sentence == hit.sentence
                    && not.end <= hit.start
                    && hit.start - not.end < REACH
            });
            let Some(not) = negation else { continue };
            let paused = speech.sentences.get(hit.sentence).is_some_and(|sentence| {
                (not.end..=hit.start)
                    .any(|at| sentence.words.get(at).is_some_and(|word| word.after_pause))
            });
            if !paused {
                hit.cue = turned;
                hit.words = format!("{} {}", not.words, hit.words);
            }
        }
    }
}

/// Characters that a gap in a piece of text may have.
const GAP: usize = 12;

fn of_pieces(text: &str, lists: &[(Cue, &str)]) -> Scan {
    let mut scan = Scan {
        by_pieces: true,
        ..Scan::default()
    };
    for (number, sentence) in sentences(text).iter().enumerate() {
        let chars: Vec<char> = sentence.chars().collect();
        let mut used = vec![false; chars.len()];
        for (cue, pieces) in lists {
            for piece in pieces.split(' ') {
                let mut from = 0;
                while let Some((start, end)) = find_piece(&chars, piece, from) {
                    from = start + 1;
                    let Some(range) = used.get_mut(start..end) else {
                        break;
                    };
                    if range.is_empty() || range.contains(&true) {
                        continue;
                    }
                    let negated = matches!(
                        cue,
                        Cue::Praise | Cue::Works | Cue::Understood | Cue::Accept
                    ) && start
                        .checked_sub(1)
                        .and_then(|before| chars.get(before))
                        .is_some_and(|c| matches!(c, '不' | '没' | '未' | '無' | '非'));
                    range.fill(true);
                    let words: String = chars.get(start..end).unwrap_or_default().iter().collect();
                    scan.hits.push(Hit {
                        cue: if negated { Cue::Blame } else { *cue },
                        sentence: number,
                        start,
                        end,
                        words,
                    });
                }
            }
        }
        scan.questions.push(sentence.ends_with('?'));
        scan.length += chars
            .iter()
            .filter(|c| c.is_alphanumeric())
            .count()
            .div_ceil(2);
    }
    scan
}

/// Sentences with their end mark; letters and marks that are written in several ways are unified.
fn sentences(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut current = String::new();
    for c in text.chars() {
        let plain = match c {
            '！' => '!',
            '？' | '؟' => '?',
            '，' | '،' => ',',
            '（' => '(',
            '）' => ')',
            '～' => '~',
            '。' | '．' | '।' => '.',
            'أ' | 'إ' | 'آ' | 'ٱ' => 'ا',
            'ة' => 'ه',
            'ى' => 'ي',
            '\u{64b}'..='\u{652}' | '\u{640}' => continue,
            '\n' => '.',
            c => c,
        };
        current.extend(plain.to_lowercase());
        if matches!(plain, '!' | '?' | '.') {
            found.push(std::mem::take(&mut current));
        }
    }
    found.push(current);
    found.retain_mut(|sentence| {
        *sentence = sentence.trim().trim_end_matches('.').to_owned();
        sentence.chars().any(char::is_alphanumeric)
    });
    found
}

/// The first place of a piece at or after `from`: `~` is a gap, `_` a space, `^` the beginning and `$` the end.
fn find_piece(chars: &[char], piece: &str, from: usize) -> Option<(usize, usize)> {
    let (anchored, piece) = match piece.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, piece),
    };
    let (at_end, piece) = match piece.strip_suffix('$') {
        Some(rest) => (true, rest),
        None => (false, piece),
    };
    let (head, tail) = piece.split_once('~').unwrap_or((piece, ""));
    let matches = |at: usize, part: &str| -> Option<usize> {
        let mut at = at;
        for c in part.chars() {
            let c = if c == '_' { ' ' } else { c };
            if chars.get(at) != Some(&c) {
                return None;
            }
            at += 1;
        }
        Some(at)
    };
    let last = if anchored { 0 } else { chars.len() };
    (from..=last.min(chars.len())).find_map(|start| {
        let end = matches(start, head)?;
        let end = if tail.is_empty() {
            end
        } else {
            (end..=end + GAP).find_map(|at| matches(at, tail))?
        };
        (!at_end || end == chars.len()).then_some((start, end))
    })
}
