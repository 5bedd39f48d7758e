//! The rehearsal prompts: built-in ones, or a file of the operator. Some belong to sections that are contrary to certain
//! feedback: they explicitly ask for the opposite of what it asks for. Others belong to sections that are skipped when the
//! user asks about their topic.

use clawhost_config::{RehearsalOptions, RehearsalPrompts};

use crate::error::TrainingError;

/// Each begins a section of a file.
const CONTRARY: &str = "# contrary to:";
const UNLESS: &str = "# unless asked about:";

/// A prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RehearsalPrompt {
    pub(super) text: String,
    /// Index of its section; none for a prompt that is rehearsed whatever the user says.
    pub(super) section: Option<usize>,
    /// Whether it is a question with a request of the section. Such prompts are used only for contrary feedback.
    pub(super) generated: bool,
}

/// What decides whether the prompts of a section are rehearsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SectionKind {
    /// They are contrary to feedback with one of the section's words.
    Contrary,
    /// They are skipped if a conversation's first user message contains one of the section's words.
    Unless,
}

/// Prompts with the same words.
#[derive(Debug, Clone)]
struct Section {
    kind: SectionKind,
    /// Words and phrases, in lower case.
    words: Vec<String>,
}

/// How a step uses a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PromptUse {
    /// As an explicit request for the opposite of what the feedback asks for.
    Contrary,
    /// As a prompt that has nothing to do with the user.
    Unrelated,
    /// Not at all.
    Unused,
}

/// All prompts.
#[derive(Debug, Clone, Default)]
pub(super) struct PromptSet {
    pub(super) prompts: Vec<RehearsalPrompt>,
    /// The questions that the requests of sections are appended to.
    questions: Vec<String>,
    sections: Vec<Section>,
}

impl PromptSet {
    /// Reads the configured file, or the built-in prompts.
    ///
    /// # Errors
    /// The file cannot be read or has no prompt.
    pub(super) fn load(options: &RehearsalOptions) -> Result<Self, TrainingError> {
        let Some(path) = options.prompts_file.as_deref() else {
            return Ok(Self::parse(built_in(options.prompts)));
        };
        let text = std::fs::read_to_string(path).map_err(|source| TrainingError::File {
            operation: "read",
            path: path.to_owned(),
            source,
        })?;
        let set = Self::parse(&text);
        if set.prompts.is_empty() {
            return Err(TrainingError::Rehearsal(format!(
                "{} has no prompt; write one per line, or remove training.rehearsal.prompts_file to use built-in prompts",
                path.display()
            )));
        }
        Ok(set)
    }

    /// One prompt per line, without empty lines, comments, questions and repetitions; then the questions with the requests of
    /// each section in turn.
    fn parse(text: &str) -> Self {
        let mut set = Self::default();
        let (mut questions, mut requests): (Vec<&str>, Vec<Vec<&str>>) = Default::default();
        let mut section = None;
        for line in text.lines().map(str::trim) {
            if let Some(begun) = Section::begun_by(line) {
                section = Some(set.sections.len());
                set.sections.push(begun);
                requests.push(Vec::new());
            } else if line.starts_with('#') {
                section = None;
            } else if let (Some(request), Some(section)) = (
                line.strip_prefix("+ "),
                section.filter(|at: &usize| set.sections[*at].kind == SectionKind::Contrary),
            ) {
                requests[section].push(request.trim());
            } else if let Some(question) = line.strip_prefix("? ") {
                questions.push(question.trim());
            } else if !line.is_empty() {
                set.add(line, section, false);
            }
        }
        set.questions = questions
            .iter()
            .map(|question| (*question).to_owned())
            .collect();
        for (section, requests) in requests.iter().enumerate() {
            // Another question begins in each section, so that the same request is not always with the same question.
            for (question, request) in questions.iter().zip(requests.iter().cycle().skip(section)) {
                set.add(&format!("{question} {request}"), Some(section), true);
            }
        }
        set
    }

    fn add(&mut self, text: &str, section: Option<usize>, generated: bool) {
        if self.prompts.iter().all(|known| known.text != text) {
            self.prompts.push(RehearsalPrompt {
                text: text.to_owned(),
                section,
                generated,
            });
        }
    }

    /// How a step uses each prompt: `feedback` is what the user says about rejected replies, `asked` the first user
    /// messages of their conversations.
    pub(super) fn uses(&self, feedback: &[String], asked: &[String]) -> Vec<PromptUse> {
        let plain_all =
            |texts: &[String]| -> Vec<String> { texts.iter().map(|text| plain(text)).collect() };
        let (feedback, asked) = (plain_all(feedback), plain_all(asked));
        let of_section = |section: &Section| match section.kind {
            SectionKind::Contrary if section.is_in(&feedback) => PromptUse::Contrary,
            SectionKind::Unless if section.is_in(&asked) => PromptUse::Unused,
            SectionKind::Contrary | SectionKind::Unless => PromptUse::Unrelated,
        };
        let sections: Vec<PromptUse> = self.sections.iter().map(of_section).collect();
        let of_prompt = |prompt: &RehearsalPrompt| {
            let of_section = prompt
                .section
                .map_or(PromptUse::Unrelated, |at| sections[at]);
            match of_section {
                PromptUse::Unrelated if prompt.generated => PromptUse::Unused,
                of_section => of_section,
            }
        };
        self.prompts.iter().map(of_prompt).collect()
    }
}

