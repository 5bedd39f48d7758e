//! User messages in homework conversations: questions, redo requests, thanks.

use clawhost_evaluation::problems::SeededRng;
use clawhost_evaluation::problems::phrase::{Slots, render_one};

/// A request around a problem's text.
pub(crate) fn ask(text: &str, rng: &mut SeededRng) -> String {
    let slots = Slots::new()
        .with("problem", text)
        .with("number", rng.between(1, 12).to_string());
    render_one(ASKS, &slots, rng)
}

/// A request for another problem in an ongoing conversation.
pub(crate) fn ask_next(text: &str, rng: &mut SeededRng) -> String {
    let slots = Slots::new().with("problem", text);
    render_one(NEXT_ASKS, &slots, rng)
}

/// Asks for plain prose after a formatted reply.
pub(crate) fn redo_plain(rng: &mut SeededRng) -> String {
    render_one(REDO_PLAIN, &style_slots(rng), rng)
}

/// Asks for formatting after a plain reply.
pub(crate) fn redo_formatted(rng: &mut SeededRng) -> String {
    render_one(REDO_FORMATTED, &style_slots(rng), rng)
}

/// Asks for plain prose from the start; the text of a hint or a sentence of the request.
pub(crate) fn want_plain(rng: &mut SeededRng) -> String {
    render_one(WANT_PLAIN, &style_slots(rng), rng)
}

/// Asks for formatting from the start.
pub(crate) fn want_formatted(rng: &mut SeededRng) -> String {
    render_one(WANT_FORMATTED, &style_slots(rng), rng)
}

/// Slots shared by the requests above.
fn style_slots(rng: &mut SeededRng) -> Slots {
    let slots = Slots::new();
    let said = |phrases: &[&str], rng: &mut SeededRng| render_one(phrases, &slots, rng);
    Slots::new()
        .with("markup", said(MARKUP, rng))
        .with("othermarkup", said(MARKUP, rng))
        .with("plainly", said(PLAINLY, rng))
        .with("fancy", said(FANCY, rng))
}

const MARKUP: &[&str] = &[
    "bold",
    "bold text",
    "lists",
    "numbered lists",
    "bullet points",
    "numbered steps",
    "steps",
    "headings",
    "formatting",
    "markdown",
    "stars",
    "banners",
    "tables",
    "titles",
    "bold words",
    "\"Final answer\" lines",
    "special formatting",
    "symbols",
];
const PLAINLY: &[&str] = &[
    "in plain sentences",
    "in simple sentences",
    "in plain words",
    "like a student",
    "the way a student would write it",
    "in my own words",
    "as normal text",
    "in one or two sentences",
    "in simple prose",
    "as plain text",
    "like a person",
    "in a normal sentence",
    "naturally",
    "in everyday language",
    "as a short paragraph",
    "in plain prose",
    "like I would write it",
    "in ordinary sentences",
];
const FANCY: &[&str] = &[
    "numbered steps",
    "a numbered list",
    "bold text",
    "bullet points",
    "headings",
    "a list with bold numbers",
    "numbered steps and a bold final answer",
    "a bold final answer",
    "step 1 and step 2 in bold",
    "nice formatting with bold",
    "markdown with bold",
    "steps with bold results",
    "a heading and a list",
];

const ASKS: &[&str] = &[
    "{problem}",
    "{problem}",
    "{problem}",
    "(Can|Could) you help (me |)with (my|this) homework? {problem}",
    "(Please |Can you |)solve this( for me|): {problem}",
    "{problem} (Please help.|Help me please.|Can you help?|Thanks!|I am stuck.|How do I solve it?)",
    "(My teacher|Our teacher) (asked|gave us) this: {problem}",
    "(Hi|Hello|Hey)(!|,) (I need help with|can you do|please look at) this( one|): {problem}",
    "Homework: {problem}",
    "(Question|Problem|Exercise): {problem}",
    "Here is (my homework|a problem|the question|a homework question): {problem} (What is the answer?|Please solve it.|)",
    "I (need to|have to|must) (solve|do|answer) this: {problem}",
    "I do not (get|understand) this one. {problem}",
    "What do I write for this? {problem}",
    "{problem} What is the answer?",
    "(Next|First) (question|problem|one) (on my sheet|in my homework): {problem}",
    "Help with math(s|) please: {problem}",
    "{problem} (Show me the solution.|Explain it to me.|Tell me how.)",
    "For (school|class|tomorrow) I have this: {problem}",
    "Number {number} says: {problem}",
];
const NEXT_ASKS: &[&str] = &[
    "(Next|Another) (one|question|problem): {problem}",
    "(Now|And|Okay, now) (this one|the next one|another one): {problem}",
    "Thanks! (Next|And this): {problem}",
    "{problem}",
    "Good. {problem}",
    "One more: {problem}",
    "And what about this? {problem}",
    "Great, (here is the next one|next question): {problem}",
];

