//! Prompts that are shortened because the client asks for it: by whole messages, or by tokens.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;

/// What a prompt that is too long loses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Truncation {
    /// Nothing: it is refused.
    #[default]
    None,
    /// The oldest messages, system messages at the beginning excepted.
    Messages,
    /// Tokens of the rendered prompt.
    Tokens(Cut),
}

/// How many tokens of a prompt are kept, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// None: as many as leave room for the reply.
    most: Option<usize>,
    /// The first tokens are kept, not the last.
    first: bool,
}

impl Cut {
    /// Reads `truncate_prompt_tokens` and `truncation_side`, as vLLM has them.
    pub(crate) fn read(fields: Fields<'_, '_>) -> Result<Option<Self>, ApiError> {
        let first = match fields.text("truncation_side")? {
            None | Some("left") => false,
            Some("right") => true,
            Some(_) => {
                return Err(ApiError::invalid(
                    "truncation_side",
                    "`truncation_side` must be `left`, which keeps the last tokens, or `right`, which keeps the first",
                ));
            }
        };
        let name = "truncate_prompt_tokens";
        let Some(most) = fields.integer(name, -1, i64::from(u32::MAX))? else {
            return Ok(None);
        };
        if most == 0 {
            return Err(ApiError::invalid(
                name,
                "`truncate_prompt_tokens` is 0, which leaves no prompt; it must be at least 1, or -1 for as many as fit",
            ));
        }
        Ok(Some(Self {
            most: usize::try_from(most).ok(),
            first,
        }))
    }

    /// Tokens that are kept at most, in a context of this size beside a reply of `max_tokens`.
    pub(crate) fn most(self, context: usize, max_tokens: u32) -> usize {
        self.most
            .unwrap_or_else(|| context - room(context, max_tokens))
    }

    /// Leaves `most` tokens; whether there were more.
    pub(crate) fn apply(self, ids: &mut Vec<u32>, most: usize) -> bool {
        if ids.len() <= most {
            return false;
        }
        if self.first {
            ids.truncate(most);
        } else {
            ids.drain(..ids.len() - most);
        }
        true
    }

    /// Whether the end of the prompt goes.
    pub(crate) fn drops_end(self) -> bool {
        self.first
    }
}

/// Tokens of a context that a prompt leaves to its reply: as many as the reply may have, and at most a quarter.
pub(super) fn room(context: usize, max_tokens: u32) -> usize {
    let reply = usize::try_from(max_tokens).unwrap_or(usize::MAX);
    reply.min(context / 4).clamp(1, context.max(1))
}

/// Drops the oldest messages until the rest `fits`, as few as possible. What is left begins, behind the system messages,
/// with a message of the user, or with any but the result of a tool where that does not fit. Nothing fits: the fewest
/// messages. None: there is no place to cut at.
pub(super) fn shorten<T>(
    messages: &[Value],
    render: impl Fn(&[Value]) -> Result<T, ApiError>,
    fits: impl Fn(&T) -> bool,
) -> Result<Option<(Vec<Value>, T)>, ApiError> {
    let role = |message: &Value| message.get("role").and_then(Value::as_str) == Some("system");
    let leading = messages.iter().take_while(|message| role(message)).count();
    let (instructions, rest) = messages.split_at(leading);
    let from = |cut: usize| -> Vec<Value> {
        let kept = rest.iter().skip(cut);
        instructions.iter().chain(kept).cloned().collect()
    };
    let mut shortest = None;
    for allowed in [&["user"][..], &["user", "assistant", "system"]] {
        let begins = |message: &Value| {
            let role = message.get("role").and_then(Value::as_str);
            role.is_some_and(|role| allowed.contains(&role))
        };
        let cuts: Vec<usize> = (1..rest.len())
            .filter(|at| rest.get(*at).is_some_and(begins))
            .collect();
        // The more is dropped the shorter it is, so the first cut that fits is found by halving.
        let (mut low, mut high, mut found) = (0, cuts.len(), None);
        while low < high {
            let middle = low.midpoint(high);
            let Some(cut) = cuts.get(middle) else { break };
            let kept = from(*cut);
            let rendered = render(&kept)?;
            if fits(&rendered) {
                found = Some((kept, rendered));
                high = middle;
            } else {
                if middle + 1 == cuts.len() {
                    shortest = Some((kept, rendered));
                }
                low = middle + 1;
            }
        }
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn conversation(roles: &str) -> Vec<Value> {
        let role = |letter| match letter {
            's' => "system",
            'u' => "user",
            'a' => "assistant",
            _ => "tool",
        };
        roles
            .chars()
            .map(|letter| json!({"role": role(letter)}))
            .collect()
    }

    fn shortened(roles: &str, most: usize) -> Option<String> {
        let letters = |messages: &[Value]| -> Result<String, ApiError> {
            Ok(messages
                .iter()
                .map(|message| &message["role"].as_str().unwrap()[..1])
                .collect())
        };
        let fits = |text: &String| text.len() <= most;
        let found = shorten(&conversation(roles), letters, fits).unwrap();
        found.map(|(kept, text)| {
            assert_eq!(kept.len(), text.len());
            text
        })
    }

    #[test]
    fn the_oldest_messages_go_first_and_instructions_stay() {
        assert_eq!(shortened("suauau", 4).as_deref(), Some("suau"));
        assert_eq!(shortened("suauau", 3).as_deref(), Some("su"));
        assert_eq!(shortened("uauau", 1).as_deref(), Some("u"));
        // The result of a tool never stands without its call.
        assert_eq!(shortened("suatatau", 5).as_deref(), Some("su"));
        assert_eq!(shortened("suatat", 5).as_deref(), Some("satat"));
        assert_eq!(shortened("suatat", 4).as_deref(), Some("sat"));
        // What cannot be made to fit is as short as it can be.
        assert_eq!(shortened("suau", 1).as_deref(), Some("su"));
        assert_eq!(shortened("su", 1), None);
    }

    #[test]
    fn tokens_are_kept_at_either_end() {
        let read = |body: Value| Cut::read(Fields::of(&body, "").unwrap());
        let kept = |body: Value| {
            let cut = read(body).unwrap().unwrap();
            let mut ids = vec![1, 2, 3, 4, 5, 6, 7, 8];
            let most = cut.most(8, u32::MAX);
            cut.apply(&mut ids, most);
            ids
        };
        assert_eq!(kept(json!({"truncate_prompt_tokens": 2})), [7, 8]);
        assert_eq!(
            kept(json!({"truncate_prompt_tokens": 2, "truncation_side": "right"})),
            [1, 2]
        );
        assert_eq!(kept(json!({"truncate_prompt_tokens": -1})).len(), 6);
        assert_eq!(kept(json!({"truncate_prompt_tokens": 9})).len(), 8);
        assert_eq!(read(json!({})).unwrap(), None);
        for wrong in [
            json!({"truncate_prompt_tokens": 0}),
            json!({"truncate_prompt_tokens": -2}),
            json!({"truncate_prompt_tokens": 3, "truncation_side": "middle"}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
