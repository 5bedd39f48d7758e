//! Rule 2: what the user asks for next: a redo, to keep the response, or something new.

use crate::english::vote::Vote;

use crate::compiled::{Patterns, compiled, pattern};
use crate::english::lexicon::{Class, class};
use crate::english::order::Orders;
use crate::english::praise::is_object_of_praise;
use crate::english::repetition::{content_words, numbers};
use crate::pattern::{Pattern, find, occurs};
use crate::speech::Speech;
use crate::words::Sentence;

/// The kind of the user's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Another version of the response.
    ForChange,
    /// To keep or use the response.
    ToKeep,
    /// The next piece of work, which is announced: the response is accepted.
    ForSomethingNew,
    /// Something with its own material, which says nothing about the response.
    WithMaterial,
    /// Something that looks like a new task; it says nothing about the response.
    ForSomethingElse,
    /// A question about the response, or unclear.
    Nothing,
}

/// The request, and the words that express it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) asked: Asked,
    words: String,
}

impl Request {
    /// The vote. A new task after a complaint is no approval.
    pub(crate) fn vote(&self, complains: bool) -> Option<Vote> {
        let (score, what) = match self.asked {
            Asked::ForChange => (-1.0, "asks for another version"),
            Asked::ToKeep if !complains => (1.0, "keeps or uses the reply"),
            Asked::ForSomethingNew if !complains => (1.0, "moves on to something new"),
            _ => return None,
        };
        let rationale = if self.words.is_empty() {
            format!("the user {what}")
        } else {
            format!("the user {what}: \"{}\"", self.words)
        };
        Some(Vote::new(score, rationale))
    }
}

/// Phrases that ask for another version of the response.
const CHANGE: &[&str] = &[
    "@redo @it|@reply|again|please|so|without|with|in|to|as|more|less|using|instead|completely|entirely|everything|accordingly|down|up",
    "@redo @it",
    "@redo the|your|that|this|my|its|his|her _2 @reply|beginning|end|mistake|mistakes|error|errors|formatting|style|wording|grammar|calculation|math|result|last|first|second|third",
    "^ @redo $|now|please|and",
    "please|you|just|to @redo $|now|please",
    "correct it|this|your|the|that",
    "tone @it? down|up",
    "can|could|would|will|please|just you? _1 @redo @it|the|your|that|again",
    "do|write|say|give|solve|explain|answer|try|make|put|phrase|tell|calculate|run|build|grade|comment @it? _2 again|over|differently|anew|afresh",
    "again|anew please $",
    "^ again $",
    "@it differently|otherwise",
    "word|phrase @it",
    "but|just|and @more $",
    "try|do|have|get|see|read @it|one without|with|in|as",
    "^ once|one more|again time? please? $",
    "one more time|try|attempt|go|shot",
    "once more|again",
    "try|start|begin again|over|harder|anew|fresh|once|another|something|better|to",
    "another|different|second|new|fresh|a try|attempt|version|go|wording|answer|approach|way|phrasing|draft|shot|take",
    "give|show|try|suggest|tell|something|want me? something different|better|simpler|more|else",
    "not like this|that",
    "suggest|give|show|any|some|want|have _2 other|others|alternatives|alternative",
    "go back to|and",
    "undo|revert the|your",
    "make @it|@reply|the|your|sure|them _3 @more|@quality|sound|look|read|less|more|shorter|simpler|less",
    "make @it @quality",
    "make|turn|put|convert|change @it|the|your _1 into|to",
    "put|write|give|say|explain @it|me|your _1 in _1 _1 @format|@reply|prose|words|english|text|plain|simple|simpler|paragraph|sentences|lines",
    "write|give|say|tell|explain|phrase|put|answer|keep @it|me|@reply|the|your _1 as|without|like|with|more|less|simply|plainly|differently|shorter",
    "without|with _1 the|all|any _1 @format",
    "can|could|would|will you please? not|stop|avoid|leave|remove|drop|cut|shorten|simplify|skip _1 @it|the|@format|@more",
    "use|using|with|in different|other|simpler|fewer|plain|normal|simple|less|easier words|text|language|sentences|prose|english|format",
    "remove|delete|drop|cut|shorten|replace|add|include|mention|insert|fix|move @it|the|your|all|a|an|some|more|what|why|how|one|that|those|any|specific|something",
    "rather|instead $",
    "^ @more please? now? $",
    "^ please @more|@quality $",
    "could|can|would|will|should you _2 be|sound|make|stay|get|leave|remove|drop|take|not|stop _3 @more|@quality|@format",
    "instead|rather|prefer|preferred _3 @format|prose|paragraph|text|sentences|@more",
    "i'd|would|i prefer|rather _3 without|instead|different|@more|@quality|plain|paragraph|prose|text",
    "i'd|would like|love _3 without|instead|different|@more|@quality|plain|paragraph|prose|text",
    "i want|wanted|need|needed|meant|asked|said _5 not|instead|without",
    "can|could|would you use @it|these|those",
    "are you sure",
    "check|double|verify|recheck that|it|again|your|check",
];