pub(super) const REDO_PLAIN: &[&str] = &[
    "(That|This) looks like AI(.|,) (please |)(rewrite|redo) it without {markup}.",
    "(That|This) (looks|sounds|reads) like (AI|a robot|a machine|a chatbot) (wrote it|). (Write it|Say it|Redo it) {plainly}.",
    "Too much {markup}. (Write it again|Please rewrite it|Say it again) {plainly}.",
    "Please (redo|rewrite|repeat) it, no {markup}, no {othermarkup}.",
    "No, (make it plain|make it simple|write it plainly), {plainly}.",
    "(Can|Could) you (rewrite|redo|write) (that|this|it) {plainly}?",
    "(Can|Could) you (rewrite|redo|write) (that|this|it) without (the |){markup}?",
    "I can't hand this in, it (looks|is) too much like AI. (Write it|Please say it) {plainly}.",
    "My teacher will (see|notice|know) that (AI|a computer) wrote this. No {markup} please.",
    "Drop the {markup} and (write|answer|explain it) {plainly}.",
    "I don't want {markup}(.| or {othermarkup}.)( Again please.|)",
    "Not like that. (Write|Just write|Answer) {plainly}(.|, without {markup}.)",
    "(Remove|Take out|Leave out) (the |all |){markup}(.| please.)( Write it {plainly}.|)",
    "Again(, please|), but {plainly}.",
    "Again, but without {markup}.",
    "Nobody in my class writes with {markup}. (Try again.|Please change it.|Redo it {plainly}.)",
    "Why (all the|so much) {markup}? (Just write it|Tell me) {plainly}.",
    "(Rewrite|Redo|Rephrase) (this|that|it) {plainly}(.|, please.)",
    "I said (plain|simple) text. No {markup}!",
    "This is (too formal|too fancy|overdone|too structured). {Plainly}(,|) please.",
    "It should (look|sound) like I wrote it. No {markup}.",
    "It should (look|sound) like I wrote it, not like AI.",
    "Hmm, (that's|that is) not how (I|a student|kids) (write|writes). Redo it {plainly}.",
    "Please (don't|do not) use {markup}. (Write it again.|Redo it.|)",
    "Simpler please, {plainly}.",
    "Less AI, more human please.",
    "The {markup} (has to go|must go|looks strange). (Write it|Redo it) {plainly}.",
    "Stop using {markup}. (Write|Answer) {plainly}.",
    "Only (plain |normal |)sentences(, please|)! No {markup}.",
    "Could I have that {plainly}(?| instead?)",
    "Make it (less like AI|more natural|more like a student|plain)( and drop the {markup}|).",
    "Same answer, but {plainly}(.|, without {markup}.)",
    "I like the answer but not the {markup}. Write it {plainly}.",
    "(Wrong style|Bad style|I don't like this style). (No {markup}.|{Plainly} please.)",
];

pub(super) const REDO_FORMATTED: &[&str] = &[
    "(Please |)(give me|I want|use) {fancy} (instead|).",
    "(Write it again|Redo it|Rewrite it|Say it again) (with|using) {fancy}.",
    "(Can|Could) you (rewrite|redo|format|write) (that|this|it) (with|using) {fancy}?",
    "I (would like|need|prefer) {fancy}(.| please.)",
    "Too plain. (Use|Add|Give me) {fancy}.",
    "(Make it|Format it) (clearer|nicer|better) with {fancy}.",
    "Again, but with {fancy}.",
    "Show it (with|using) {fancy}(.|, please.)",
    "That is hard to read. (Use|Please use) {fancy}.",
];

pub(super) const WANT_PLAIN: &[&str] = &[
    "(Write|Answer|Explain it|Reply|Say it) {plainly}(.|, without {markup}.|, no {markup}.)",
    "(Please write|Please answer|Write) {plainly}(, without {markup} or {othermarkup}.| and use no {markup}.)",
    "(No|Avoid|Do not use|Don't use|Skip) {markup}(.| and {othermarkup}.| or {othermarkup}.)( Write {plainly}.|)",
    "(Use|Only use) (plain|simple|normal) (prose|sentences|text|words)(, no {markup}|, without {markup}|).",
    "The (answer|reply) should (look|sound|read) like a (student|person|human) wrote it(.|, without {markup}.)",
    "It (must|should) not look like AI(.|: no {markup}.|, so no {markup} and no {othermarkup}.)",
    "(Keep it|Make it) (plain|simple|natural)(.|: no {markup}.|, {plainly}.)",
    "The user wants (plain text|plain sentences|simple sentences|a natural answer)(.|, no {markup}.|, without {markup} and {othermarkup}.)",
    "The (user|student) (does not like|does not want|dislikes) {markup}(.| and {othermarkup}.)( Write {plainly}.|)",
    "Rewrite (it |)without {markup}(.|, {plainly}.)",
    "No {markup}, no {othermarkup}, (just|only) (plain|simple|normal) (text|sentences|words).",
];

