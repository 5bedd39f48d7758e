//! Sample templates of the three model families: their formats are detected, and tool calls of the history are rendered
//! so that they parse as the same calls.

use serde_json::json;

use super::*;
use crate::chat_template::{ChatInput, ChatTemplate};
use crate::reply_parser::parse_reply;
use crate::tool_schemas::ToolSchemas;

/// Arguments are one JSON object.
const HERMES: &str = r#"{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Write <tool_call>{"name": <name>, "arguments": <object>}</tool_call> to use one.
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}"#;

/// Arguments are written one by one: strings unquoted, other values as JSON.
const QWEN_XML: &str = r#"{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Write <tool_call><function=name><parameter=key>value</parameter></function></tool_call> to use one.
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items %}
<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}
</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}"#;

/// Tool calls without content.
const LLAMA: &str = r#"{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>

{% if message.tool_calls %}<|python_tag|>{% for call in message.tool_calls %}{{ '; ' if not loop.first }}{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}{% endfor %}{% else %}{{ message.content }}{% endif %}<|eot_id|>
{% endfor %}"#;

fn tokenizer() -> Tokenizer {
    crate::testing::byte_level()
}

#[test]
fn formats_are_detected_from_the_template() {
    for (template, calls) in [
        (HERMES, ToolCallFormat::Hermes),
        (QWEN_XML, ToolCallFormat::QwenXml),
        (LLAMA, ToolCallFormat::Llama),
        ("{{ messages[0].content }}", ToolCallFormat::Hermes),
    ] {
        assert_eq!(
            ToolCallFormat::detect(template, &tokenizer()),
            calls,
            "{template}"
        );
    }
    for (template, reasoning) in [
        (
            "{{ content.split('</think>')[-1] }}",
            ReasoningFormat::Unopened,
        ),
        (
            "{{ content.split('</think>')[-1] }}<think>\n",
            ReasoningFormat::Think,
        ),
        ("{{ messages }}", ReasoningFormat::Think),
    ] {
        assert_eq!(ReasoningFormat::detect(template), reasoning, "{template}");
    }
}

#[test]
fn format_and_prompt_determine_where_a_reply_starts() {
    for (format, prompt, starts_in_reasoning) in [
        (ReasoningFormat::Think, "assistant\n<think>\n", true),
        (ReasoningFormat::Think, "assistant\n", false),
        (ReasoningFormat::Unopened, "assistant\n", true),
        (
            ReasoningFormat::Unopened,
            "assistant\n<think>\n\n</think>\n\n",
            false,
        ),
        (ReasoningFormat::None, "assistant\n<think>\n", false),
    ] {
        assert_eq!(
            format.starts_in_reasoning(prompt),
            starts_in_reasoning,
            "{format:?} {prompt}"
        );
    }
    let format = ReplyFormat {
        reasoning: ReasoningFormat::Unopened,
        ..ReplyFormat::default()
    };
    let parsed = parse_reply(
        "so\n</think>\n\nyes",
        format.parser_options("assistant\n", false),
        &Default::default(),
    );
    assert_eq!(
        (parsed.reasoning.as_deref(), &*parsed.content),
        (Some("so"), "yes")
    );
}

#[test]
fn rendered_tool_calls_parse_as_the_same_calls() {
    let tools: Vec<crate::Tool> = serde_json::from_value(json!([
        {"type": "function", "function": {"name": "put", "parameters": {"type": "object", "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "more": {"type": "object"}, "yes": {"type": "boolean"}}}}},
    ]))
    .unwrap();
    let arguments = [
        json!({"text": "a <b>\n\"c\" ä", "count": 3, "more": {"x": [1, null]}, "yes": true}),
        json!({"text": "12"}),
        json!({}),
    ];
    // Clients send arguments as text; some send objects.
    let sent = [
        json!(arguments[0].to_string()),
        arguments[1].clone(),
        json!("{}"),
    ];
    let calls: Vec<_> = sent
        .iter()
        .map(|sent| json!({"id": "c", "type": "function", "function": {"name": "put", "arguments": sent}}))
        .collect();
    let messages: Vec<crate::Message> = serde_json::from_value(json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": null, "tool_calls": calls},
        {"role": "tool", "content": "done", "tool_call_id": "c"},
    ]))
    .unwrap();
    for (template, end) in [
        (HERMES, "<|im_end|>"),
        (QWEN_XML, "<|im_end|>"),
        (LLAMA, "<|eot_id|>"),
    ] {
        let input = ChatInput {
            messages: &messages,
            tools: &tools,
            add_generation_prompt: false,
            extra: None,
        };
        let rendered = ChatTemplate::new(template, [])
            .unwrap()
            .render_at(&input, 0)
            .unwrap();
        let reply = rendered
            .split("assistant")
            .nth(1)
            .unwrap()
            .split(end)
            .next()
            .unwrap();
        let reply = reply.trim_start_matches("<|end_header_id|>");
        let options = ReplyParserOptions {
            calls: ToolCallFormat::detect(template, &tokenizer()),
            ..ReplyParserOptions::default()
        };
        let types = std::sync::Arc::new(ToolSchemas::from_definitions(&tools));
        let parsed = parse_reply(reply, options, &types);
        assert_eq!(parsed.malformed, Vec::<String>::new(), "{reply}");
        assert_eq!(parsed.content.trim(), "");
        let read: Vec<serde_json::Value> = parsed
            .tool_calls
            .iter()
            .map(|call| serde_json::from_str(&call.arguments).unwrap())
            .collect();
        assert_eq!(read, arguments, "{reply}");
    }
}
