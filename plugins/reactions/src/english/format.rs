//! Rule 3: wishes about the form of the response: less bold, no lists, less robotic, warmer, shorter, more specific.

use crate::english::vote::Vote;

use crate::compiled::{Patterns, compiled};
use crate::english::lexicon::{Class, class};
use crate::english::praise::is_object_of_praise;
use crate::english::request::Asked;
use crate::pattern::{Pattern, find};
use crate::speech::Speech;
use crate::words::Sentence;

/// Phrases of a user who wants the response in another form.
const WISHES: &[&str] = &[
    "no|without|drop|remove|skip|lose|ditch|avoid|stop|less|fewer|cut|hate|kill|omit|minus|sans|delete|strip|ban _3 @format",
    "leave|take|get|cut|strip _2 out|off|rid|away _3 @format",
    "don't|do|didn't|never|can't|not|please not? want|need|use|like|include|add|put|write|make|have|with _3 @format",
    "don't|not|stop number|numbering|list|listing|bullet|bold|bolding|format|formatting @it|everything|things|stuff|every|words|the|your",
    "not a|the fan of _3 @format",
    "tired|sick of _3 @format",
    "why _3 @format",
    "enough|what's|why|again with|all|so|the _3 @format",
    "so|too|that|this|very much|many|heavy _2 @format",
    "too|so|overly|over|very|heavily formatted|structured|bulleted|bolded",
    "instead of|a _2 @format",
    "rather than _2 @format",
    "not in|as|a|like|with _2 @format",
    "all|these|those|the _1 @format _1 @be|look|make|makes|aren't|isn't _2 @bad|much|unneeded|distract|hard|too|necessary|needed|weird|silly|like|fake|off|childish",
    "full of _2 @format",
    "@format _1 everywhere|again|please",
    "doesn't|don't|shouldn't need|have|look|be|contain _2 @format",
    "@seem _3 like|as _4 @machine",
    "@seem _3 from|by|off _2 @machine",
    "@format _2 makes|make|made|gives|give @it _3 obvious|clear|away|fake|hard|worse",
    "@seem|so|too|very|obviously|clearly|really|totally @very? @machine",
    "ai|machine|computer|bot|robot|chatgpt generated|written|ish|like|look|sounding|style|vibe|vibes|speak|slop|made",
    "teacher|professor|boss|people|they|anyone|everyone _3 know|notice|tell|think|suspect|see _4 @machine|cheated|copied",
    "make|should|please|can|could|want|need|must|write|more|try|prefer|rather _4 human|natural|person|kid|student|teenager|myself|friend|normal|people",
    "make|should|please|can|could|want|need|must|write|say|sound _4 like i|me",
    "write|say|put|tell|explain|phrase|answer|speak|talk _3 @adverb",
    "@more @adverb",
    "still _1 @format|bold|formatted",
    "i'd|would rather|prefer have|see|get|read|it|a|one|you|something|without|with|just|no",
    "explain|mention|describe|include|put|state|say _4 in|to|on your|the|a comment|feedback|reply|answer|note|message",
    "write|give|want|need|make _2 real|proper|actual|full|complete|whole comment|answer|sentence|sentences|explanation|text|feedback",
    "plain|normal|regular|simple|ordinary|continuous|flowing|running text|prose|english|sentences|sentence|paragraph|words|language",
    "just|only|in|as|use _2 plain|normal|regular|full|complete|flowing text|prose|sentences|sentence|paragraph|words|language|english",
    "in|as|into|to|with one|1|a|single|two|few _1 paragraph|sentence|sentences|paragraphs|lines|line",
    "in my|your|own _1 words|voice|style",
    "too @quality",
    "too|so|very|bit|little|rather|quite|pretty|really|overly|just @cold",
    "more @quality|@it|detail|details|detailed|examples|example|specifics|praise|encouragement|warmth|reasons|reasoning|explanation|context|depth|positivity|substance|feedback|kindness|empathy|personality",
    "less @quality|@cold|detail|details|text|words|criticism|jargon|negativity|ai",
    "make|making|be|write|keep|sound|phrase|say|put|tone|have|get|want|need|needs|prefer|like|it|little|bit|be @it? _4 @more",
    "could|can|should|must|needs|need|would|please|want|like|prefer|i'd _4 @more $",
    "needs|need|lacks|lacking|missing|misses|wants|wanted|could use|with _3 detail|details|examples|example|specifics|praise|warmth|encouragement|reasons|reason|explanation|evidence|specific|work|something",
    "needs|need|lacks|lacking|missing|misses _3 detail|details|examples|example|specifics|praise|warmth|encouragement|reasons|reason|explanation|evidence|work|something",
    "be|sound|make|being|stay|keep @it? _3 kind|nice|specific|friendly|gentle|warm|encouraging|polite|brief|short|concise|simple|plain|natural|human|casual|positive|constructive|supportive|clear|honest|careful",
    "write @it? _1 in|kind|warmly|kindly|nicely|simply|plainly|specifically|naturally",
    "tell|see|notice|know|obvious|clear|think _3 @machine _1 wrote|did|made|does|writes|written|generated|helped",
    "tone _1 @it? down|up",
    "dumb|water @it down",
    "say|mention|start|begin|add|include|open|lead|point|praise|acknowledge|note _3 something|nice|positive|kind|good|praise|compliment|encouragement|strengths|strength|well|right|specific|example|examples|reason|reasons|details|detail",
    "what she|he|they|the|student did|does|do well|right|good",
    "tell|say|show|explain|comment|mention|clear|specify|point|more|write _3 exactly|specifically|precisely where|what|which|why|how",
    "where|which|what _3 exactly|specifically",
    "tell|show|explain|say|help _1 student|him|her|them|kid|child|he|she|they _3 where|what|why|how|which|that",
    "@redo|soften|warm|lighten|sweeten @it|the|your",
    "without|no _3 criticism|negativity|harshness|sarcasm|lecturing|preaching",
];

