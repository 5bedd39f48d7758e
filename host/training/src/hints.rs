//! Hints of a turn, and the prompt of the teacher who reads one.
//!
//! The prompt is what the gateway rendered, with the hint put where its extractor wants it. A prompt that
//! does not come out token by token as it was recorded when it is rendered without the hint is refused: the
//! teacher would see another conversation than the policy saw.

use clawhost_journal::{Asked, HintPlacement, Journal, SampleRecord};
use clawhost_policy::{ChatInput, Engine};
use serde_json::{Value, json};

/// Hints of so many characters or fewer say nothing.
const SHORT: usize = 10;

/// A prompt with a hint in it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hinted {
    /// The number of the hint in the journal.
    pub(crate) hint: i64,
    /// Token ids of the prompt that holds it.
    pub(crate) prompt_ids: Vec<u32>,
}

/// The hints that may teach, the longest first and each text once: more than ten characters. Of equally long
/// ones the earlier goes first.
pub(crate) fn candidates<'a, T: ?Sized + AsRef<str> + 'a>(
    hints: impl IntoIterator<Item = &'a T>,
) -> Vec<&'a str> {
    let mut kept: Vec<(usize, &str)> = Vec::new();
    for hint in hints {
        let text = hint.as_ref().trim();
        let length = text.chars().count();
        if length > SHORT && kept.iter().all(|(_, known)| *known != text) {
            kept.push((length, text));
        }
    }
    kept.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    kept.into_iter().map(|(_, text)| text).collect()
}

/// Renders prompts with hints.
pub(crate) struct Prompter<'a> {
    pub(crate) journal: &'a Journal,
    pub(crate) engine: &'a Engine,
    /// What comes before a hint.
    pub(crate) marker: &'a str,
    /// How many hints of a turn are rendered.
    pub(crate) most: usize,
    /// Longest prompt and reply together.
    pub(crate) max_tokens: usize,
}

impl Prompter<'_> {
    /// The sample's prompt with each of its hints; empty when it has none that may teach.
    ///
    /// # Errors
    /// Why a sample with hints has no hinted prompt, in words.
    pub(crate) fn prompts(&self, sample: &SampleRecord) -> Result<Vec<Hinted>, String> {
        let wanted = candidates(sample.hints.iter().map(|hint| &hint.text));
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let asked = self
            .journal
            .asked(sample.turn)
            .map_err(|error| error.to_string())?
            .ok_or("its request is no longer in the journal")?;
        let messages = asked
            .messages
            .as_array()
            .ok_or("its messages are no list")?;
        if self.render(&asked, messages)? != sample.prompt_ids {
            return Err(
                "its prompt does not render as it was recorded; was the chat template changed?"
                    .to_owned(),
            );
        }
        let mut prompts = Vec::new();
        for text in wanted.into_iter().take(self.most) {
            let Some(hint) = sample.hints.iter().find(|hint| hint.text.trim() == text) else {
                continue;
            };
            let placed = placed(messages, self.marker, text, hint.placement);
            let prompt_ids = self.render(&asked, &placed)?;
            if prompt_ids.len() + sample.token_ids.len() <= self.max_tokens {
                prompts.push(Hinted {
                    hint: hint.id,
                    prompt_ids,
                });
            }
        }
        if prompts.is_empty() {
            return Err("with its hint it is longer than the context".to_owned());
        }
        Ok(prompts)
    }

    fn render(&self, asked: &Asked, messages: &[Value]) -> Result<Vec<u32>, String> {
        let none = Vec::new();
        let text = self
            .engine
            .template()
            .render_at(
                &ChatInput {
                    messages,
                    tools: asked.tools.as_array().unwrap_or(&none),
                    add_generation_prompt: true,
                    extra: asked.template.as_object(),
                },
                asked.received_ms.div_euclid(1000),
            )
            .map_err(|error| error.to_string())?;
        self.engine
            .tokenizer()
            .encode(&text)
            .map_err(|error| error.to_string())
    }
}

/// The messages with the hint: a new last paragraph of the last user message, or of the first system message.
/// Where there is none of that kind, a system message of its own comes first.
fn placed(messages: &[Value], marker: &str, hint: &str, placement: HintPlacement) -> Vec<Value> {
    let paragraph = if marker.is_empty() {
        hint.to_owned()
    } else {
        format!("{marker} {hint}")
    };
    let mut messages = messages.to_vec();
    let speaks = |role: &'static str| {
        move |message: &&mut Value| message.get("role").and_then(Value::as_str) == Some(role)
    };
    let target = match placement {
        HintPlacement::LastUser => messages.iter_mut().rev().find(speaks("user")),
        HintPlacement::System => messages.iter_mut().find(speaks("system")),
    };
    match target.and_then(|message| message.get_mut("content")) {
        Some(Value::String(content)) => *content = format!("{content}\n\n{paragraph}"),
        Some(Value::Array(parts)) => {
            parts.push(json!({"type": "text", "text": format!("\n{paragraph}")}));
        }
        _ => messages.insert(0, json!({"role": "system", "content": paragraph})),
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_agree_with_the_reference() {
        let text = include_str!("../../judging/tests/goldens/15_votes_hints.json");
        let page: Value = serde_json::from_str(text).unwrap();
        let cases = page["cases"].as_array().unwrap().iter();
        let mut seen = 0;
        for case in cases.filter(|case| case["id"] == "hint") {
            seen += 1;
            let votes = case["inputs"]["votes"].as_array().unwrap().iter();
            let hints: Vec<&str> = votes
                .filter(|vote| vote[0] == 1)
                .filter_map(|vote| vote[1].as_str())
                .collect();
            let taken = candidates(hints).into_iter().next();
            assert_eq!(taken, case["expected"]["hint"].as_str());
        }
        assert_eq!(seen, 3);
    }

    #[test]
    fn the_longest_of_more_than_ten_characters_goes_first() {
        let of = |hints: &[&str]| candidates(hints.iter().copied()).join("|");
        assert_eq!(
            of(&["check the file", "read README before editing"]),
            "read README before editing|check the file"
        );
        assert_eq!(of(&["short", "ten chars!"]), "");
        assert_eq!(of(&["exactly ten", "ten chars!"]), "exactly ten");
        assert_eq!(
            of(&["as long as it", "as long as me", " as long as it "]),
            "as long as it|as long as me"
        );
    }

    #[test]
    fn a_hint_is_a_paragraph_of_the_last_user_message() {
        let messages = [
            json!({"role": "system", "content": "S"}),
            json!({"role": "user", "content": "first"}),
            json!({"role": "assistant", "content": "A"}),
            json!({"role": "user", "content": "second"}),
            json!({"role": "tool", "content": "T"}),
        ];
        let placed = placed(&messages, "[h]", "Be brief.", HintPlacement::LastUser);
        assert_eq!(placed[3]["content"], "second\n\n[h] Be brief.");
        assert_eq!(placed[..3], messages[..3]);
        assert_eq!(placed[4], messages[4]);
        let system = super::placed(&messages, "", "Be brief.", HintPlacement::System);
        assert_eq!(system[0]["content"], "S\n\nBe brief.");
        let alone = super::placed(&messages[2..3], "", "Be brief.", HintPlacement::LastUser);
        assert_eq!(alone[0], json!({"role": "system", "content": "Be brief."}));
    }
}
