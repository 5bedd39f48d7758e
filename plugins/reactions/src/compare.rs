//! Compares a reaction with the request and the reply: a statement that repeats a constraint of the request, gives another
//! number or another short answer, or states something of what the reply named, says that the reply missed.

use crate::languages::{Language, common};
use crate::speech::{Speech, fold};

/// The texts of one turn.
pub(crate) struct Compared {
    request: Vec<String>,
    reply: Vec<String>,
    reaction: Vec<String>,
}

/// Words after which a bare answer comes.
const LEADS: &str = "no nope nah well actually um uh er it it's its is was were the a an that's be should only to in at by \
    bah ben beh mais non c'est etait c'etait le la les l un une en fait nein ne nee doch das ist es war der die sondern \
    eigentlich sino es era fue el la los en realidad foi e era o a os na verdade eh quella quello il lo un in het de dat toch \
    natuurlijk van nee this these those esto eso das dies dit dat questo isso isto ceci ca byl to jest nie это была был не а нет sorry btw so hmm hm oh lol";

/// Words that no bare answer has: it names a thing.
const TALK: &str = "so what why how who which thought exactly well then there here way you your this that these those it not no never don't doesn't didn't isn't wasn't can't couldn't won't wouldn't hasn't \
    god bless lord wow haha omg anymore already again please classify write make draft translate find list describe posted sent \
    booked ordered merged deployed shipped submitted bought saved applied installed published done tried came turned went got xquotex";

/// The longest statement that is compared.
const LONG: usize = 16;
/// Words of a bare answer.
const BARE: usize = 4;

impl Compared {
    pub(crate) fn new(request: &str, reply: &str, reaction: &str, language: Language) -> Compared {
        Compared {
            request: tokens(request, language),
            reply: tokens(reply, language),
            reaction: tokens(reaction, language),
        }
    }

    /// Why the reaction says that the reply missed, if it does. `speech` are its words, `asks` whether it is a question, and
    /// `length` its words in all.
    pub(crate) fn miss(
        &self,
        speech: &Speech,
        asks: bool,
        length: usize,
    ) -> Option<(Miss, String)> {
        if length == 0 || length > LONG || self.reaction.is_empty() {
            return None;
        }
        let of_request = |word: &&String| known(&self.request, word) && !known(&self.reply, word);
        let of_reply = |word: &&String| known(&self.reply, word) && !known(&self.request, word);
        let echo = self.reaction.iter().find(of_request);
        let named = self.reaction.iter().find(of_reply);
        if asks {
            // "80 € is less than 20?" sets the reply against the request.
            return match (echo, named) {
                (Some(echo), Some(named)) if length <= 10 => Some((
                    Miss::Contradiction,
                    format!("'{named}' of the reply against '{echo}' of the request"),
                )),
                _ => None,
            };
        }
        if has_word(speech, SELF) {
            return None;
        }
        if let Some(echo) = echo {
            return Some((Miss::Repeated, format!("'{echo}' of the request again")));
        }
        if has_word(speech, OWN) {
            return None;
        }
        let numbers = |all: &[String]| -> Vec<String> {
            all.iter().filter(|word| is_number(word)).cloned().collect()
        };
        let replied = numbers(&self.reply);
        let fresh = numbers(&self.reaction)
            .into_iter()
            .find(|number| !replied.contains(number) && !self.request.contains(number));
        if let Some(number) = fresh
            && !replied.is_empty()
        {
            return Some((
                Miss::OtherNumber,
                format!("'{number}', not '{}'", replied.join("', '")),
            ));
        }
        // "250 characters" where 100 were asked for.
        let counted = numbers(&self.reaction)
            .into_iter()
            .find(|number| replied.contains(number) && !self.request.contains(number));
        if let Some(number) = counted
            && !numbers(&self.request).is_empty()
        {
            return Some((Miss::Contradiction, format!("'{number}' of the reply")));
        }
        let is_new = |word: &String| !known(&self.reply, word) && !known(&self.request, word);
        if let Some(named) = named
            && length <= 10
            && self.reaction.iter().any(is_new)
        {
            return Some((
                Miss::Contradiction,
                format!("states something of '{named}'"),
            ));
        }
        self.bare_answer(speech)
    }

    /// "Amazon" after "the Orinoco": few words, none of which the reply has.
    fn bare_answer(&self, speech: &Speech) -> Option<(Miss, String)> {
        let [sentence] = speech.sentences.as_slice() else {
            return None;
        };
        let words: Vec<&str> = sentence
            .words
            .iter()
            .map(|word| word.text.as_str())
            .skip_while(|word| LEADS.split_whitespace().any(|lead| lead == *word))
            .collect();
        let fits = (1..=BARE).contains(&words.len())
            && !self.reaction.iter().any(|word| known(&self.reply, word))
            && !self.request.is_empty()
            && words.iter().any(|word| word.chars().count() >= 2)
            && words.iter().all(|word| common(word).count_ones() < 3)
            && !words
                .iter()
                .any(|word| TALK.split(' ').any(|one| one == *word));
        fits.then(|| (Miss::BareAnswer, format!("'{}' instead", words.join(" "))))
    }
}

