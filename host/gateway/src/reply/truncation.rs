//! Prompt truncation on request of the client: by whole messages, or by tokens.

use clawhost_chat::{Message, Role};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::parse::{Count, parse};

/// How a prompt that is too long is truncated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Truncation {
    /// Not at all: the request is rejected.
    #[default]
    None,
    /// Drops the oldest messages, except leading system messages.
    Messages,
    /// Drops tokens of the rendered prompt.
    Tokens(TokenTruncation),
}

/// vLLM's fields about truncation.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct TruncationFields {
    /// Most prompt tokens; a longer prompt is cut. -1: as many as leave room for the reply.
    truncate_prompt_tokens: Option<Count<-1>>,
    /// Where a prompt is cut. Default: `left`.
    truncation_side: Option<TruncationSide>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum TruncationSide {
    /// Keeps the last tokens.
    Left,
    /// Keeps the first tokens.
    Right,
}

/// How many tokens of a prompt are kept, and at which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenTruncation {
    /// `None`: as many as leave room for the reply.
    limit: Option<usize>,
    /// Keeps the first tokens instead of the last.
    keep_first: bool,
}

impl TokenTruncation {
    /// Parses vLLM's `truncate_prompt_tokens` and `truncation_side`.
    pub(crate) fn parse(body: &Value) -> Result<Option<Self>, ApiError> {
        let fields: TruncationFields = parse(body)?;
        let Some(limit) = fields.truncate_prompt_tokens.map(Count::get) else {
            return Ok(None);
        };
        if limit == 0 {
            return Err(ApiError::invalid(
                "truncate_prompt_tokens",
                "`truncate_prompt_tokens` is 0, which leaves no prompt; it must be at least 1, or -1 for as many as fit",
            ));
        }
        Ok(Some(Self {
            limit: usize::try_from(limit).ok(),
            keep_first: fields.truncation_side == Some(TruncationSide::Right),
        }))
    }

    /// The largest number of prompt tokens in a context of `context` tokens with a reply of `max_tokens`.
    pub(crate) fn limit(self, context: usize, max_tokens: u32) -> usize {
        self.limit
            .unwrap_or_else(|| context - reserved_reply_tokens(context, max_tokens))
    }

    /// Truncates `ids` to `limit` tokens. Returns whether tokens were dropped.
    pub(crate) fn apply(self, ids: &mut Vec<u32>, limit: usize) -> bool {
        if ids.len() <= limit {
            return false;
        }
        if self.keep_first {
            ids.truncate(limit);
        } else {
            ids.drain(..ids.len() - limit);
        }
        true
    }

    /// Whether the end of the prompt is dropped.
    pub(crate) fn drops_end(self) -> bool {
        self.keep_first
    }
}

/// Tokens of a context reserved for the reply: `max_tokens`, but at most a quarter of the context.
pub(super) fn reserved_reply_tokens(context: usize, max_tokens: u32) -> usize {
    let reply = max_tokens as usize;
    reply.min(context / 4).clamp(1, context.max(1))
}

/// Drops as few of the oldest messages as necessary until the rest `fits`. After the leading system messages, the rest
/// begins with a user message, or with any message but a tool result if that does not fit. Returns the shortest
/// conversation if none fits, and `None` if there is no position to cut at.
pub(super) fn drop_oldest_messages<T>(
    messages: &[Message],
    render: impl Fn(&[Message]) -> Result<T, ApiError>,
    fits: impl Fn(&T) -> bool,
) -> Result<Option<(Vec<Message>, T)>, ApiError> {
    let leading = messages
        .iter()
        .take_while(|message| message.role() == Role::System)
        .count();
    let (instructions, rest) = messages.split_at(leading);
    let mut shortest = None;
    for allowed in [
        &[Role::User][..],
        &[Role::User, Role::Assistant, Role::System],
    ] {
        let cuts: Vec<usize> = (1..rest.len())
            .filter(|at| allowed.contains(&rest[*at].role()))
            .collect();
        // Dropping more messages makes the prompt shorter, so a binary search finds the first cut that fits.
        let (mut low, mut high, mut found) = (0, cuts.len(), None);
        while low < high {
            let middle = low.midpoint(high);
            let kept = [instructions, &rest[cuts[middle]..]].concat();
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

    fn conversation(roles: &str) -> Vec<Message> {
        let message = |letter| match letter {
            's' => Message::system(""),
            'u' => Message::user(""),
            'a' => Message::assistant(""),
            _ => serde_json::from_str(r#"{"role": "tool"}"#).unwrap(),
        };
        roles.chars().map(message).collect()
    }

    fn kept_roles(roles: &str, limit: usize) -> Option<String> {
        let letter = |message: &Message| match message.role() {
            Role::System => 's',
            Role::User => 'u',
            Role::Assistant => 'a',
            Role::Tool => 't',
        };
        let letters = |messages: &[Message]| -> Result<String, ApiError> {
            Ok(messages.iter().map(letter).collect())
        };
        let fits = |text: &String| text.len() <= limit;
        let found = drop_oldest_messages(&conversation(roles), letters, fits).unwrap();
        found.map(|(kept, text)| {
            assert_eq!(kept.len(), text.len());
            text
        })
    }

    #[test]
    fn oldest_messages_are_dropped_first_and_system_messages_kept() {
        assert_eq!(kept_roles("suauau", 4).as_deref(), Some("suau"));
        assert_eq!(kept_roles("suauau", 3).as_deref(), Some("su"));
        assert_eq!(kept_roles("uauau", 1).as_deref(), Some("u"));
        // A tool result is never kept without its call.
        assert_eq!(kept_roles("suatatau", 5).as_deref(), Some("su"));
        assert_eq!(kept_roles("suatat", 5).as_deref(), Some("satat"));
        assert_eq!(kept_roles("suatat", 4).as_deref(), Some("sat"));
        // If nothing fits, the shortest conversation is returned.
        assert_eq!(kept_roles("suau", 1).as_deref(), Some("su"));
        assert_eq!(kept_roles("su", 1), None);
    }

    #[test]
    fn tokens_are_kept_at_the_requested_end() {
        let read = |body: Value| TokenTruncation::parse(&body);
        let kept = |body: Value| {
            let cut = read(body).unwrap().unwrap();
            let mut ids = vec![1, 2, 3, 4, 5, 6, 7, 8];
            let limit = cut.limit(8, u32::MAX);
            cut.apply(&mut ids, limit);
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
