//! Distinguishes an order for new work from a wish to change the response.
//!
//! "Remove the bold" and "now remove the note about tea" share their verb, so the verb alone is not enough. Three features
//! distinguish them: the position of the order (after thanks, or after a word of sequence such as "next" and "now"), its
//! object (a part of a response, or a thing in the world), and whether it says how the response should differ ("again",
//! "without", "shorter"). An order for new work accepts the last response, and the words that describe the work are no
//! remarks about the response.

use crate::compiled::pattern;
use crate::english::lexicon::{Class, class};
use crate::english::reaction;
use crate::english::repetition::content_words;
use crate::pattern::occurs;
use crate::speech::Speech;
use crate::words::Sentence;

/// The position of a new order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    /// Index of its sentence.
    sentence: usize,
    /// Index of its verb.
    verb: usize,
}

/// The new orders in a message.
#[derive(Debug, Clone, Default)]
pub(crate) struct Orders {
    all: Vec<Order>,
}

impl Orders {
    pub(crate) fn read(speech: &Speech) -> Orders {
        let all = (0..speech.sentences.len())
            .filter_map(|sentence| {
                let verb = new_order(speech, sentence)?;
                Some(Order { sentence, verb })
            })
            .collect();
        Orders { all }
    }

    /// Whether the sentence with this index contains one.
    pub(crate) fn is_in(&self, sentence: usize) -> bool {
        self.all.iter().any(|order| order.sentence == sentence)
    }

    /// The words of the first one.
    pub(crate) fn words(&self, speech: &Speech) -> Option<String> {
        let order = self.all.first()?;
        let words = &speech.sentences.get(order.sentence)?.words;
        let words: Vec<&str> = words
            .iter()
            .skip(order.verb)
            .take(4)
            .map(|word| word.text.as_str())
            .collect();
        Some(words.join(" "))
    }

    /// The message without the descriptions of the ordered work.
    pub(crate) fn left_out(&self, speech: &Speech) -> Speech {
        let mut rest = speech.clone();
        for order in &self.all {
            if let Some(sentence) = rest.sentences.get_mut(order.sentence) {
                sentence.words.truncate(order.verb);
            }
        }
        rest.sentences.retain(|sentence| !sentence.words.is_empty());
        rest
    }

    /// Whether an order contains something that the previous request did not, so that it cannot be a repetition of it.
    pub(crate) fn differ_from(&self, speech: &Speech, before: &str) -> bool {
        let known = content_words(before);
        self.all.iter().any(|order| {
            let text: Vec<&str> = speech
                .sentences
                .get(order.sentence)
                .into_iter()
                .flat_map(|sentence| sentence.words.iter().skip(order.verb))
                .map(|word| word.text.as_str())
                .collect();
            !content_words(&text.join(" ")).is_subset(&known)
        })
    }
}

/// The verb of the order for new work in a sentence, if there is one.
fn new_order(speech: &Speech, number: usize) -> Option<usize> {
    let sentence = speech.sentences.get(number)?;
    let verb = order_verb(sentence)?;
    let denied = speech.sentences.iter().take(number).any(is_denial);
    if denied || turns_back(sentence) || says_how_to_differ(sentence, verb) {
        return None;
    }
    let sequenced = (0..verb).any(|at| class(Class::Sequence, sentence.word(at)))
        || occurs(
            pattern!("after|once|when that|this|that's|it|you're|you"),
            &upto(sentence, verb),
        );
    let object = Object::after(sentence, verb);
    let is_new = if sequenced || is_approved(speech, number, verb) {
        object.can_be_outside(sentence.word(verb))
    } else {
        object.is_a_thing
    };
    is_new.then_some(verb)
}

/// "No.", "Not that list.", but not "Not bad!": an order after it corrects the response.
fn is_denial(sentence: &Sentence) -> bool {
    let alone = Speech {
        sentences: vec![sentence.clone()],
    };
    occurs(pattern!("^ no|nope|nah $"), sentence)
        || (occurs(pattern!("^ not"), sentence)
            && reaction::vote(&alone, false).is_none_or(|vote| vote.score < 0.0))
}

/// The first verb of an order at a position where an order can begin: first, after a pause, or after an introductory word
/// ("now", "please", "can you").
fn order_verb(sentence: &Sentence) -> Option<usize> {
    (0..sentence.words.len()).find(|&at| {
        let led_to = at.checked_sub(1).is_none_or(|before| {
            let word = sentence.word(before);
            sentence.words.get(at).is_some_and(|word| word.after_pause)
                || class(Class::Sequence, word)
                || class(Class::Lead, word)
                || class(Class::Good, word)
        });
        led_to && (class(Class::Edit, sentence.word(at)) || class(Class::Redo, sentence.word(at)))
    })
}

/// The text before the order is revoked: "thanks, but remove the second line".
fn turns_back(sentence: &Sentence) -> bool {
    sentence.words.iter().any(|word| {
        matches!(
            word.text.as_str(),
            "but" | "though" | "although" | "however" | "instead" | "rather" | "except" | "still"
        )
    })
}

