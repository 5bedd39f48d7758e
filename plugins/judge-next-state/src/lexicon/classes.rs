//! Classes of words, as patterns name them.

/// Whether a word belongs to a class of patterns.
pub(crate) fn class(name: &str, word: &str) -> bool {
    let words = match name {
        "format" => FORMAT,
        "redo" => REDO,
        "reply" => REPLY,
        "it" => IT,
        "quality" => QUALITY,
        "more" => return is_comparative(word),
        "good" => return super::words::praise(word).is_some(),
        "bad" => return super::words::blame(word).is_some() || holds(COLD, word),
        "cold" => COLD,
        "be" => BE,
        "seem" => SEEM,
        "machine" => MACHINE,
        "very" => VERY,
        "not" => NOT,
        "task" => TASK,
        "adverb" => ADVERB,
        "next" => NEXT,
        "edit" => EDIT,
        "sequence" => SEQUENCE,
        "lead" => LEAD,
        "preposition" => PREPOSITION,
        "part" => PART,
        "thing" => THING,
        "listing" => LISTING,
        "file" => return holds(FILE, word) || is_file_name(word),
        "number" => return word.starts_with(|c: char| c.is_ascii_digit()),
        _ => return false,
    };
    holds(words, word)
}

/// Whether a list of words, with spaces between, holds the word.
pub(super) fn holds(words: &str, word: &str) -> bool {
    words.split_ascii_whitespace().any(|one| one == word)
}

/// "notes.txt", but not "3.5".
fn is_file_name(word: &str) -> bool {
    word.contains('.') && !word.starts_with(|c: char| c.is_ascii_digit())
}

/// "kinder" and "simpler"; also "better".
fn is_comparative(word: &str) -> bool {
    if holds(COMPARATIVE, word) {
        return true;
    }
    let Some(stem) = word.strip_suffix("er") else {
        return false;
    };
    let once = stem.get(..stem.len().saturating_sub(1)).unwrap_or("");
    let with_y = stem.strip_suffix('i').map(|stem| format!("{stem}y"));
    let with_e = format!("{stem}e");
    [QUALITY, COLD].iter().any(|words| {
        holds(words, stem)
            || holds(words, &with_e)
            || (once.len() > 2 && holds(words, once))
            || with_y.as_deref().is_some_and(|stem| holds(words, stem))
    })
}

/// Parts of a text's form.
const FORMAT: &str = "\
    bold bolding bolded boldface italic italics asterisk asterisks star stars markdown bullet \
    bullets bulleted list lists listing listicle numbered numbering numerals step steps header \
    headers heading headings headline headlines title titles banner banners emoji emojis emoticons \
    table tables formatting formatted format section sections dash dashes symbols hashtags caps \
    capitals underlining underlined latex structure structured layout jargon exclamation filler \
    fluff preamble disclaimer disclaimers intro summary recap boilerplate hedging apologies \
    subheadings decoration decorations";

/// Verbs that ask for another version.
const REDO: &str = "\
    redo rewrite rephrase reword revise rework reformat reformulate restate regenerate redraft \
    restructure rewriting redoing rephrasing fix edit change adjust modify tweak shorten lengthen \
    simplify soften expand condense trim improve retry refine clean polish amend update humanize \
    humanise paraphrase recheck check reconsider recalculate revisit";

/// Words for the reply and its parts.
const REPLY: &str = "\
    answer answers reply response solution text version explanation comment comments feedback one \
    message output draft wording tone style note remark remarks sentence sentences write paragraph \
    part ending opening";

/// Words that point at the reply.
const IT: &str = "\
    it this that them these those everything all";

/// What a text can be asked to be.
const QUALITY: &str = "\
    kind warm friendly nice gentle soft polite positive encouraging supportive constructive personal \
    personable specific concrete precise detailed clear simple plain natural human casual \
    conversational informal formal professional concise brief short long direct honest thorough \
    complete helpful understanding generous balanced tactful sensitive compassionate empathetic \
    respectful humane readable normal relaxed chatty creative interesting engaging accurate careful \
    compact focused fluent academic serious playful fun light motivating uplifting approachable \
    welcoming considerate descriptive elaborate targeted actionable individual tailored neutral \
    straightforward smooth legible organized student childlike mature sophisticated technical wordy \
    verbose robotic easy quick forgiving lenient patient caring cheerful upbeat hopeful sincere";

