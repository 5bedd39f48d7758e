//! The words that distinguish a wish from an objection, courtesy and a new task.
//!
//! English, in lower case, with a space at both ends: sentences are padded the same way before they are searched, so that
//! only whole words match.

/// Phrases with a space at both ends.
macro_rules! padded {
    ($($phrase:literal)*) => {
        &[$(concat!(" ", $phrase, " ")),*]
    };
}

macro_rules! words {
    ($($word:ident)*) => {
        &[$(stringify!($word)),*]
    };
}

/// Phrases that say what should change.
pub(crate) const WISHES: &[&str] = padded![
    // The same again.
    "try again" "try it again" "try that again" "redo" "do it again" "do that again" "do this again" "once more"
    "one more time" "start over" "from scratch" "rewrite" "reword" "rephrase" "regenerate" "write it again"
    "another try" "another attempt" "another version" "a different version" "say it again" "say that again"
    "explain it again"
    // A correction.
    "you forgot" "you missed" "you ignored" "you left out" "you skipped" "you did not" "you didn't" "you haven't"
    "you should have" "you were supposed to" "you misunderstood" "you mixed up" "i asked for" "i asked you" "i said"
    "i told you" "i meant" "i wanted" "i only wanted" "i just wanted" "what i meant" "should be" "should have been"
    "should not be" "shouldn't be" "must be" "must not be" "is supposed to" "needs to be" "has to be" "instead"
    "rather than" "fix it" "fix that" "fix this" "fix the" "correct it" "correct that" "correct this" "correct the"
    "change it" "change that" "change the" "replace the" "please use" "remove the" "drop the" "leave out" "get rid of"
    "take out" "too long" "too short" "too formal" "too informal" "too complicated" "too technical" "too vague"
    "too verbose" "too wordy" "too much" "too many" "too few" "too little" "not enough" "don't use" "do not use"
    "don't add" "do not add" "don't include" "do not include" "don't write" "do not write" "stop using" "no need to"
    "still fails" "still wrong" "still does not" "still doesn't" "doesn't work" "does not work" "without the"
    "without any" "missing"
    // Another form.
    "make it" "make that" "make this" "keep it" "keep the" "shorten" "shorter" "briefer" "more brief" "longer"
    "simpler" "simplify" "clearer" "more concise" "more concisely" "more briefly" "less verbose" "more detail"
    "more details" "more detailed" "less detail" "more formal" "less formal" "more casual" "more specific"
    "friendlier" "more polite" "in plain" "in simple" "plain text" "in bullet points" "as bullet points"
    "bullet points" "bulleted list" "numbered list" "as a list" "as a table" "in a table" "as json" "in json"
    "as markdown" "in markdown" "no markdown" "as csv" "in one sentence" "in one line" "in one paragraph"
    "in two sentences" "in three sentences" "in a sentence" "step by step" "put it in" "put that in" "format it"
    "reformat" "translate it" "translate that" "in english" "in german" "in french" "in spanish" "just the" "only the"
    "short sentence" "one sentence" "two sentences" "one line" "one paragraph" "call me" "address me" "addressed as"
    "be called" "use my name" "as a story" "as a tale" "a fairy tale" "a story instead" "as a poem" "as a letter"
    "as a dialogue" "a dialogue between" "a conversation between" "begin with" "begins with" "start with" "starts with"
    "end with" "ends with" "please answer" "please write" "please give" "please tell" "answer in" "reply in"
    "turn it into" "turn that into" "turn this into" "write it as" "tell it as" "tell it like" "have it as" "have it in"
    "give me a" "give it to me" "rather have" "rather read" "rather hear" "rather see" "rather get" "rather listen"
];

/// Phrases that exclude a wish, whatever else the sentence contains: the user keeps the response or does it alone.
pub(crate) const LEFT_ALONE: &[&str] = padded![
    "keep it for" "keep it as it is" "keep this for" "keep that for" "save it" "store it" "i'll rewrite"
    "i will rewrite" "i'll write" "i will write" "i'll fix" "i will fix" "i'd rather not" "i'd rather do" "i'd rather write"
    "i'd rather use" "i'd rather keep" "i'd rather ask" "i would rather not" "i would rather do" "i would rather write"
    "i would rather use" "i would rather keep" "i would rather ask" "do it myself" "write it myself" "rewrite it myself"
    "fix it myself"
];

/// Objections that do not say what should change.
pub(crate) const OBJECTIONS: &[&str] = padded![
    "no" "nope" "not quite" "not really" "not what i" "that is wrong" "that's wrong" "this is wrong" "it is wrong"
    "it's wrong" "is wrong" "are wrong" "wrong" "incorrect" "not correct" "not right" "isn't right" "a mistake"
    "not true" "doesn't help" "does not help"
];

/// Beginnings of a sentence that start something new, whatever else it contains.
pub(crate) const NEW_WORK: &[&str] = padded![
    "now" "next" "new task" "new question" "another question" "different question" "different topic" "on to"
    "let us move on" "let's move on"
];

/// Praise, thanks or greetings; such a sentence is no wish unless it continues with "but".
pub(crate) const COURTESY: &[&str] = words![
    thanks thank thx cheers hi hello hey good great nice perfect awesome cool ok okay sorry please well hmm right yes
    dear appreciated morning evening afternoon there again you very much so for that the a lot help work job reply
    answer bit and all everybody everyone assistant friend regards best kind many it is looks this really
];

/// Words that begin the wish if only courtesy precedes them.
pub(crate) const TURNS: &[&str] = &[
    ", but ",
    " but ",
    ", however, ",
    ", however ",
    "; ",
    " - ",
    " \u{2013} ",
    ", ",
];
