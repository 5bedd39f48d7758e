//! Wishes of people who talk to a real pretrained model.
//!
//! A wish is a preference about replies that any model can meet without knowledge: their length, form, language, tone,
//! units, address. A person never states it in advance. Each wish has a scorer for replies, the opposite request with a
//! scorer of its own (what was learned must not displace an explicit request), and a phrase that asks for it (a model
//! that does not follow it when instructed to cannot learn it).
//!
//! The scorers are pure functions of question and reply, written without the lexicons of any judge. A reply that is not
//! about the question scores 0, whatever its form ([`Question`]). The person is satisfied with a reply of score 1, so
//! persona and report share this rule; the judges see only what the person says.

mod address;
mod code;
mod follow_up;
mod form;
mod genre;
mod language;
mod length;
mod letters;
mod person;
mod question;
mod questions;
pub(crate) mod skills;
mod spec;
mod text;
mod tone;
mod units;

pub(crate) use self::person::Person;
pub use self::question::Question;
pub(crate) use self::questions::Part;
use self::questions::questions;
use self::spec::{WishNames, WishSpec};

/// A wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wish {
    /// One short sentence.
    Short,
    /// A list of points.
    Bullets,
    /// One plain paragraph.
    Plain,
    /// In French.
    French,
    /// In Spanish.
    Spanish,
    /// A formal tone.
    Formal,
    /// A friendly tone.
    Friendly,
    /// Metric units.
    Metric,
    /// Addresses the person by name.
    Name,
    /// Addresses the person as captain.
    Captain,
    /// Lower case.
    Lower,
    /// Code without an explanation.
    CodeOnly,
    /// Ends with a question.
    AskBack,
    /// A tale.
    Story,
    /// A dialogue between two people.
    Dialogue,
}

impl Wish {
    /// All wishes, in the order of reports.
    pub const ALL: [Wish; 15] = [
        Wish::Short,
        Wish::Bullets,
        Wish::Plain,
        Wish::French,
        Wish::Spanish,
        Wish::Formal,
        Wish::Friendly,
        Wish::Metric,
        Wish::Name,
        Wish::Captain,
        Wish::Lower,
        Wish::CodeOnly,
        Wish::AskBack,
        Wish::Story,
        Wish::Dialogue,
    ];

    fn spec(self) -> &'static WishSpec {
        match self {
            Wish::Short => &length::SHORT,
            Wish::Bullets => &form::BULLETS,
            Wish::Plain => &form::PLAIN,
            Wish::French => &language::FRENCH,
            Wish::Spanish => &language::SPANISH,
            Wish::Formal => &tone::FORMAL,
            Wish::Friendly => &tone::FRIENDLY,
            Wish::Metric => &units::METRIC,
            Wish::Name => &address::NAME,
            Wish::Captain => &address::CAPTAIN,
            Wish::Lower => &letters::LOWER,
            Wish::CodeOnly => &code::CODE_ONLY,
            Wish::AskBack => &follow_up::ASK_BACK,
            Wish::Story => &genre::STORY,
            Wish::Dialogue => &genre::DIALOGUE,
        }
    }

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        self.names().wish
    }

    /// The names of people with the wish.
    pub(crate) fn names(self) -> &'static WishNames {
        &self.spec().names
    }

    /// One-line description.
    pub fn about(self) -> &'static str {
        self.spec().about
    }

    /// How well the form of a reply meets the wish, in [0, 1], whatever it says.
    pub(crate) fn form(self, reply: &str) -> f64 {
        (self.spec().score)(reply)
    }

    /// How well the form of a reply meets the opposite, in [0, 1], whatever it says.
    pub(crate) fn opposite_form(self, reply: &str) -> f64 {
        (self.spec().score_opposite)(reply)
    }

    /// How well a reply to a question meets the wish, in [0, 1]; 0 if it is not about the question.
    pub fn score(self, question: Question, reply: &str) -> f64 {
        self.form(reply) * answered(question, reply)
    }

    /// How well a reply meets an explicit request for the opposite, in [0, 1]; 0 if it is not about the question.
    pub fn score_opposite(self, question: Question, reply: &str) -> f64 {
        self.opposite_form(reply) * answered(question, reply)
    }

    /// Held-out question number `at`, counted modulo their number.
    pub(crate) fn held_out_question(self, at: usize) -> Question {
        let questions = questions(self.spec().topic, Part::HeldOut);
        questions[at % questions.len()]
    }

    /// Held-out question number `at` with the wish stated.
    pub(crate) fn instructed(self, at: usize) -> String {
        format!("{} {}", self.held_out_question(at).text(), self.spec().ask)
    }

    /// Held-out question number `at` with an explicit request for the opposite.
    pub(crate) fn opposite(self, at: usize) -> String {
        let requests = self.spec().opposite;
        format!(
            "{} {}",
            self.held_out_question(at).text(),
            requests[at % requests.len()]
        )
    }

    /// Whether a message contains the wish.
    #[cfg(test)]
    pub(crate) fn is_asked_for(self, message: &str) -> bool {
        let spec = self.spec();
        message.contains(spec.ask) || spec.complaints.iter().any(|text| message.contains(text))
    }

    /// Whether a message explicitly contains the opposite.
    #[cfg(test)]
    pub(crate) fn is_opposed(self, message: &str) -> bool {
        let spec = self.spec();
        let mut requests = spec.opposite.iter().chain(spec.takes_back);
        requests.any(|text| message.contains(text))
    }

    /// What a prompt of another skill ends with, so that its check does not depend on the wish. Empty for most wishes.
    pub(crate) fn skill_suffix(self) -> &'static str {
        match self {
            Wish::French | Wish::Spanish => " Answer in English.",
            _ => "",
        }
    }
}