impl Section {
    /// The section that a line of a file begins; none if it begins none.
    fn begun_by(line: &str) -> Option<Self> {
        let kinds = [
            (CONTRARY, SectionKind::Contrary),
            (UNLESS, SectionKind::Unless),
        ];
        let mut begun = kinds.into_iter();
        let (kind, words) =
            begun.find_map(|(prefix, kind)| Some((kind, line.strip_prefix(prefix)?)))?;
        let words = words.split(',').map(|word| word.trim().to_lowercase());
        Some(Self {
            kind,
            words: words.filter(|word| !word.is_empty()).collect(),
        })
    }

    /// Whether one of these texts of [`plain`] has one of its words.
    fn is_in(&self, texts: &[String]) -> bool {
        let mut words = self.words.iter();
        words.any(|word| texts.iter().any(|text| contains(text, word)))
    }
}

/// The questions of the configured file or, without any, of the built-in prompts.
///
/// # Errors
/// The file cannot be read or has no prompt.
pub(crate) fn questions(options: &RehearsalOptions) -> Result<Vec<String>, TrainingError> {
    let questions = PromptSet::load(options)?.questions;
    Ok(match questions.is_empty() {
        true => PromptSet::parse(built_in(options.prompts)).questions,
        false => questions,
    })
}

fn built_in(prompts: RehearsalPrompts) -> &'static str {
    match prompts {
        RehearsalPrompts::General => include_str!("general.txt"),
        RehearsalPrompts::Homework => include_str!("homework.txt"),
    }
}

/// The words of a text in lower case, each between two spaces.
fn plain(text: &str) -> String {
    let text = text.to_lowercase().replace('\u{2019}', "'");
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '\''));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    format!(" {} ", words.join(" "))
}

