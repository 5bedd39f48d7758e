//! Hints of a turn, and the teacher's prompts that contain them.
//!
//! The prompt is rendered as the gateway rendered it, with the hint inserted where its extractor placed it. Without the
//! hint the rendering must reproduce the recorded prompt token by token; otherwise the sample is rejected, because the
//! teacher would see another conversation than the policy did.

use clawhost_chat::{ChatInput, Message, Role};
use clawhost_engine::Engine;
use clawhost_journal::{HintPlacement, Journal, PromptInputs, SampleRecord};

/// Hints with this many characters or fewer are ignored.
const MAX_IGNORED_CHARS: usize = 10;

/// A prompt that contains a hint.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HintedPrompt {
    /// Journal id of the hint.
    pub(crate) hint: i64,
    /// Token ids of the prompt.
    pub(crate) prompt_ids: Vec<u32>,
}

/// The distinct hints with more than [`MAX_IGNORED_CHARS`] characters, longest first; hints of equal length keep their
/// order.
pub(crate) fn usable_hints<'a, T: ?Sized + AsRef<str> + 'a>(
    hints: impl IntoIterator<Item = &'a T>,
) -> Vec<&'a str> {
    let mut usable: Vec<(usize, &str)> = Vec::new();
    for hint in hints {
        let text = hint.as_ref().trim();
        let length = text.chars().count();
        if length > MAX_IGNORED_CHARS && usable.iter().all(|(_, known)| *known != text) {
            usable.push((length, text));
        }
    }
    usable.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    usable.into_iter().map(|(_, text)| text).collect()
}

/// Renders prompts with hints inserted.
pub(crate) struct HintedPromptBuilder<'a> {
    pub(crate) journal: &'a Journal,
    pub(crate) engine: &'a Engine,
    /// Text before a hint.
    pub(crate) marker: &'a str,
    /// Hints of a turn that are rendered at most.
    pub(crate) max_hints: usize,
    /// Length limit of prompt and reply together.
    pub(crate) max_tokens: usize,
}

impl HintedPromptBuilder<'_> {
    /// The sample's prompt with each of its usable hints; empty if it has none.
    ///
    /// # Errors
    /// Why a sample with usable hints has no hinted prompt.
    pub(crate) fn build(&self, sample: &SampleRecord) -> Result<Vec<HintedPrompt>, String> {
        let hints = usable_hints(sample.hints.iter().map(|hint| &hint.text));
        if hints.is_empty() {
            return Ok(Vec::new());
        }
        let request = self
            .journal
            .prompt_inputs(sample.turn)
            .map_err(|error| error.to_string())?
            .ok_or("its request is no longer in the journal")?;
        if self.render(&request, &request.messages)? != sample.prompt_ids {
            return Err(
                "its prompt does not render to the recorded tokens; was the chat template changed?"
                    .to_owned(),
            );
        }
        let mut prompts = Vec::new();
        for text in hints.into_iter().take(self.max_hints) {
            let Some(hint) = sample.hints.iter().find(|hint| hint.text.trim() == text) else {
                continue;
            };
            let placed = insert_hint(&request.messages, self.marker, text, hint.placement);
            let prompt_ids = self.render(&request, &placed)?;
            if prompt_ids.len() + sample.token_ids.len() <= self.max_tokens {
                prompts.push(HintedPrompt {
                    hint: hint.id,
                    prompt_ids,
                });
            }
        }
        if prompts.is_empty() {
            return Err("with its hint it exceeds the context length".to_owned());
        }
        Ok(prompts)
    }

    fn render(&self, request: &PromptInputs, messages: &[Message]) -> Result<Vec<u32>, String> {
        let text = self
            .engine
            .template()
            .render_at(
                &ChatInput {
                    messages,
                    tools: &request.tools,
                    add_generation_prompt: true,
                    extra: Some(&request.template),
                },
                request.received_ms.div_euclid(1000),
            )
            .map_err(|error| error.to_string())?;
        self.engine
            .tokenizer()
            .encode(&text)
            .map_err(|error| error.to_string())
    }
}

/// Appends the hint as a paragraph to the last user message or to the first system message. If there is no such message,
/// inserts a system message at the start.
fn insert_hint(
    messages: &[Message],
    marker: &str,
    hint: &str,
    placement: HintPlacement,
) -> Vec<Message> {
    let paragraph = if marker.is_empty() {
        hint.to_owned()
    } else {
        format!("{marker} {hint}")
    };
    let mut messages = messages.to_vec();
    let target = match placement {
        HintPlacement::LastUser => messages
            .iter_mut()
            .rev()
            .find(|message| message.role() == Role::User),
        HintPlacement::System => messages
            .iter_mut()
            .find(|message| message.role() == Role::System),
    };
    match target.and_then(Message::content_mut) {
        // Text parts are joined by a line break, so this is a paragraph of its own.
        Some(content) => content.push_text(format!("\n{paragraph}")),
        None => messages.insert(0, Message::system(paragraph)),
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn hints_match_the_golden_cases() {
        let text = include_str!("../../judging/tests/goldens/15_votes_hints.json");
        let goldens: Value = serde_json::from_str(text).unwrap();
        let cases = goldens["cases"].as_array().unwrap().iter();
        let mut checked = 0;
        for case in cases.filter(|case| case["id"] == "hint") {
            checked += 1;
            let votes = case["inputs"]["votes"].as_array().unwrap().iter();
            let hints: Vec<&str> = votes
                .filter(|vote| vote[0] == 1)
                .filter_map(|vote| vote[1].as_str())
                .collect();
            let selected = usable_hints(hints).into_iter().next();
            assert_eq!(selected, case["expected"]["hint"].as_str());
        }
        assert_eq!(checked, 3);
    }

    #[test]
    fn usable_hints_are_longer_than_ten_characters_and_longest_first() {
        let joined = |hints: &[&str]| usable_hints(hints.iter().copied()).join("|");
        assert_eq!(
            joined(&["check the file", "read README before editing"]),
            "read README before editing|check the file"
        );
        assert_eq!(joined(&["short", "ten chars!"]), "");
        assert_eq!(joined(&["exactly ten", "ten chars!"]), "exactly ten");
        assert_eq!(
            joined(&["as long as it", "as long as me", " as long as it "]),
            "as long as it|as long as me"
        );
    }

    #[test]
    fn a_hint_is_appended_to_the_last_user_or_first_system_message() {
        let messages = [
            Message::system("S"),
            Message::user("first"),
            Message::assistant("A"),
            Message::user("second"),
            serde_json::from_str(r#"{"role": "tool", "content": "T"}"#).unwrap(),
        ];
        let text = |message: &Message| message.content().unwrap().to_text();
        let placed = insert_hint(&messages, "[h]", "Be brief.", HintPlacement::LastUser);
        assert_eq!(text(&placed[3]), "second\n\n[h] Be brief.");
        assert_eq!(placed[..3], messages[..3]);
        assert_eq!(placed[4], messages[4]);
        let system = insert_hint(&messages, "", "Be brief.", HintPlacement::System);
        assert_eq!(text(&system[0]), "S\n\nBe brief.");
        let alone = insert_hint(&messages[2..3], "", "Be brief.", HintPlacement::LastUser);
        assert_eq!(alone[0], Message::system("Be brief."));
    }
}