/// 1 for a reply that is about the question, else 0.
pub(crate) fn answered(question: Question, reply: &str) -> f64 {
    f64::from(u8::from(question.is_answered_by(reply)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn wishes_are_named_and_worded() {
        let names: HashSet<&str> = Wish::ALL
            .into_iter()
            .flat_map(|wish| {
                let names = wish.names();
                [names.wish, names.taken_back, names.of_two, names.opposite]
            })
            .collect();
        assert_eq!(names.len(), 4 * Wish::ALL.len());
        for wish in Wish::ALL {
            let spec = wish.spec();
            assert!(
                spec.complaints.len() >= 4 && spec.thanks.len() >= 3,
                "{wish:?}"
            );
            assert!(
                spec.opposite.len() >= 3 && spec.takes_back.len() >= 3,
                "{wish:?}"
            );
            let all = [
                spec.complaints,
                spec.thanks,
                spec.opposite,
                spec.takes_back,
                &[spec.ask],
            ]
            .concat();
            for text in all {
                assert!(text.ends_with(['.', '!', '?']), "{text:?}");
            }
        }
    }

    #[test]
    fn no_reply_meets_a_wish_and_its_opposite_fully() {
        let long = "The sky is blue because air scatters light. ".repeat(12);
        let replies = [
            "The sky is blue because the air scatters blue light more than red light.",
            "- one thing\n- another thing\n- a third thing",
            "Le ciel est bleu pour nous et les autres.",
            "the sky is 5 km up. do you like that?",
            "Hey Robin, it's a lovely blue! Enjoy it, captain! Do you like it?",
            "def add(a, b):\n    return a + b",
            &long,
        ];
        for wish in Wish::ALL {
            for reply in replies {
                let (score, opposite) = (wish.form(reply), wish.opposite_form(reply));
                assert!((0.0..=1.0).contains(&score) && (0.0..=1.0).contains(&opposite));
                assert!(score + opposite < 2.0, "{wish:?}: {reply:?}");
            }
            let question = wish.held_out_question(0);
            assert_eq!(
                (
                    wish.form(""),
                    wish.opposite_form(""),
                    wish.score(question, "")
                ),
                (0.0, 0.0, 0.0),
                "{wish:?}"
            );
        }
    }

    /// Text of the right form that answers nothing, as a model writes that is rewarded for the form alone.
    #[test]
    fn a_form_without_an_answer_scores_nothing() {
        for (wish, reply) in [
            (
                Wish::Short,
                "The answer to your question is a topic that needs to be clarified.",
            ),
            (Wish::Short, "I am not sure about that."),
            (Wish::Bullets, "- yes\n- yes\n- yes\n- yes"),
            (
                Wish::Plain,
                "This is one plain paragraph that has no list and no bold text in it at all.",
            ),
            (
                Wish::French,
                "le la les des une est et qui dans pour pas avec",
            ),
            (
                Wish::Spanish,
                "el la los las y una por con para del al como",
            ),
            (
                Wish::Formal,
                "One is most grateful for the kind inquiry that was received today.",
            ),
            (Wish::Friendly, "Hello! Hello! Hello!"),
            (
                Wish::Friendly,
                "I hope that you enjoy your wonderful, lovely day, dear friend!",
            ),
            (Wish::Metric, "It is 20 degrees Celsius."),
            (Wish::Name, "Robin"),
            (Wish::Captain, "Aye aye, captain!"),
            (Wish::Lower, "ok then, whatever you like"),
            (Wish::CodeOnly, "    return x"),
            (
                Wish::AskBack,
                "Is there anything else that you would like me to do?",
            ),
        ] {
            // Two questions, since a constant reply can fit one of them.
            let scores = [0, 1].map(|at| wish.score(wish.held_out_question(at), reply));
            assert!(scores.contains(&0.0), "{wish:?}: {reply:?} {scores:?}");
            assert!(wish.form(reply) >= 0.5, "{wish:?}: {reply:?} shows nothing");
        }
        let long = "word ".repeat(90);
        assert_eq!(Wish::Short.opposite_form(&long), 1.0);
        assert_eq!(
            Wish::Short.score_opposite(Wish::Short.held_out_question(0), &long),
            0.0
        );
    }

    /// Brief replies of people to the first held-out questions, in each wish's form.
    #[test]
    fn a_brief_answer_in_the_form_scores_fully() {
        let wished = [
            (
                Wish::Short,
                1,
                "Water absorbs red light and scatters blue light.",
            ),
            (Wish::Short, 5, "A mountain is higher and steeper."),
            (Wish::Bullets, 0, "- Banana bread\n- Muffins\n- Pancakes"),
            (
                Wish::Plain,
                16,
                "Rinse it first, boil it gently in plenty of water and let it steam.",
            ),
            (
                Wish::French,
                1,
                "La mer est bleue parce que l'eau absorbe le rouge et les autres couleurs.",
            ),
            (
                Wish::Spanish,
                1,
                "El mar es azul porque el agua absorbe los otros colores de la luz.",
            ),
            (Wish::Friendly, 0, "What a lovely idea! Bake banana bread!"),
            (Wish::Metric, 0, "About 2.5 m."),
            (Wish::Name, 1, "Robin, it mirrors the sky."),
            (Wish::Lower, 1, "it mirrors the sky above."),
            (
                Wish::CodeOnly,
                0,
                "```python\ndef subtract(a, b):\n    return a - b\n```",
            ),
            (
                Wish::AskBack,
                1,
                "The water scatters light. Have you seen it?",
            ),
        ];
        for (wish, at, reply) in wished {
            let question = wish.held_out_question(at);
            assert_eq!(wish.score(question, reply), 1.0, "{question:?}: {reply:?}");
        }
    }
}
