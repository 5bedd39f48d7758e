//! Sample templates that use every construct of published templates.

use super::*;
use crate::{AssistantMessage, ToolCall};
use serde_json::json;

/// Keeps reasoning only after the last user message, found by walking the messages backwards; groups tool results;
/// lists tools as JSON.
const AGENT: &str = r#"{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "Tools:" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(looking=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.looking and message.role == "user" and message.content is string and not(message.content.startswith('<result>') and message.content.endswith('</result>')) %}
        {%- set ns.looking = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {%- if (loop.first and content) or not loop.first %}{{- '\n' }}{%- endif %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '<tool_call>\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<result>\n' + content + '\n</result>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"#;

fn compile(source: &str) -> ChatTemplate {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    ChatTemplate::new(source, tokens.map(|(k, v)| (k.to_owned(), v.to_owned()))).unwrap()
}

fn render(source: &str, messages: Json) -> Result<String, TemplateError> {
    let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
    let input = ChatInput {
        messages: &messages,
        tools: &[],
        add_generation_prompt: true,
        extra: None,
    };
    compile(source).render_at(&input, 1_720_000_000)
}

fn weather_tool() -> Tool {
    serde_json::from_value(
        json!({"type": "function", "function": {"name": "weather", "description": "a <b> & 'c'"}}),
    )
    .unwrap()
}

#[test]
fn conversation_with_tools_and_reasoning_renders_exactly() {
    let messages: Vec<Message> = serde_json::from_value(json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Wetter"}, {"type": "text", "text": "in Köln?"}]},
        {"role": "assistant", "content": "<think>\nlook it up\n</think>\n\nOne moment.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Köln\",\"n\":1.0}"}},
            {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": "not json"}}]},
        {"role": "tool", "content": "7 °C"},
        {"role": "tool", "content": "noon"},
    ]))
    .unwrap();
    let tools = [weather_tool()];
    let extra = json!({"enable_thinking": false, "messages": "cannot replace"});
    let input = ChatInput {
        messages: &messages,
        tools: &tools,
        add_generation_prompt: true,
        extra: extra.as_object(),
    };
    let expected = "<|im_start|>system\nBe brief.\n\nTools:\n\
        {\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"a <b> & 'c'\"}}<|im_end|>\n\
        <|im_start|>user\nWetter\nin Köln?<|im_end|>\n\
        <|im_start|>assistant\n<think>\nlook it up\n</think>\n\nOne moment.\n\
        <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Köln\",\"n\":1.0}}\n</tool_call>\n\
        <tool_call>\n{\"name\": \"clock\", \"arguments\": not json}\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<result>\n7 °C\n</result>\n<result>\nnoon\n</result><|im_end|>\n\
        <|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(compile(AGENT).render_at(&input, 0).unwrap(), expected);
}

#[test]
fn arguments_are_parsed_for_templates_that_would_quote_them() {
    let source = "{% for call in messages[0].tool_calls %}{{ call.function.arguments | tojson }} {% endfor %}";
    let call = |arguments: &str| json!({"function": {"name": "f", "arguments": arguments}});
    let messages = json!([{"role": "assistant", "tool_calls": [call("{\"a\":1.0}"), call("[1]")]}]);
    assert_eq!(render(source, messages).unwrap(), "{\"a\": 1.0} \"[1]\" ");
}

#[test]
fn reasoning_of_earlier_turns_is_dropped() {
    let text = render(
        AGENT,
        json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "<think>\nx\n</think>\n\nb", "tool_calls": null},
            {"role": "user", "content": "c"},
        ]),
    )
    .unwrap();
    assert_eq!(
        text,
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn blocks_are_trimmed_as_in_transformers() {
    let source = "{% for m in messages %}\n    {% if true %}\n  {{ m.content }}\n    {% endif %}\n{% endfor %}\nend\n";
    assert_eq!(
        render(
            source,
            json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
        )
        .unwrap(),
        "  a\n  b\nend"
    );
}

#[test]
fn values_print_as_in_python() {
    let source = "{{ true }} {{ none }} {{ missing }}|{{ 1.0 }} {{ ['a', 1] }} {{ {'k': none} }} {{ true | string }}";
    assert_eq!(
        render(source, json!([])).unwrap(),
        "True None |1.0 ['a', 1] {'k': None} True"
    );
}

#[test]
fn constructs_of_published_templates_work() {
    for (source, expected) in [
        (
            "{{ bos_token }}{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}{{ eos_token }}",
            "<s>b</s>",
        ),
        (
            "{{ messages | tojson(indent=2) }}",
            "[\n  {\n    \"role\": \"user\",\n    \"content\": \"a\"\n  },\n  {\n    \"role\": \"user\",\n    \"content\": \"b\"\n  },\n  {\n    \"role\": \"user\",\n    \"content\": \"c\"\n  }\n]",
        ),
        (
            "{{ {'ä': 1} | tojson }}{{ 'ä🦀' | tojson(ensure_ascii=true) }}{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}",
            "{\"ä\": 1}\"\\u00e4\\ud83e\\udd80\"{\"a\":2,\"b\":1}",
        ),
        ("{{ strftime_now('%d %b %Y') }}", "03 Jul 2024"),
        (
            "{% macro show(m) -%}<{{ m.content }}>{%- endmacro %}{% for m in messages[1:] %}{{ show(m) }}{% endfor %}",
            "<b><c>",
        ),
        (
            "{% for k, v in {'x': 1, 'y': 2}.items() %}{{ k }}{{ v }}{% endfor %}{% for k, v in {'x': 1}|items %}{{ k }}{% endfor %}",
            "x1y2x",
        ),
        (
            "{{ messages | map(attribute='content') | join('-') }} {{ messages | selectattr('content', 'equalto', 'b') | list | length }}",
            "a-b-c 1",
        ),
        (
            "{{ 'x' is sequence }} {{ {} is mapping }} {{ 1 is number }} {{ messages is iterable }}",
            "True True True True",
        ),
        (
            "{{ 'a b'.upper().replace(' ', '_') }} {{ 'tool_x'.removeprefix('tool_') }} {{ 'a.b.c'.rsplit('.', 1)[-1] }} {{ 'k=v'.partition('=')[2] }}",
            "A_B x c v",
        ),
        (
            "{{ messages[-1]['content'] }}{{ messages[0].get('name', 'anon') }}{{ 'content' in messages[0] }}",
            "canonTrue",
        ),
        ("{%- generation -%} x {%- endgeneration %}y", "xy"),
        (
            "{% set ns = namespace(found=[]) %}{% for m in messages %}{% set ns.found = ns.found + [m.content] %}{% endfor %}{{ ns.found | length }}{{ ns.found[::-1][0] }}",
            "3c",
        ),
        (
            "{{ '%s and %d' | format('a', 2) }} {{ 'x' ~ 1 }} {{ 7 // 2 }} {{ 'a' if false else 'b' }}",
            "a and 2 x1 3 b",
        ),
        (
            "{% for m in messages %}{{ loop.previtem.content if loop.previtem is defined else '^' }}{% endfor %}",
            "^ab",
        ),
    ] {
        let rendered = render(
            source,
            json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "user", "content": "c"}]),
        );
        assert_eq!(rendered.unwrap(), expected, "{source}");
    }
}