/// How a statement shows that the reply missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Miss {
    /// It repeats what the reply left out of the request.
    Repeated,
    /// It sets the reply against the request or the facts.
    Contradiction,
    /// It has another number.
    OtherNumber,
    /// It is another answer.
    BareAnswer,
}

/// Words of the first person: what one tells of oneself is no correction.
const SELF: &str = "i i'm i've my ich mein meine je j'ai mon ma yo mi eu meu minha io ho mio mia ik mijn mam moj moja я мой моя";
/// Words of a group. A constraint of the request may be repeated with it: "we use pytest".
const OWN: &str = "we our wir unser nous notre nosotros nos noi wij ons my мы";

fn has_word(speech: &Speech, words: &str) -> bool {
    speech.sentences.iter().any(|sentence| {
        sentence
            .words
            .iter()
            .any(|word| words.split(' ').any(|one| one == word.text))
    })
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

/// Whether a word occurs, perhaps with another ending.
pub(crate) fn known(words: &[String], word: &str) -> bool {
    words.iter().any(|other| same_stem(other, word))
}

fn same_stem(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    if is_number(one) || is_number(other) {
        return false;
    }
    let shared = one
        .chars()
        .zip(other.chars())
        .take_while(|(a, b)| a == b)
        .count();
    let longer = one.chars().count().max(other.chars().count());
    shared >= 4 && longer - shared <= 3
}

/// The words with content: numbers, and words that are not common in the language; pairs of characters of a text without
/// spaces.
pub(crate) fn tokens(text: &str, language: Language) -> Vec<String> {
    let mut found = Vec::new();
    let mut word = String::new();
    let mut chars: Vec<char> = text.chars().take(1_500).collect();
    chars.push(' ');
    for (at, &c) in chars.iter().enumerate() {
        let next = chars.get(at + 1).copied().unwrap_or(' ');
        if is_ideograph(c) {
            push(&mut found, &mut word, language);
            if is_ideograph(next) {
                found.push([c, next].iter().collect());
            } else if let Some(digit) = digit_of(c) {
                found.push(digit.to_string());
            }
            continue;
        }
        if c.is_ascii_digit() != word.ends_with(|c: char| c.is_ascii_digit())
            && !word.is_empty()
            && c.is_alphanumeric()
        {
            push(&mut found, &mut word, language);
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        } else if !matches!(c, '\'' | '\u{2019}') || !next.is_alphanumeric() {
            push(&mut found, &mut word, language);
        } else {
            word.push('\'');
        }
    }
    found
}

fn push(found: &mut Vec<String>, word: &mut String, language: Language) {
    let text = fold(word);
    word.clear();
    // "l'apostrofo" and "Maria's": the longer part counts.
    let text = match text.rsplit_once('\'') {
        Some((_, tail)) if tail.chars().count() > 2 => tail.to_owned(),
        Some((head, _)) => head.to_owned(),
        None => text,
    };
    let number = number_of(&text, language).map(str::to_owned);
    let text = number.unwrap_or(text);
    let kana = text.chars().all(|c| ('\u{3040}'..='\u{30ff}').contains(&c));
    let long = text.chars().count() >= 3 || is_number(&text);
    let hiragana = kana && text.chars().any(|c| c < '\u{30a0}');
    if long && !hiragana && common(&text) == 0 {
        found.push(text);
    }
}

fn is_ideograph(c: char) -> bool {
    ('\u{4e00}'..='\u{9fff}').contains(&c)
}

fn digit_of(c: char) -> Option<usize> {
    "一二三四五六七八九十"
        .chars()
        .position(|one| one == c)
        .map(|at| at + 1)
}

/// Small numbers that are written as words.
fn number_of(word: &str, language: Language) -> Option<&'static str> {
    // Left out: words for 1 that are also a pronoun or an article.
    let words = match language {
        Language::English => "_ two three four five six seven eight nine ten",
        Language::German => "eins zwei drei vier funf sechs sieben acht neun zehn",
        Language::Dutch => "_ twee drie vier vijf zes zeven acht negen tien",
        Language::French => "_ deux trois quatre cinq six sept huit neuf dix",
        Language::Spanish => "_ dos tres cuatro cinco seis siete ocho nueve diez",
        Language::Portuguese => "_ dois tres quatro cinco seis sete oito nove dez",
        Language::Italian => "_ due tre quattro cinque sei sette otto nove dieci",
        Language::Polish => "_ dwa trzy cztery piec szesc siedem osiem dziewiec dziesiec",
        Language::Turkish => "_ iki uc dort bes alti yedi sekiz dokuz on",
        Language::Russian => "_ два три четыре пять шесть семь восемь девять десять",
        _ => return None,
    };
    let at = words.split(' ').position(|one| one == word)?;
    ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]
        .get(at)
        .copied()
}
