//! Templates of the three families in words of our own: which form they teach, and that what was called once is
//! rendered back so that it reads as the same call.

use serde_json::json;

use super::super::reply::{ReplyStyle, parse_reply};
use super::super::template::{ChatInput, ChatTemplate};
use super::super::tool_types::ToolTypes;
use super::*;

/// Arguments are one object, printed as JSON.
const HERMES: &str = r#"{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Write <tool_call>{"name": <name>, "arguments": <object>}</tool_call> to use one.
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}"#;

/// The arguments are gone through one by one: text as it is, everything else as JSON.
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

/// One call a message, and nothing beside it.
const LLAMA: &str = r#"{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>

{% if message.tool_calls %}<|python_tag|>{% for call in message.tool_calls %}{{ '; ' if not loop.first }}{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}{% endfor %}{% else %}{{ message.content }}{% endif %}<|eot_id|>
{% endfor %}"#;

fn tokenizer() -> Tokenizer {
    super::super::tokenizer::tests::byte_level()
}

#[test]
fn a_template_says_which_form_it_teaches() {
    for (template, calls) in [
        (HERMES, CallForm::Hermes),
        (QWEN_XML, CallForm::QwenXml),
        (LLAMA, CallForm::Llama),
        ("{{ messages[0].content }}", CallForm::Hermes),
    ] {
        assert_eq!(CallForm::of(template, &tokenizer()), calls, "{template}");
    }
    for (template, reasoning) in [
        (
            "{{ content.split('</think>')[-1] }}",
            ReasoningForm::Unopened,
        ),
        (
            "{{ content.split('</think>')[-1] }}<think>\n",
            ReasoningForm::Think,
        ),
        ("{{ messages }}", ReasoningForm::Think),
    ] {
        assert_eq!(ReasoningForm::of(template), reasoning, "{template}");
    }
}

#[test]
fn where_a_reply_begins_is_up_to_form_and_prompt() {
    for (form, prompt, begins_in) in [
        (ReasoningForm::Think, "assistant\n<think>\n", true),
        (ReasoningForm::Think, "assistant\n", false),
        (ReasoningForm::Unopened, "assistant\n", true),
        (
            ReasoningForm::Unopened,
            "assistant\n<think>\n\n</think>\n\n",
            false,
        ),
        (ReasoningForm::None, "assistant\n<think>\n", false),
    ] {
        assert_eq!(form.begins_in(prompt), begins_in, "{form:?} {prompt}");
    }
    let form = ReplyForm {
        reasoning: ReasoningForm::Unopened,
        ..ReplyForm::default()
    };
    let parsed = parse_reply(
        "so\n</think>\n\nyes",
        form.style("assistant\n", false),
        &Default::default(),
    );
    assert_eq!(
        (parsed.reasoning.as_deref(), &*parsed.content),
        (Some("so"), "yes")
    );
}

#[test]
fn calls_of_the_history_are_rendered_so_that_they_read_the_same() {
    let tools = [
        json!({"type": "function", "function": {"name": "put", "parameters": {"type": "object", "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "more": {"type": "object"}, "yes": {"type": "boolean"}}}}}),
    ];
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
    let messages = [
        json!({"role": "user", "content": "go"}),
        json!({"role": "assistant", "content": null, "tool_calls": calls}),
        json!({"role": "tool", "content": "done", "tool_call_id": "c"}),
    ];
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
        let style = ReplyStyle {
            calls: CallForm::of(template, &tokenizer()),
            ..ReplyStyle::default()
        };
        let types = std::sync::Arc::new(ToolTypes::of(&tools));
        let parsed = parse_reply(reply, style, &types);
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