#[test]
fn raise_exception_is_reported_as_an_invalid_request() {
    let source = "line one\n{% for m in messages %}\n{{ raise_exception('roles must alternate: ' + m.role) }}\n{% endfor %}";
    let error = render(source, json!([{"role": "user"}])).unwrap_err();
    assert!(
        matches!(&error, TemplateError::Raised(m) if m == "roles must alternate: user"),
        "{error}"
    );
    let in_macro = "{% macro check() %}{{ raise_exception('no') }}{% endmacro %}{{ check() }}";
    assert!(matches!(render(in_macro, json!([])), Err(TemplateError::Raised(m)) if m == "no"));
}

#[test]
fn errors_name_the_line() {
    let broken = ChatTemplate::new("one\ntwo\n{% if %}", []).unwrap_err();
    assert!(
        matches!(broken, TemplateError::Syntax { line: 3, .. }),
        "{broken}"
    );
    let error = render(
        "one\n{{ messages[0].content.explode() }}",
        json!([{"role": "user", "content": "a"}]),
    )
    .unwrap_err();
    assert!(
        matches!(error, TemplateError::Render { line: 2, .. }),
        "{error}"
    );
    let undefined = render("{{ messages.nothing.deeper }}", json!([])).unwrap_err();
    assert!(
        matches!(undefined, TemplateError::Render { line: 1, .. }),
        "{undefined}"
    );
}

#[test]
fn endless_template_is_stopped() {
    let forever = "{% for a in range(10000) %}{% for b in range(10000) %}{% set c = a * b %}{% endfor %}{% endfor %}";
    assert!(matches!(
        render(forever, json!([])),
        Err(TemplateError::Fuel { .. })
    ));
    let flood = "{% set line = 'x' * 1000000 %}{% for a in range(1000) %}{{ line }}{% endfor %}";
    assert!(matches!(
        render(flood, json!([])),
        Err(TemplateError::Output { .. })
    ));
    let recursive = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert!(render(recursive, json!([])).is_err());
}

#[test]
fn tool_use_template_is_used_when_there_are_tools() {
    let messages = [Message::Assistant(AssistantMessage {
        tool_calls: vec![ToolCall::new("", "f", "{\"a\":1}")],
        ..AssistantMessage::default()
    })];
    let template = compile("plain {{ messages[0].tool_calls[0].function.arguments | tojson }}")
        .with_tool_template("tools {{ tools | length }} {% if messages[0].tool_calls[0].function.arguments is string %}text{% endif %}")
        .unwrap();
    let render = |tools: &[Tool]| {
        let input = ChatInput {
            messages: &messages,
            tools,
            add_generation_prompt: false,
            extra: None,
        };
        template.render_at(&input, 0).unwrap()
    };
    assert_eq!(render(&[]), "plain {\"a\": 1}");
    assert_eq!(render(&[weather_tool()]), "tools 1 text");
    assert!(compile("").with_tool_template("{% if %}").is_err());
}

#[test]
fn reply_can_continue_the_last_message() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}\
                  {% if add_generation_prompt %}<assistant>{% endif %}";
    let template = ChatTemplate::new(source, []).unwrap();
    let messages = [Message::user("hi"), Message::assistant("Well, ")];
    let input = ChatInput {
        messages: &messages,
        tools: &[],
        add_generation_prompt: true,
        extra: None,
    };
    // Trailing whitespace is part of the continued message, although the template trims it.
    let text = template.render_continuation_at(&input, 0).unwrap();
    assert_eq!(text, "<user>hi</><assistant>Well, ");
    let forgetful = ChatTemplate::new("{{ messages[0].content }}", []).unwrap();
    assert!(matches!(
        forgetful.render_continuation_at(&input, 0),
        Err(TemplateError::CannotContinue)
    ));
}
