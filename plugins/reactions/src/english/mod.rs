//! Rules for English: praise and blame, what is asked for next, wishes about form, and repetition.
//!
//! Each rule votes -1 or +1 or abstains; the majority counts. They know English more finely than the tables of phrases of all
//! languages, which decide where these rules abstain.

mod format;
pub(crate) mod lexicon;
mod order;
mod praise;
mod reaction;
mod repetition;
mod request;
mod vote;

use crate::compiled::pattern;
use crate::pattern::occurs;
use crate::speech::Speech;
use crate::words::Sentence;
use lexicon::{Class, class};
pub(crate) use vote::Vote;

/// The votes of the rules on a reaction.
pub(crate) fn votes(text: &str, request: &str, reply: &str) -> Vec<Vote> {
    let speech = Speech::read(text);
    if speech.sentences.is_empty() {
        return Vec::new();
    }
    let orders = order::Orders::read(&speech);
    let repetition =
        repetition::vote(text, request, reply).filter(|_| !orders.differ_from(&speech, request));
    let asked = request::read(&speech, &orders, text, request, reply);
    let remarks = orders.left_out(&speech);
    let format = format::vote(&remarks, asked.asked).map(|vote| Vote {
        is_wish: true,
        ..vote
    });
    let wants_change =
        repetition.is_some() || format.is_some() || asked.asked == request::Asked::ForChange;
    let mut own_words = if request::brings_material(&speech, text, request, reply) {
        remarks.without_material()
    } else {
        remarks
    };
    own_words
        .sentences
        .retain(|sentence| !is_material(sentence));
    let reaction = reaction::vote(&own_words, wants_change);
    let complains = wants_change || reaction.as_ref().is_some_and(|vote| vote.score < 0.0);
    let mut votes = Vec::new();
    votes.extend(reaction);
    votes.extend(asked.vote(complains));
    votes.extend(format);
    votes.extend(repetition.map(|vote| Vote {
        is_repetition: true,
        ..vote
    }));
    votes
}

/// Whether the reaction is the request again.
pub(crate) fn repeats(text: &str, request: &str, reply: &str) -> bool {
    repetition::vote(text, request, reply).is_some()
}

/// A question or task about something else, or what another person said: its praise and blame are not about the reply.
fn is_material(sentence: &Sentence) -> bool {
    let points = occurs(
        pattern!(
            "it|it's|this|that|that's|these|those|you|your|you're|again|without|instead|@more"
        ),
        sentence,
    );
    let asks = matches!(
        sentence.word(0),
        "what"
            | "what's"
            | "how"
            | "who"
            | "when"
            | "where"
            | "which"
            | "is"
            | "are"
            | "does"
            | "do"
            | "any"
    );
    let orders = (class(Class::Task, sentence.word(0))
        && !matches!(sentence.word(0), "try" | "do" | "go"))
        || matches!(sentence.word(0), "need" | "suggest" | "recommend");
    let reports = occurs(
        pattern!("says|said|writes|wrote|told|claims|thinks|asked|called|complains"),
        sentence,
    ) && !occurs(pattern!("i|you _1 said|wrote|told|asked|called"), sentence);
    (!points && (asks || orders) && sentence.words.len() >= 4)
        || reports && sentence.words.len() >= 5
}
