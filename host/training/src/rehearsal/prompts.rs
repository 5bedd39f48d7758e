//! The rehearsal prompts: built-in ones, or a file of the operator. Some belong to sections that are contrary to certain
//! feedback: they explicitly ask for the opposite of what it asks for.

use clawhost_config::{RehearsalOptions, RehearsalPrompts};

use crate::error::TrainingError;

/// Begins a section of a file.
const CONTRARY: &str = "# contrary to:";

/// A prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RehearsalPrompt {
    pub(super) text: String,
    /// Index of its section; none for a prompt that is contrary to nothing.
    pub(super) section: Option<usize>,
    /// Whether it is a question with a request of the section. Such prompts are used only for contrary feedback.
    pub(super) generated: bool,
}

/// All prompts.
#[derive(Debug, Clone, Default)]
pub(super) struct PromptSet {
    pub(super) prompts: Vec<RehearsalPrompt>,
    /// The questions that the requests of sections are appended to.
    questions: Vec<String>,
    /// The words and phrases of each section, in lower case.
    sections: Vec<Vec<String>>,
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
            if let Some(words) = line.strip_prefix(CONTRARY) {
                section = Some(set.sections.len());
                let words = words.split(',').map(|word| word.trim().to_lowercase());
                set.sections
                    .push(words.filter(|word| !word.is_empty()).collect());
                requests.push(Vec::new());
            } else if line.starts_with('#') {
                section = None;
            } else if let (Some(request), Some(section)) = (line.strip_prefix("+ "), section) {
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

    /// For each section, whether it is contrary to one of these texts.
    pub(super) fn contrary_sections(&self, feedback: &[String]) -> Vec<bool> {
        let texts: Vec<String> = feedback.iter().map(|text| plain(text)).collect();
        let is_contrary = |words: &Vec<String>| {
            words
                .iter()
                .any(|word| texts.iter().any(|text| contains(text, word)))
        };
        self.sections.iter().map(is_contrary).collect()
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
            assert!(own.count() >= 4, "{:?}", set.sections[section]);
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
            let active = set.contrary_sections(&["Thanks.".to_owned(), feedback.to_owned()]);
            let is_active = |prompt: &&RehearsalPrompt| prompt.section.is_some_and(|at| active[at]);
            let mut found = set.prompts.iter().filter(is_active);
            assert!(
                found.any(|prompt| prompt.text.contains(contrary)),
                "{feedback}"
            );
        }
        for neutral in [
            "Thanks, that is great.",
            "Why does it raise ValueError?",
            "Shortly after, it failed.",
        ] {
            let active = set.contrary_sections(&[neutral.to_owned()]);
            assert!(!active.contains(&true), "{neutral}");
        }
    }

    #[test]
    fn the_homework_set_asks_for_formats_when_plain_text_is_wanted() {
        let set = PromptSet::load(&RehearsalOptions {
            prompts: RehearsalPrompts::Homework,
            ..RehearsalOptions::default()
        })
        .unwrap();
        let contrary = set.prompts.iter().filter(|prompt| prompt.section.is_some());
        assert!(contrary.clone().all(|prompt| prompt.generated));
        assert!(contrary.count() >= 20);
        for (feedback, expected) in [
            ("Please rewrite it in plain sentences.", true),
            ("That looks like AI wrote it.", true),
            ("Please be kinder to the child.", false),
            ("Great, thanks!", false),
        ] {
            let active = set.contrary_sections(&[feedback.to_owned()]);
            assert_eq!(active, [expected], "{feedback}");
        }
    }

    #[test]
    fn requests_of_a_section_are_appended_to_questions() {
        let text = "# any\n? What is it?\n? Why?\n? How?\n# contrary to: short, Too Long\nA long text.\n+ At length.\n+ In full.\n# rest\nTell me.\n";
        let set = PromptSet::parse(text);
        let expected = [
            "A long text.",
            "Tell me.",
            "What is it? At length.",
            "Why? In full.",
            "How? At length.",
        ];
        assert_eq!(texts(&set), expected);
        let sections: Vec<bool> = set.prompts.iter().map(|p| p.section.is_some()).collect();
        assert_eq!(sections, [true, false, true, true, true]);
        assert_eq!(set.contrary_sections(&["too  long!".to_owned()]), [true]);
        assert_eq!(set.contrary_sections(&[]), [false]);
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