/// Comparatives that no quality above has.
const COMPARATIVE: &str = "\
    better longer shorter clearer less more";

/// Ways in which a text can hurt or bore; a complaint when said of the reply.
const COLD: &str = "\
    cold harsh blunt rude mean stiff robotic generic vague bland boring dry impersonal discouraging \
    curt terse abrupt strict critical negative distant mechanical artificial unnatural fake wordy \
    verbose long short formal complicated complex technical repetitive confusing unclear messy \
    cluttered busy flat brusque severe demotivating patronizing patronising condescending preachy \
    cheesy corny stilted clinical heavy dense choppy shallow superficial brutal unkind unfriendly \
    tough cutting sharp snappy lengthy excessive overwhelming overcomplicated structured";

/// Words between the reply and what is said of it.
const BE: &str = "\
    is are was were be it's that's this its you're been comes came seems seemed looks looked look \
    sounds sounded sound feels felt feel reads read they're";

/// Verbs of impression.
const SEEM: &str = "\
    looks look looking looked sounds sound sounding sounded reads read feels feel felt seems seem \
    screams smells comes written writes write talks talk is it's that's was were appear appears";

/// What nobody wants a text to sound like.
const MACHINE: &str = "\
    ai chatgpt gpt bot chatbot robot robotic machine computer llm generated automated template \
    textbook wikipedia brochure advert manual powerpoint slide slides report lecture corporate a.i \
    claude copilot artificial";

/// Words of degree.
const VERY: &str = "\
    so very really a bit little kind kinda of rather quite pretty just still somewhat way far \
    extremely awfully overly too more even all super much sort totally completely absolutely \
    slightly fairly terribly simply";

/// Denials.
const NOT: &str = "\
    not never isn't wasn't aren't weren't don't doesn't didn't can't couldn't wouldn't won't hardly \
    barely without nothing neither nor ain't haven't hasn't shouldn't none";

/// Verbs that open a task of their own.
const TASK: &str = "\
    solve calculate compute find write grade explain translate summarize summarise show give tell \
    help create make list compare describe prove evaluate convert plan suggest generate draft look \
    search open run build add implement test start continue go do try answer check review read mark \
    assess name define draw recommend remind schedule book send let's";

/// Manners in which one can ask for a text.
const ADVERB: &str = "\
    normally naturally simply plainly kindly nicely warmly gently politely differently clearly \
    specifically briefly softly concisely casually positively";

/// What can come next.
const NEXT: &str = "\
    problem question task exercise one student essay assignment homework topic item part chapter \
    step submission paper thing file email issue example";

/// Where one keeps a text.
const FILE: &str = "\
    file notes disk notebook document folder doc clipboard drive desktop journal";

/// Verbs that change a text or the world, depending on their object.
const EDIT: &str = "\
    remove delete drop cut add include insert mention move replace erase discard clear rename copy \
    archive cancel close undo revert swap merge split sort put turn set strip attach append";

/// Words that put one order after another.
const SEQUENCE: &str = "\
    now next then also afterwards finally lastly";

/// Words after which an order begins.
const LEAD: &str = "\
    please you just and ok okay alright so let's to right well";

/// Words that end the object of an order.
const PREPOSITION: &str = "\
    from to in into on onto at about of for with by under before after between called named and \
    because so if when that's";

/// What only a reply has: pieces of its text, and what can be wrong with or lacking in it.
const PART: &str = "\
    answer answers reply response explanation comment comments feedback wording tone style remark \
    remarks sentence sentences paragraph paragraphs part parts opening ending version text words \
    word phrase phrases line lines bit joke jokes greeting adjective adjectives mistake mistakes \
    error errors typo typos spelling grammar punctuation detail details example examples reason \
    reasons reasoning praise encouragement warmth context evidence depth specifics positivity \
    criticism colour colours color colors commas parentheses brackets quotes beginning first last \
    rest some";

/// What is kept outside a reply.
const THING: &str = "\
    file files folder folders email emails mail inbox calendar meeting meetings appointment \
    appointments event events reminder reminders alarm alarms timer timers contact contacts invoice \
    invoices account accounts subscription booking reservation flight hotel branch repo repository \
    server database backup backups password";

/// Parts of a form that are things as well, once they have a name: "the shopping list".
const LISTING: &str = "\
    list lists table tables note notes section sections title item items entry entries step steps";