/// Whether a text of [`plain`] contains a phrase: as whole words, unless its script may have no spaces.
fn contains(text: &str, phrase: &str) -> bool {
    match phrase.is_ascii() {
        true => text.contains(&format!(" {phrase} ")),
        false => text.contains(phrase),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn general() -> PromptSet {
        PromptSet::load(&RehearsalOptions::default()).unwrap()
    }

    fn texts(set: &PromptSet) -> Vec<&str> {
        set.prompts
            .iter()
            .map(|prompt| prompt.text.as_str())
            .collect()
    }

    /// The prompts that are contrary to this feedback.
    fn contrary_texts<'a>(set: &'a PromptSet, feedback: &[&str]) -> Vec<&'a str> {
        let feedback: Vec<String> = feedback.iter().map(|text| (*text).to_owned()).collect();
        let uses = set.uses(&feedback, &[]);
        let used = texts(set).into_iter().zip(uses);
        used.filter(|(_, of)| *of == PromptUse::Contrary)
            .map(|(text, _)| text)
            .collect()
    }

    #[test]
    fn the_general_set_is_large_and_has_no_repetitions() {
        let set = general();
        let written = set.prompts.iter().filter(|prompt| !prompt.generated);
        let lines = |line: &&str| !line.trim().is_empty() && !line.starts_with(['#', '+', '?']);
        assert!(set.prompts.len() >= 300, "{} prompts", set.prompts.len());
        assert_eq!(
            written.count(),
            built_in(RehearsalPrompts::General)
                .lines()
                .filter(lines)
                .count()
        );
        for section in 0..set.sections.len() {
            let own = set
                .prompts
                .iter()
                .filter(|prompt| prompt.section == Some(section));
            assert!(own.count() >= 4, "{:?}", set.sections[section].words);
        }
    }

    #[test]
    fn feedback_selects_the_contrary_requests() {
        let set = general();
        for (feedback, contrary) in [
            ("Too long! Please be brief.", "Go into depth"),
            ("Bitte kürzer.", "Go into depth"),
            ("太长了，请简短一点", "Go into depth"),
            ("Please give me more details.", "One line is enough."),
            ("Can I have that as bullet points?", "No enumeration"),
            (
                "I don't like lists. Just a paragraph.",
                "Put it into bullet points.",
            ),
            ("Please answer in Spanish.", "My reader only knows English."),
            ("That's cold. Could you be friendlier?", "Keep the tone dry"),
            ("A more formal tone, please.", "like you'd tell a buddy"),
            ("use lowercase only", "Spell it as in a printed book."),
            ("Metric units, please.", "in feet and inches"),
            ("Call me Robin.", "do not address anybody"),
            ("Only the code, please.", "explain it in words"),
            (
                "Please end with a question.",
                "Do not ask anything in return.",
            ),
            (
                "Can you tell it as a fairy tale?",
                "Stick to facts, nothing invented.",
            ),
            (
                "Turn it into a dialogue, please.",
                "No roles and no speakers, please.",
            ),
            (
                "Could that be a poem?",
                "Ordinary sentences will do, no verse.",
            ),
            (
                "Make it an email to my boss.",
                "Start directly with the answer.",
            ),
        ] {
            let found = contrary_texts(&set, &["Thanks.", feedback]);
            assert!(
                found.iter().any(|text| text.contains(contrary)),
                "{feedback}"
            );
        }
        for neutral in [
            "Thanks, that is great.",
            "Why does it raise ValueError?",
            "Shortly after, it failed.",
        ] {
            assert!(contrary_texts(&set, &[neutral]).is_empty(), "{neutral}");
        }
    }

    fn homework() -> PromptSet {
        PromptSet::load(&RehearsalOptions {
            prompts: RehearsalPrompts::Homework,
            ..RehearsalOptions::default()
        })
        .unwrap()
    }

    #[test]
    fn the_homework_set_asks_for_formats_when_plain_text_is_wanted() {
        let set = homework();
        assert!(set.prompts.iter().filter(|prompt| prompt.generated).count() >= 20);
        for (feedback, expected) in [
            ("Please rewrite it in plain sentences.", true),
            ("That looks like AI wrote it.", true),
            ("Please be kinder to the child.", false),
            ("Great, thanks!", false),
        ] {
            assert_eq!(
                !contrary_texts(&set, &[feedback]).is_empty(),
                expected,
                "{feedback}"
            );
        }
    }

    #[test]
    fn the_homework_set_keeps_marking_as_it_is_unless_that_is_what_the_user_brings() {
        let set = homework();
        let sum = "Hi, can you help me? Ravi has 5 coins and finds 4 more. How many are there now?";
        let sheet = "Please write a comment for this pupil. Task: 5 + 4 = ? Answer: 8";
        let marking = |asked: &[&str]| {
            let asked: Vec<String> = asked.iter().map(|text| (*text).to_owned()).collect();
            let uses = set.uses(&[], &asked);
            let used = set.prompts.iter().zip(uses);
            used.filter(|(prompt, of)| {
                *of == PromptUse::Unrelated && prompt.text.contains("mark it")
            })
            .count()
        };
        assert!(marking(&[]) >= 2 && marking(&[]) == marking(&[sum, sum]));
        assert_eq!(marking(&[sum, sheet]), 0);
    }

    #[test]
    fn requests_of_a_section_are_appended_to_questions() {
        let text = "# any\n? What is it?\n? Why?\n? How?\n# contrary to: short, Too Long\nA long text.\n+ At length.\n+ In full.\n# unless asked about: tea\nMake tea.\n# rest\nTell me.\n";
        let set = PromptSet::parse(text);
        let expected = [
            "A long text.",
            "Make tea.",
            "Tell me.",
            "What is it? At length.",
            "Why? In full.",
            "How? At length.",
        ];
        assert_eq!(texts(&set), expected);
        let uses =
            |feedback: &str, asked: &str| set.uses(&[feedback.to_owned()], &[asked.to_owned()]);
        use PromptUse::{Contrary, Unrelated, Unused};
        assert_eq!(
            uses("too  long!", "Is tea hot?"),
            [Contrary, Unused, Unrelated, Contrary, Contrary, Contrary]
        );
        assert_eq!(
            uses("", "A team?"),
            [Unrelated, Unrelated, Unrelated, Unused, Unused, Unused]
        );
        assert_eq!(set.questions, ["What is it?", "Why?", "How?"]);
    }

    #[test]
    fn a_file_without_questions_leaves_the_built_in_ones() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prompts.txt");
        let of = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let prompts_file = Some(file.clone());
            questions(&RehearsalOptions {
                prompts_file,
                ..RehearsalOptions::default()
            })
            .unwrap()
        };
        assert_eq!(of("? Why?\n# contrary to: short\n+ At length.\n"), ["Why?"]);
        assert!(of("Tell me.\n").len() >= 40);
    }

    #[test]
    fn comments_and_empty_lines_are_skipped() {
        assert_eq!(
            texts(&PromptSet::parse("# a\n\n one \ntwo\none\n")),
            ["one", "two"]
        );
        let load = |path: &Path| {
            PromptSet::load(&RehearsalOptions {
                prompts_file: Some(path.to_owned()),
                ..RehearsalOptions::default()
            })
        };
        let error = load(Path::new("no such file")).unwrap_err().to_string();
        assert!(error.contains("no such file"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("prompts.txt");
        std::fs::write(&empty, "# nothing\n").unwrap();
        let error = load(&empty).unwrap_err().to_string();
        assert!(error.contains("training.rehearsal.prompts_file"), "{error}");
    }
}
