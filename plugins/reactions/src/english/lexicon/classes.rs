//! Classes of words, as patterns name them.

use crate::words::Classes;

/// A class of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Parts of a text's form.
    Format,
    /// Verbs that ask for another version.
    Redo,
    /// Words for the reply and its parts.
    Reply,
    /// Words that point at the reply.
    It,
    /// What a text can be asked to be.
    Quality,
    /// Comparatives: "kinder", "simpler", "better".
    More,
    /// Words of praise.
    Good,
    /// Words of blame, and ways to hurt or bore.
    Bad,
    /// Ways to hurt or bore.
    Cold,
    /// Words between the reply and what is said of it.
    Be,
    /// Verbs of impression.
    Seem,
    /// What nobody wants a text to sound like.
    Machine,
    /// Words of degree.
    Very,
    /// Denials.
    Not,
    /// Verbs that open a task of their own.
    Task,
    /// Manners in which one can ask for a text.
    Adverb,
    /// What can come next.
    Next,
    /// Verbs that change a text or the world.
    Edit,
    /// Words that put one order after another.
    Sequence,
    /// Words after which an order begins.
    Lead,
    /// Words that end the object of an order.
    Preposition,
    /// What only a reply has.
    Part,
    /// What is kept outside a reply.
    Thing,
    /// Parts of a form that are things as well, once they have a name.
    Listing,
    /// Where one keeps a text, and names of files.
    File,
    /// What begins with a digit.
    Number,
    /// Words that carry no content of their own.
    Light,
}

impl Class {
    /// Its bit in [`Classes`].
    pub(crate) const fn bit(self) -> Classes {
        1 << self as u32
    }

    /// The class that patterns call `@name`; another name stops the build.
    pub(crate) const fn named(name: &str) -> Class {
        match name.as_bytes() {
            b"format" => Class::Format,
            b"redo" => Class::Redo,
            b"reply" => Class::Reply,
            b"it" => Class::It,
            b"quality" => Class::Quality,
            b"more" => Class::More,
            b"good" => Class::Good,
            b"bad" => Class::Bad,
            b"cold" => Class::Cold,
            b"be" => Class::Be,
            b"seem" => Class::Seem,
            b"machine" => Class::Machine,
            b"very" => Class::Very,
            b"not" => Class::Not,
            b"task" => Class::Task,
            b"adverb" => Class::Adverb,
            b"next" => Class::Next,
            b"edit" => Class::Edit,
            b"sequence" => Class::Sequence,
            b"lead" => Class::Lead,
            b"preposition" => Class::Preposition,
            b"part" => Class::Part,
            b"thing" => Class::Thing,
            b"listing" => Class::Listing,
            b"file" => Class::File,
            b"number" => Class::Number,
            _ => unknown_class(),
        }
    }
}

#[allow(
    clippy::panic,
    reason = "only ever called by the compiler, which then stops"
)]
const fn unknown_class() -> Class {
    panic!("a pattern names a class that there is not")
}

/// The words of each class, with spaces between.
pub(super) const LISTS: &[(Class, &str)] = &[
    (Class::Format, FORMAT),
    (Class::Redo, REDO),
    (Class::Reply, REPLY),
    (Class::It, IT),
    (Class::Quality, QUALITY),
    (Class::More, COMPARATIVE),
    (Class::Cold, COLD),
    (Class::Be, BE),
    (Class::Seem, SEEM),
    (Class::Machine, MACHINE),
    (Class::Very, VERY),
    (Class::Not, NOT),
    (Class::Task, TASK),
    (Class::Adverb, ADVERB),
    (Class::Next, NEXT),
    (Class::Edit, EDIT),
    (Class::Sequence, SEQUENCE),
    (Class::Lead, LEAD),
    (Class::Preposition, PREPOSITION),
    (Class::Part, PART),
    (Class::Thing, THING),
    (Class::Listing, LISTING),
    (Class::File, FILE),
    (Class::Light, LIGHT),
    // A complaint when said of the reply.
    (Class::Bad, COLD),
];

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

/// Words that carry no content of their own.
const LIGHT: &str = "\
    a an the and or but of to in on at for with is are was were be been it its this that these those \
    i you he she we they me my your his her our their do does did can could would will please just \
    so if then than as by from about what how there have has had not no yes ok okay thanks thank hi \
    hello now also again let us am up out some any";