/// Phrases that keep or use the response.
const KEEP: &[&str] = &[
    "save|store|keep|export|print|copy|paste|download|bookmark|file|archive|pin @it|this|that|the|to|as|your|answer",
    "please|now|and|just|ok|okay|can|could|then|you|go _2 save|submit|export|print|send|post|publish|commit|merge|deploy|ship|push $|@it|to|the",
    "^ save|submit|send|post|publish|commit|merge|deploy|ship|push|print|export|apply|accept $|@it|to|the|as|please",
    "submit|send|post|publish|commit|merge|deploy|ship|push|turn|hand @it _3 in|off|now|out|to|$|as|please|for",
    "i'll|i|i'm|we'll|will|gonna|going _1 use|take|keep|submit|send|go|save|copy|using|taking|keeping|sending|submitting|hand|turn|stick|run _1 @it|with|the|your",
    "use @it $",
    "go|going|gone ahead|with",
    "^ _2 accept|approve|accepted|approved $|it|this|that",
    "i|we accept|approve",
    "run it|that $|now|please",
    "turn|hand @it in",
    "put @it in|into|on my|the",
    "write|save|put|store|copy|add|paste|export @it|the|your|answer|comment to|down|in|into|on _3 @file",
    "looks|sounds good|great|fine|perfect|right to me",
    "no changes|edits|corrections needed|necessary|required",
    "that|this|it will|works|should do|fine|work",
    "that's all|everything|it _3 for|i|thanks|today|now|$",
    "nothing|no else|more|further $|thanks|questions|to|needed",
    "we're|i'm|all|we|i done|finished|set|good $|here|now|for",
    "bye|goodbye|goodnight $",
    "see you later|tomorrow|soon",
];

/// Phrases that begin something new.
const NEW: &[&str] = &[
    "next @next|up|please|one|$",
    "the|my|our|and|on|to next @next",
    "another|new|different|second|third|other question|problem|task|topic|thing|exercise|student|essay|file|example|issue",
    "question|problem|exercise|task|part|student|essay|number|item|chapter @number|two|three|four|five|b|c|d",
    "moving|move|moved on",
    "let's|let us? move|continue|go|do|try|start|work|look|turn|switch|proceed|also",
    "now|next|also|alright|finally now? @task|let's|please|can|could|how|what|i",
    "ok|okay|great|thanks|perfect|good|nice|cool then? now @task|let's|please|can|could",
    "^ now|next|also",
    "on|back to the|my|another|a|our",
    "while you're at",
    "one more thing|question|problem|exercise|for",
    "can|could|would you now|also",
    "i _1 have|got another|one|a|two _1 @next",
    "here's|here is|are _2 @next|another",
    "continue|proceed|go on|ahead|with|$",
];

/// Detects the request.
pub(crate) fn read(
    speech: &Speech,
    orders: &Orders,
    text: &str,
    before: &str,
    reply: &str,
) -> Request {
    let brings_material = brings_material(speech, text, before, reply);
    let change = || {
        speech
            .sentences
            .iter()
            .enumerate()
            .filter(|(number, _)| !orders.is_in(*number))
            .find_map(|(_, sentence)| change_asked_for(sentence))
    };
    let keep = || {
        speech
            .sentences
            .iter()
            .find_map(|sentence| asks(sentence, compiled!(KEEP)))
    };
    let (asked, words) = if let Some(words) = change().filter(|_| !brings_material) {
        (Asked::ForChange, words)
    } else if let Some(words) = keep() {
        (Asked::ToKeep, words)
    } else if let Some(words) = orders.words(speech).or_else(|| announcement(speech)) {
        (Asked::ForSomethingNew, words)
    } else if brings_material {
        (Asked::WithMaterial, String::new())
    } else if is_fresh_task(speech, text, before, reply) {
        (Asked::ForSomethingElse, String::new())
    } else {
        (Asked::Nothing, String::new())
    };
    Request { asked, words }
}

fn change_asked_for(sentence: &Sentence) -> Option<String> {
    if is_new_work(sentence) {
        return None;
    }
    asks(sentence, compiled!(CHANGE))
}

/// The words of the first of these phrases in the sentence.
fn asks(sentence: &Sentence, wishes: Patterns) -> Option<String> {
    wishes.iter().find_map(|wish| affirmed(wish, sentence))
}

/// The words of a phrase that occurs and is not negated: "no need to redo it", "don't change it".
fn affirmed(wish: Pattern, sentence: &Sentence) -> Option<String> {
    let mut from = 0;
    while let Some(hit) = find(wish, sentence, from) {
        from = hit.start + 1;
        let own = class(Class::Not, sentence.word(hit.start));
        let denied = (1..=4).any(|back| {
            hit.start.checked_sub(back).is_some_and(|at| {
                let word = sentence.word(at);
                let paused = (at + 1..=hit.start)
                    .any(|i| sentence.words.get(i).is_some_and(|word| word.after_pause));
                let says_no =
                    class(Class::Not, word) || (word == "no" && sentence.word(at + 1) == "need");
                says_no
                    && !paused
                    && !matches!(
                        word,
                        "can't" | "couldn't" | "won't" | "wouldn't" | "nothing"
                    )
            })
        });
        if (own || !denied) && !is_object_of_praise(sentence, hit.start) {
            let words: Vec<&str> = (hit.start..hit.end).map(|at| sentence.word(at)).collect();
            return Some(words.join(" "));
        }
    }
    None
}

