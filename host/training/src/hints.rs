//! The teacher's prompts of a turn: with its hints, with the experience of its API key, or with both.
//!
//! The prompt is rendered as the gateway rendered it, with the hint inserted where its extractor placed it and the experience
//! in the system message. Without them the rendering must reproduce the recorded prompt token by token; otherwise the sample
//! is rejected, because the teacher would see another conversation than the policy did.
//!
//! A reply that was sampled with experience in its prompt is distilled for the prompt without it, where the method allows
//! that: its recorded prompt is the teacher's then. It is off-policy, so its recorded log-probs are not used.

use std::cell::RefCell;
use std::collections::BTreeMap;

use clawhost_chat::{ChatInput, Message, Role, with_system_paragraph};
use clawhost_config::ExperienceOptions;
use clawhost_engine::Engine;
use clawhost_journal::{
    HintPlacement, Journal, MAX_IGNORED_HINT_CHARS, PromptExperience, PromptInputs, SampleRecord,
};

/// A prompt of the teacher.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct HintedPrompt {
    /// Journal id of the hint; none if it has experience only.
    pub(crate) hint: Option<i64>,
    /// Journal ids of the entries of experience.
    pub(crate) experience: Vec<i64>,
    /// Token ids of the prompt.
    pub(crate) prompt_ids: Vec<u32>,
}

/// The prompts that a sample is distilled with.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DistillationPrompts {
    /// Those of the teacher, longest hint first.
    pub(crate) teacher: Vec<HintedPrompt>,
    /// The policy's prompt, if it is not the recorded one.
    pub(crate) policy: Option<Vec<u32>>,
}

/// The distinct hints with more than [`MAX_IGNORED_HINT_CHARS`] characters, longest first; hints of equal length keep their
/// order.
pub(crate) fn usable_hints<'a, T: ?Sized + AsRef<str> + 'a>(
    hints: impl IntoIterator<Item = &'a T>,
) -> Vec<&'a str> {
    let mut usable: Vec<(usize, &str)> = Vec::new();
    for hint in hints {
        let text = hint.as_ref().trim();
        let length = text.chars().count();
        if length > MAX_IGNORED_HINT_CHARS && usable.iter().all(|(_, known)| *known != text) {
            usable.push((length, text));
        }
    }
    usable.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    usable.into_iter().map(|(_, text)| text).collect()
}

/// Renders the teacher's prompts.
pub(crate) struct HintedPromptBuilder<'a> {
    pub(crate) journal: &'a Journal,
    pub(crate) engine: &'a Engine,
    /// Text before a hint.
    pub(crate) marker: &'a str,
    /// Hints of a turn that are rendered at most.
    pub(crate) max_hints: usize,
    /// Length limit of prompt and reply together.
    pub(crate) max_tokens: usize,
    /// Whether the teacher reads experience.
    pub(crate) experience: &'a ExperienceOptions,
    /// Whether the method takes nothing from the recorded log-probs, so that a reply can be distilled for another prompt than the
    /// one that it was sampled for.
    pub(crate) distills_off_policy: bool,
    /// The experience of each API key that was needed so far.
    pub(crate) known_experience: RefCell<BTreeMap<Option<String>, Option<PromptExperience>>>,
}

impl HintedPromptBuilder<'_> {
    /// The sample's prompts with each of its usable hints and with experience; none if it has neither.
    ///
    /// # Errors
    /// Why a sample with usable hints or experience has no prompt for the teacher.
    pub(crate) fn build(&self, sample: &SampleRecord) -> Result<DistillationPrompts, String> {
        let hints = usable_hints(sample.hints.iter().map(|hint| &hint.text));
        let distills = self.experience.mode.distills();
        if hints.is_empty() && !distills {
            return Ok(DistillationPrompts::default());
        }
        let request = self
            .journal
            .prompt_inputs(sample.turn)
            .map_err(|error| error.to_string())?
            .ok_or("its request is no longer in the journal")?;
        let off_policy = distills && request.experience.is_some() && self.distills_off_policy;
        let experience = match &request.experience {
            Some(recorded) => Some(recorded.clone()),
            None if distills => self.experience_of(request.key.as_deref())?,
            None => None,
        };
        let reads_experience = off_policy || request.experience.is_none() && experience.is_some();
        if hints.is_empty() && !reads_experience {
            return Ok(DistillationPrompts::default());
        }
        let with_experience = match &experience {
            Some(experience) => with_system_paragraph(&request.messages, &experience.text),
            None => request.messages.clone(),
        };
        let recorded = match request.experience {
            Some(_) => &with_experience,
            None => &request.messages,
        };
        if self.render(&request, recorded)? != sample.prompt_ids {
            return Err(
                "its prompt does not render to the recorded tokens; was the chat template changed?"
                    .to_owned(),
            );
        }
        let mut prompts = DistillationPrompts::default();
        if off_policy {
            prompts.policy = Some(self.render(&request, &request.messages)?);
        }
        let entries = match (&experience, reads_experience) {
            (Some(experience), true) => experience.entries.clone(),
            _ => Vec::new(),
        };
        let mut add = |hint: Option<i64>, messages: &[Message]| -> Result<(), String> {
            let prompt_ids = self.render(&request, messages)?;
            if prompt_ids.len() + sample.token_ids.len() <= self.max_tokens {
                prompts.teacher.push(HintedPrompt {
                    hint,
                    experience: entries.clone(),
                    prompt_ids,
                });
            }
            Ok(())
        };
        if hints.is_empty() {
            add(None, &with_experience)?;
        }
        for text in hints.into_iter().take(self.max_hints) {
            let Some(hint) = sample.hints.iter().find(|hint| hint.text.trim() == text) else {
                continue;
            };
            let placed = insert_hint(&with_experience, self.marker, text, hint.placement);
            add(Some(hint.id), &placed)?;
        }
        if prompts.teacher.is_empty() {
            return Err("with its hint or experience it exceeds the context length".to_owned());
        }
        Ok(prompts)
    }

    /// The active experience of an API key.
    fn experience_of(&self, key: Option<&str>) -> Result<Option<PromptExperience>, String> {
        let mut known = self.known_experience.borrow_mut();
        if let Some(experience) = known.get(&key.map(str::to_owned)) {
            return Ok(experience.clone());
        }
        let entries = self.journal.active_experience(key);
        let entries = entries.map_err(|error| error.to_string())?;
        let (tokenizer, limit) = (self.engine.tokenizer(), self.experience.max_tokens);
        let experience = PromptExperience::new(&entries, tokenizer, limit);
        let experience = experience.map_err(|error| error.to_string())?;
        known.insert(key.map(str::to_owned), experience.clone());
        Ok(experience)
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

/// Appends the hint as a paragraph to the last user message, or to the system message; the latter also if there is no user
/// message.
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
    if placement == HintPlacement::LastUser {
        let mut messages = messages.to_vec();
        let target = messages
            .iter_mut()
            .rev()
            .find(|message| message.role() == Role::User);
        if let Some(content) = target.and_then(Message::content_mut) {
            // Text parts are joined by a line break, so this is a paragraph of its own.
            content.push_text(format!("\n{paragraph}"));
            return messages;
        }
    }
    with_system_paragraph(messages, &paragraph)
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