/// The order asks for another version: "again", "without the list", "so it is shorter".
fn says_how_to_differ(sentence: &Sentence, verb: usize) -> bool {
    let after = Sentence {
        words: sentence.words.iter().skip(verb).cloned().collect(),
        traits: sentence.traits,
        is_question: sentence.is_question,
    };
    occurs(
        pattern!("again|differently|otherwise|anew|afresh|without|over|properly|correctly|better"),
        &after,
    ) || occurs(pattern!("@more|@adverb"), &after)
        || occurs(
            pattern!("cut|strip|boil|break|take @it down|short|back|up|apart"),
            &after,
        )
        || occurs(
            pattern!("so|to be|is|sound|sounds|look|looks|read|reads"),
            &after,
        )
        || occurs(
            pattern!("into|in|as|like @very? @quality|@cold|prose|english|words"),
            &after,
        )
        || occurs(
            pattern!("something|anything|some|a|an|the _1 @quality|@good|@cold"),
            &after,
        )
        || occurs(
            pattern!("what|why|how|where|which i|you|he|she|it|they|is|was|went|to"),
            &after,
        )
}

/// The user is pleased before giving the order.
fn is_approved(speech: &Speech, number: usize, verb: usize) -> bool {
    let mut before = Speech {
        sentences: speech.sentences.iter().take(number).cloned().collect(),
    };
    if let Some(sentence) = speech.sentences.get(number) {
        before.sentences.push(upto(sentence, verb));
    }
    reaction::vote(&before, false).is_some_and(|vote| vote.score > 0.0)
}

fn upto(sentence: &Sentence, end: usize) -> Sentence {
    Sentence {
        words: sentence.words.iter().take(end).cloned().collect(),
        traits: sentence.traits,
        is_question: sentence.is_question,
    }
}

/// The object of an order: the words between its verb and the next preposition or pause.
struct Object {
    /// Only "it", "that", "them", or nothing.
    is_pointer: bool,
    /// A part of a reply or a feature of its form.
    is_part_of_a_reply: bool,
    /// A thing that exists only outside a response: a file, an appointment, something of the user's.
    is_a_thing: bool,
}

impl Object {
    fn after(sentence: &Sentence, verb: usize) -> Object {
        let words: Vec<&str> = sentence
            .words
            .iter()
            .skip(verb + 1)
            .enumerate()
            .take_while(|(at, word)| {
                !class(Class::Preposition, &word.text) && (*at == 0 || !word.after_pause)
            })
            .map(|(_, word)| word.text.as_str())
            .filter(|word| !is_filler(word))
            .collect();
        let place: Vec<&str> = sentence
            .words
            .iter()
            .skip(verb + 1 + words.len())
            .map(|word| word.text.as_str())
            .collect();
        let is_thing = |word: &&str| class(Class::Thing, word) || class(Class::File, word);
        let is_a_thing = words.iter().any(is_thing)
            || matches!(words.first(), Some(&("my" | "our")))
            || is_of_the_users(&place);
        // "the shopping list" and "the note about tea" have a name; "the list" is the form of a response.
        let head = words.last().copied().unwrap_or_default();
        let before = words.len().checked_sub(2).and_then(|at| words.get(at));
        let is_form = |word: &str| {
            [Class::Format, Class::Part, Class::Listing]
                .iter()
                .any(|name| class(*name, word))
        };
        let is_named = words.windows(2).any(
            |pair| matches!(pair, [listing, name] if class(Class::Listing, listing) && !is_form(name)),
        ) || class(Class::Listing, head)
            && (before.is_some_and(|word| !describes_form(word))
                || place
                    .first()
                    .is_some_and(|word| matches!(*word, "about" | "called" | "named")));
        let is_part_of_a_reply = !is_a_thing
            && !is_named
            && (words
                .iter()
                .any(|word| class(Class::Part, word) || class(Class::Format, word))
                || words.first() == Some(&"your")
                || place
                    .iter()
                    .any(|word| class(Class::Part, word) || *word == "your")
                || place
                    .iter()
                    .rev()
                    .find(|word| !is_filler(word))
                    .is_some_and(|last| {
                        matches!(*last, "beginning" | "end" | "start" | "top" | "bottom")
                    }));
        Object {
            is_pointer: words.iter().all(|word| class(Class::It, word)),
            is_part_of_a_reply,
            is_a_thing,
        }
    }

    /// Whether an order with this verb can be about something other than the response. A whole response can be rewritten,
    /// but cannot be removed from itself.
    fn can_be_outside(&self, verb: &str) -> bool {
        !self.is_part_of_a_reply && (!self.is_pointer || !class(Class::Redo, verb))
    }
}

fn is_filler(word: &str) -> bool {
    matches!(word, "please" | "now" | "also" | "too" | "then" | "all")
}

fn occurs_in(words: &[&str], any: &[&str]) -> bool {
    words.iter().any(|word| any.contains(word))
}

/// "from my shopping list", "on the calendar".
fn is_of_the_users(place: &[&str]) -> bool {
    occurs_in(place, &["my", "our"])
        || place
            .iter()
            .any(|word| class(Class::Thing, word) || class(Class::File, word))
}

/// Words before "list" that indicate the form of a response.
fn describes_form(word: &str) -> bool {
    matches!(
        word,
        "the"
            | "a"
            | "an"
            | "this"
            | "that"
            | "these"
            | "those"
            | "your"
            | "all"
            | "any"
            | "silly"
            | "first"
            | "second"
            | "third"
            | "last"
            | "whole"
            | "entire"
            | "big"
            | "little"
            | "other"
            | "fancy"
    ) || [
        Class::Format,
        Class::Quality,
        Class::Cold,
        Class::Very,
        Class::Number,
        Class::Part,
    ]
    .iter()
    .any(|name| class(*name, word))
}