/// "change 3/4 to a decimal", "fix my essay", "add 3 and 5": new work.
fn is_new_work(sentence: &Sentence) -> bool {
    let own_object = occurs(
        pattern!("@redo|add|remove|replace _2 my|our|@number"),
        sentence,
    ) || occurs(
        pattern!("@redo|make|write|give|add _2 following|attached|below"),
        sentence,
    ) || occurs(
        pattern!("check|review|improve|edit|correct|proofread my|our|the following"),
        sentence,
    );
    own_object
        && !occurs(
            pattern!("answer|reply|response|your|comment|comments|feedback|it"),
            sentence,
        )
}

/// An explicit phrase for moving on.
fn announcement(speech: &Speech) -> Option<String> {
    speech
        .sentences
        .iter()
        .filter(|sentence| !is_about_the_reply(sentence))
        .find_map(|sentence| asks(sentence, compiled!(NEW)))
}

fn is_about_the_reply(sentence: &Sentence) -> bool {
    let short = sentence.words.len() < 8;
    let points_at_it = short
        && (occurs(pattern!("@it|your|there|did"), sentence)
            || occurs(pattern!("you mean|read|check|say|said|get"), sentence));
    points_at_it
        || occurs(
            pattern!("you mean|meant|said|say|get|got|wrote|did|do that|it"),
            sentence,
        )
        || occurs(
            pattern!(
                "explain|what|why|how|understand|about|in _3 step|part|line|sentence|number|point @number|one|two|three|first|second|third|last"
            ),
            sentence,
        )
        || occurs(
            pattern!("your answer|reply|response|explanation|comment|feedback"),
            sentence,
        )
        || (sentence.is_question
            && sentence.words.len() <= 5
            && occurs(pattern!("why|how|what|it|that"), sentence))
}

/// A task with new words or numbers.
fn is_fresh_task(speech: &Speech, text: &str, before: &str, reply: &str) -> bool {
    if speech.word_count() < 5 || before.is_empty() {
        return false;
    }
    let looks_like_a_task = speech.sentences.iter().any(|sentence| {
        sentence.is_question
            || class(Class::Task, sentence.word(0))
            || (matches!(
                sentence.word(0),
                "please" | "i" | "ok" | "okay" | "great" | "thanks"
            ) && class(Class::Task, sentence.word(1)))
            || occurs(pattern!("how many|much|do|can"), sentence)
    });
    if !looks_like_a_task || speech.sentences.iter().all(is_about_the_reply) {
        return false;
    }
    let words = text.split_whitespace().count();
    let is_asked = speech.sentences.iter().any(|sentence| sentence.is_question);
    if words < 8 && !is_asked && numbers(text).is_empty() {
        return false;
    }
    share_that_is_known(text, before, reply) < 0.4 || has_new_numbers(text, before, reply)
}

/// The message contains its own text or problem, so a "rewrite" is about that.
pub(crate) fn brings_material(speech: &Speech, text: &str, before: &str, reply: &str) -> bool {
    let long = text.split_whitespace().count() >= 14;
    // "redo it: praise first" is about the response; "redo this: ..." contains a text.
    let introduced = text.split_once(':').is_some_and(|(head, tail)| {
        let last = head.split_whitespace().last().unwrap_or("").to_lowercase();
        let about_the_reply = matches!(
            last.as_str(),
            "it" | "that"
                | "again"
                | "comment"
                | "answer"
                | "reply"
                | "them"
                | "better"
                | "way"
                | "over"
        );
        head.split_whitespace().count() <= 12
            && tail.split_whitespace().count() >= if about_the_reply { 25 } else { 8 }
    });
    let problem = has_new_numbers(text, before, reply)
        && (text.contains('?')
            || speech
                .sentences
                .iter()
                .any(|s| class(Class::Task, s.word(0))));
    (long && problem && share_that_is_known(text, before, reply) < 0.75)
        || (introduced && share_that_is_known(text, before, reply) < 0.5)
}

/// Numbers that occur neither in the previous request nor in the response: at least two, or one in a text that is otherwise
/// new.
fn has_new_numbers(text: &str, before: &str, reply: &str) -> bool {
    let stated = numbers(text);
    if stated.is_empty() {
        return false;
    }
    let known: Vec<String> = numbers(before).into_iter().chain(numbers(reply)).collect();
    let fresh = stated
        .into_iter()
        .filter(|number| !known.contains(number))
        .count();
    fresh >= 2 || (fresh == 1 && text.split_whitespace().count() >= 10)
}

/// The fraction of the text's content words that occur in the previous request or the response.
fn share_that_is_known(text: &str, before: &str, reply: &str) -> f32 {
    let words = content_words(text);
    if words.is_empty() {
        return 1.0;
    }
    let mut known = content_words(before);
    known.extend(content_words(reply));
    let shared = words.iter().filter(|word| known.contains(*word)).count();
    shared as f32 / words.len() as f32
}