pub(super) const WANT_FORMATTED: &[&str] = &[
    "(Use|Please use|Give me|I want) {fancy}(.| please.)",
    "(Write|Answer|Explain it|Show it) (with|using) {fancy}.",
    "(Format|Structure) (it|the answer|your answer) (with|as|using) {fancy}.",
    "The (answer|reply) should (have|use|contain) {fancy}.",
    "I like {fancy}(.|, so use that.)",
    "The user wants {fancy}.",
    "Make it (structured|clear) with {fancy}.",
];

/// Kinds of thanks: the reply to "save it" states what the model cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thanks {
    /// Only thanks.
    Plain,
    /// Thanks, and a request to save the text.
    Save,
}

/// Thanks; returns the kind and the text.
pub(crate) fn thank(rng: &mut SeededRng) -> (Thanks, String) {
    let (kind, phrases) = if rng.chance(0.3) {
        (Thanks::Save, SAVES)
    } else {
        (Thanks::Plain, THANKS)
    };
    (kind, render_one(phrases, &Slots::new(), rng))
}

/// The brief reply to thanks.
pub(crate) fn answer_thanks(kind: Thanks, rng: &mut SeededRng) -> String {
    let phrases = match kind {
        Thanks::Plain => WELCOMES,
        Thanks::Save => SAVE_ANSWERS,
    };
    render_one(phrases, &Slots::new(), rng)
}

pub(super) const THANKS: &[&str] = &[
    "Thanks(!|.|, that is good.|, that helps.|, got it.)",
    "Thank you(!|.| very much.|, that is clear.|, I understand now.)",
    "(Great|Perfect|Nice|Good|Super|Lovely|Cool|Awesome)(, thanks|, thank you|)(!|.)",
    "(That|This) is (good|perfect|great|fine|what I wanted|exactly right|much better)(.|, thanks.|!)",
    "(Yes|Okay|Ok), (that works|that's it|that is good|like that)(.|, thanks.)",
    "I (like|love) (it|this|that one)(.|, thanks.|!)",
    "Got it(.|, thanks.|, thank you.)",
    "Now I (get|understand) it(.|, thanks.)",
    "Much better(.|!|, thanks.|, thank you.)",
    "(Good|Great|Nice) (job|work|answer)(.|!)",
    "Cheers(.|!)",
    "That helps a lot(.|!)",
    "Wonderful(.|, thank you.)",
    "Just what I needed(.|!|, thanks.)",
    "You are a great help(.|!)",
    "Well done(.|, thanks.)",
    "Excellent(.|!|, thank you.)",
    "Thx(.|!)",
    "That sounds like me(.|, thanks.)",
    "I can hand that in(.|, thanks.)",
];
pub(super) const SAVES: &[&str] = &[
    "(Great|Perfect|Good|Nice), (save|keep) (it|that|this)(.|, please.)",
    "(Please |)save (it|this|that)(.| for me.)",
    "(That is good|I like it|Okay), (please |)(save|store) it.",
    "(Thanks|Thank you), (you can save it now|save it|please save that).",
    "(Perfect|Good), write it (to|into) (my file|the file|my homework file).",
    "Save this (answer|version)( please|).",
];
const WELCOMES: &[&str] = &[
    "You're welcome(!|.)",
    "You are welcome(!|.)",
    "(Glad|Happy) (to help|I could help|that helped)(!|.)",
    "My pleasure(!|.)",
    "Any time(!|.)",
    "No problem(!|.)( Good luck.|)",
    "Good luck with (your homework|the rest)(!|.)",
    "(Great|Good) to hear(!|.)",
    "You're welcome(!|.) (Send me the next one when you like.|Just ask if there is more.)",
];
const SAVE_ANSWERS: &[&str] = &[
    "(Glad you like it|Good|Happy to help). I can't save files here, (but you can copy it|so please copy it).",
    "(Great|Good)(!|.) Please copy it, (saving is not something I can do|I can't save it myself).",
    "(You're welcome|Glad it fits). (Copy it from here|You can copy it), I can't save files.",
];