fn wishes() -> Patterns {
    compiled!(WISHES)
}

/// Votes -1 if the user criticizes the form. In a new task, a wish about form is an instruction for the next response and
/// says nothing about the last one.
pub(crate) fn vote(speech: &Speech, asked: Asked) -> Option<Vote> {
    if matches!(asked, Asked::ForSomethingNew | Asked::WithMaterial) {
        return None;
    }
    let wish = speech
        .sentences
        .iter()
        .find_map(|sentence| wishes().iter().find_map(|wish| words_of(wish, sentence)))?;
    Some(Vote::new(
        -1.0,
        format!("the user wants another form: \"{wish}\""),
    ))
}

fn words_of(wish: Pattern, sentence: &Sentence) -> Option<String> {
    let mut from = 0;
    while let Some(hit) = find(wish, sentence, from) {
        from = hit.start + 1;
        let before = hit.start.checked_sub(1).map_or("", |at| sentence.word(at));
        let before_that = hit.start.checked_sub(2).map_or("", |at| sentence.word(at));
        let denied = [
            "not", "isn't", "wasn't", "doesn't", "don't", "didn't", "aren't", "never", "couldn't",
        ];
        let is_praise = denied.contains(&before) && !starts_with_denial(sentence, hit.start)
            || (denied.contains(&before_that)
                && before != "but"
                && !starts_with_denial(sentence, hit.start))
            || is_object_of_praise(sentence, hit.start)
            || is_fulfilled(sentence, hit.start)
            || is_conceded(sentence, hit.end);
        if !is_praise {
            let words: Vec<&str> = (hit.start..hit.end).map(|at| sentence.word(at)).collect();
            return Some(words.join(" "));
        }
    }
    None
}

fn starts_with_denial(sentence: &Sentence, at: usize) -> bool {
    matches!(
        sentence.word(at),
        "don't" | "didn't" | "never" | "not" | "no" | "can't" | "doesn't" | "shouldn't"
    )
}

/// "a bit long but really helpful": the part after the contrast counts.
fn is_conceded(sentence: &Sentence, end: usize) -> bool {
    let turn = (end..sentence.words.len())
        .find(|at| matches!(sentence.word(*at), "but" | "however" | "yet"));
    turn.is_some_and(|turn| {
        (turn..sentence.words.len()).any(|at| {
            class(Class::Good, sentence.word(at))
                && !(1..=2).any(|back| {
                    at.checked_sub(back)
                        .is_some_and(|at| class(Class::Not, sentence.word(at)))
                })
        })
    })
}

/// "much kinder now", "this is more specific": the wish has been fulfilled.
fn is_fulfilled(sentence: &Sentence, at: usize) -> bool {
    let asks = sentence.words.iter().any(|word| {
        matches!(
            word.text.as_str(),
            "please"
                | "could"
                | "can"
                | "should"
                | "make"
                | "needs"
                | "need"
                | "want"
                | "would"
                | "too"
                | "be"
                | "i'd"
                | "must"
                | "if"
                | "still"
                | "but"
                | "try"
                | "wish"
                | "not"
                | "isn't"
        )
    });
    let states = (0..=at).any(|i| {
        matches!(
            sentence.word(i),
            "much"
                | "now"
                | "that's"
                | "it's"
                | "this"
                | "reads"
                | "sounds"
                | "feels"
                | "looks"
                | "way"
                | "finally"
                | "is"
        )
    });
    let comparative = class(Class::More, sentence.word(at))
        || (at..sentence.words.len().min(at + 4))
            .any(|i| class(Class::More, sentence.word(i)) && sentence.word(i) != "less");
    states && comparative && !asks
}
