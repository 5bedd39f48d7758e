//! Helpers to read and create conversations.

use crate::{Message, Part, PluginError, Role, ToolCall, ToolSpec, Trajectory, Turn};

impl Message {
    /// Creates a message with one text part.
    pub fn new(role: Role, text: impl Into<String>) -> Message {
        Message {
            role,
            content: vec![Part::Text(text.into())],
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }

    /// Creates the result of a tool call.
    pub fn tool_result(call: &ToolCall, text: impl Into<String>) -> Message {
        Message {
            tool_call_id: Some(call.id.clone()),
            name: Some(call.name.clone()),
            ..Message::new(Role::Tool, text)
        }
    }

    /// The visible text: all text parts, joined by newlines.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self
            .content
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        texts.join("\n")
    }
}

impl ToolSpec {
    /// Creates a tool whose argument is a JSON object with these members and no others.
    ///
    /// `properties` and `required` are the contents of the object and of the array in its JSON schema, such as
    /// `"path":{"type":"string"}` and `"path"`.
    pub fn of_object(
        name: impl Into<String>,
        description: impl Into<String>,
        properties: &str,
        required: &str,
    ) -> ToolSpec {
        ToolSpec {
            name: name.into(),
            description: description.into(),
            parameters: format!(
                r#"{{"type":"object","properties":{{{properties}}},"required":[{required}],"additionalProperties":false}}"#
            ),
        }
    }
}

impl ToolCall {
    /// What a policy reads that calls a tool other than those that are offered.
    pub fn unknown_tool(&self, offered: &[&str]) -> String {
        format!(
            "error: there is no tool `{}`; the tools are: {}",
            self.name,
            offered.join(", ")
        )
    }
}

impl Turn {
    /// Creates a turn with index 0.
    pub fn new(prompt: Vec<Message>, response: Message, next_state: Vec<Message>) -> Turn {
        Turn {
            index: 0,
            prompt,
            response,
            next_state,
            truncated: false,
        }
    }

    /// The text of the user messages after the response, joined by newlines.
    pub fn user_text(&self) -> String {
        join(&self.next_state, Role::User)
    }

    /// The text of the last user message before the response.
    pub fn last_request(&self) -> String {
        self.prompt
            .iter()
            .rev()
            .find(|message| message.role == Role::User)
            .map(Message::text)
            .unwrap_or_default()
    }

    /// Texts of the tool results after the response.
    pub fn tool_results(&self) -> Vec<String> {
        self.next_state
            .iter()
            .filter(|message| message.role == Role::Tool)
            .map(Message::text)
            .collect()
    }
}

fn join(messages: &[Message], role: Role) -> String {
    let texts: Vec<String> = messages
        .iter()
        .filter(|message| message.role == role)
        .map(Message::text)
        .collect();
    texts.join("\n")
}

impl Trajectory {
    /// The turn at this index.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] when the index is out of range.
    pub fn turn(&self, index: u32) -> Result<&Turn, PluginError> {
        self.turns.get(index as usize).ok_or_else(|| {
            PluginError::InvalidInput(format!(
                "turn {index} of a trajectory with {} turns",
                self.turns.len()
            ))
        })
    }

    /// Creates a trajectory of one turn, for tests.
    pub fn of(turn: Turn) -> Trajectory {
        Trajectory {
            session_id: "session".to_owned(),
            task_id: None,
            group_id: "group".to_owned(),
            turns: vec![turn],
            env_reward: None,
            metadata: Vec::new(),
        }
    }
}
