//! Replies of models, parsed as a whole and in every possible split. The replies are in `reply_cases.json`.

use super::*;
use crate::json_scanner::JsonScanner;
use crate::opens_reasoning;
use proptest::prelude::*;
use serde_json::Value;

const CALL_F: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
const FORMATS: [ToolCallFormat; 3] = [
    ToolCallFormat::Hermes,
    ToolCallFormat::QwenXml,
    ToolCallFormat::Llama,
];

fn file() -> Value {
    serde_json::from_str(include_str!("reply_cases.json")).unwrap()
}

fn tools() -> Arc<ToolSchemas> {
    let tools: Vec<crate::Tool> = serde_json::from_value(file()["tools"].clone()).unwrap();
    Arc::new(ToolSchemas::from_definitions(&tools))
}

fn options(calls: ToolCallFormat) -> ReplyParserOptions {
    ReplyParserOptions {
        calls,
        ..ReplyParserOptions::default()
    }
}

fn parse_in_pieces(
    text: &str,
    size: usize,
    options: ReplyParserOptions,
) -> (ReplyParser, Vec<ReplyDelta>) {
    let mut parser = ReplyParser::new(options, tools());
    let mut pieces = Vec::new();
    let characters: Vec<char> = text.chars().collect();
    for piece in characters.chunks(size) {
        pieces.extend(parser.push(&piece.iter().collect::<String>()));
    }
    pieces.extend(parser.finish());
    (parser, pieces)
}

fn combine(pieces: &[ReplyDelta]) -> ParsedReply {
    let mut parsed = ParsedReply::default();
    pieces.iter().for_each(|piece| parsed.apply(piece));
    parsed
}

#[test]
fn every_case_parses_as_expected_in_every_split() {
    let cases = file();
    for case in cases["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let calls = match case["form"].as_str().unwrap() {
            "hermes" => ToolCallFormat::Hermes,
            "qwen-xml" => ToolCallFormat::QwenXml,
            "llama" => ToolCallFormat::Llama,
            other => panic!("{other}"),
        };
        let options = ReplyParserOptions {
            in_reasoning: case["in_reasoning"] == true,
            tools: case["tools"] != false,
            ..options(calls)
        };
        let expected: Vec<FunctionCall> = case["calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| FunctionCall {
                name: call[0].as_str().unwrap().to_owned(),
                arguments: call[1].as_str().unwrap().to_owned(),
            })
            .collect();
        for size in 1..=text.chars().count().max(1) {
            let parsed = combine(&parse_in_pieces(text, size, options).1);
            assert_eq!(
                parsed.content,
                case["content"].as_str().unwrap_or_default(),
                "{size}: {text}"
            );
            assert_eq!(
                parsed.reasoning.as_deref(),
                case["reasoning"].as_str(),
                "{size}: {text}"
            );
            assert_eq!(parsed.tool_calls, expected, "{size}: {text}");
            let malformed = case["malformed"].as_u64().unwrap_or_default();
            assert_eq!(
                parsed.malformed.len() as u64,
                malformed,
                "{size}: {text}: {:?}",
                parsed.malformed
            );
        }
    }
}

#[test]
fn parser_reads_the_syntax_of_every_tool_call_format() {
    for format in FORMATS {
        let syntax = format.syntax();
        let call = |name: &str, text: &str| {
            let arguments = match syntax.arguments {
                crate::reply_format::ArgumentFormat::Json => {
                    format!("{{\"text\": {}}}", Value::from(text))
                }
                crate::reply_format::ArgumentFormat::PerArgument {
                    open,
                    middle,
                    close,
                } => {
                    format!("{open}text{middle}{text}{close}")
                }
            };
            format!(
                "{}{name}{}{arguments}{}",
                syntax.open, syntax.middle, syntax.close
            )
        };
        let text = [call("f", "a <b>\n \"c\""), call("f", "d")].join(syntax.between);
        let parsed = parse_reply(&text, options(format), &tools());
        let arguments: Vec<&str> = parsed
            .tool_calls
            .iter()
            .map(|call| &*call.arguments)
            .collect();
        assert_eq!(
            arguments,
            ["{\"text\": \"a <b>\\n \\\"c\\\"\"}", "{\"text\": \"d\"}"],
            "{text}"
        );
        assert_eq!((parsed.content.as_str(), parsed.malformed.len()), ("", 0));
    }
}

#[test]
fn prompt_that_opens_a_reasoning_block_is_detected() {
    assert!(opens_reasoning("<|im_start|>assistant\n<think>\n"));
    assert!(!opens_reasoning(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ));
}

#[test]
fn disabled_parsing_leaves_the_text_unchanged() {
    let text = format!("<think>\nx\n</think>\n\n{CALL_F}");
    let none = ReplyParserOptions {
        reasoning: false,
        tools: false,
        ..ReplyParserOptions::default()
    };
    assert_eq!(parse_reply(&text, none, &tools()).content, text);
    let only_reasoning = ReplyParserOptions {
        tools: false,
        ..ReplyParserOptions::default()
    };
    assert_eq!(parse_reply(&text, only_reasoning, &tools()).content, CALL_F);
}

#[test]
fn content_streams_and_only_an_undecided_end_is_held() {
    let mut parser = ReplyParser::new(ReplyParserOptions::default(), tools());
    let content = |text: &str| vec![ReplyDelta::Content(text.to_owned())];
    assert_eq!(parser.push("Hel"), content("Hel"));
    assert_eq!(parser.push("lo <to"), content("lo"));
    assert_eq!(parser.push("p>"), content(" <top>"));
    assert_eq!(parser.push("<tool_call>{\"name\":"), []);
    assert_eq!(parser.push("\"f\"}</tool_"), []);
    let expected = [
        ReplyDelta::ToolCallStart {
            index: 0,
            name: "f".to_owned(),
        },
        ReplyDelta::ToolCallArguments {
            index: 0,
            json: "{}".to_owned(),
        },
    ];
    assert_eq!(parser.push("call>"), expected);
    assert!(parser.has_calls());
    assert_eq!(parser.push("\n"), []);
    assert_eq!(parser.finish(), []);
}

/// Argument deltas of each push.
fn argument_deltas(parser: &mut ReplyParser, pushes: &[&str]) -> Vec<String> {
    let json = |pieces: Vec<ReplyDelta>| {
        let json = pieces.into_iter().filter_map(|piece| match piece {
            ReplyDelta::ToolCallArguments { json, .. } => Some(json),
            _ => None,
        });
        json.collect::<String>()
    };
    pushes.iter().map(|text| json(parser.push(text))).collect()
}

#[test]
fn arguments_stream_once_the_call_is_definite() {
    let mut parser = ReplyParser::new(options(ToolCallFormat::Hermes), tools());
    let start = ReplyDelta::ToolCallStart {
        index: 0,
        name: "f".to_owned(),
    };
    assert_eq!(
        parser.push("<tool_call>\n{\"name\": \"f\", \"arguments\": "),
        []
    );
    assert_eq!(parser.push("{")[0], start);
    assert!(!parser.has_calls(), "the call continues");
    let pushes = [
        "\"text\": \"one",
        " two",
        "\\",
        "n\"",
        "}",
        "}\n",
        "</tool_call>",
    ];
    let pieces = argument_deltas(&mut parser, &pushes);
    assert_eq!(pieces, [pushes[0], " two", "\\", "n\"", "}", "", ""]);
    assert!(parser.has_calls());

    // Unquoted values: strings stream, other values are emitted once complete.
    let mut parser = ReplyParser::new(options(ToolCallFormat::QwenXml), tools());
    let pushes = [
        "<tool_call>\n<function=f>\n<parameter=text>",
        "\nline \"1\"\n",
        "line 2\n</para",
        "meter>\n<parameter=a>\n1",
        "2\n</parameter>\n",
        "</function>\n</tool_call>",
    ];
    let pieces = argument_deltas(&mut parser, &pushes);
    let expected = [
        "",
        "{\"text\": \"line \\\"1\\\"",
        "\\nline 2",
        "\"",
        "",
        ", \"a\": 12}",
    ];
    assert_eq!(pieces, expected);

    // An object without a tag may still turn out not to be a call, unless the reply must be one.
    let pushes = ["{\"name\": \"f\", \"parameters\": {\"a\": ", "1}", "}"];
    let mut parser = ReplyParser::new(options(ToolCallFormat::Llama), tools());
    assert_eq!(argument_deltas(&mut parser, &pushes), ["", "", ""]);
    let must_call = ReplyParserOptions {
        must_call: true,
        ..options(ToolCallFormat::Llama)
    };
    let mut parser = ReplyParser::new(must_call, tools());
    assert_eq!(
        argument_deltas(&mut parser, &pushes),
        ["{\"a\": ", "1}", ""]
    );
    // A call of a tool that is not offered is held back until it is complete.
    let mut parser = ReplyParser::new(options(ToolCallFormat::Hermes), tools());
    let pushes = [
        "<tool_call>{\"name\": \"g\", \"arguments\": {",
        "}}",
        "</tool_call>",
    ];
    assert_eq!(argument_deltas(&mut parser, &pushes), ["", "", "{}"]);
}

#[test]
fn text_after_a_malformed_call_streams() {
    let mut parser = ReplyParser::new(ReplyParserOptions::default(), tools());
    assert!(
        matches!(&*parser.push("Say <tool_call>x"), [_, ReplyDelta::MalformedCall { text, .. }, _] if text == " <tool_call>")
    );
    assert_eq!(
        parser.push(" and on"),
        [ReplyDelta::Content(" and on".to_owned())]
    );
    // A reply in JSON is emitted as soon as its first key shows that it is not a call.
    let mut parser = ReplyParser::new(options(ToolCallFormat::Llama), tools());
    assert_eq!(parser.push("{\"ag"), []);
    assert_eq!(parser.push("e\": ").len(), 2);
    assert_eq!(parser.push("3"), [ReplyDelta::Content(" 3".to_owned())]);
}

#[test]
fn reasoning_streams() {
    let mut parser = ReplyParser::new(ReplyParserOptions::default(), tools());
    let reasoning = |text: &str| vec![ReplyDelta::Reasoning(text.to_owned())];
    assert_eq!(parser.push("<thi"), []);
    assert_eq!(parser.push("nk>\n"), []);
    assert_eq!(parser.push("ab\n"), reasoning("ab"));
    assert_eq!(parser.push("cd </"), reasoning("\ncd "));
    assert_eq!(
        parser.push("think>\n\nhi"),
        [reasoning("").remove(0), ReplyDelta::Content("hi".into())][1..]
    );
}

/// Random replies built from the tags and fragments of all formats.
fn reply() -> impl Strategy<Value = String> {
    let parts = vec![
        "<think>",
        "</think>",
        "\n",
        "\n\n",
        " ",
        "text",
        "é",
        "<",
        "{",
        "}",
        ";",
        "\"",
        "```\n",
        "</tool_call>",
        "<tool_call>",
        "<function=f>",
        "<function=x>",
        "<function=",
        "</function>",
        "<parameter=a>",
        "<parameter=text>",
        "</parameter>",
        "<|python_tag|>",
        "12",
        "{\"a\": 1}",
        "\"name\": \"f\"",
        "{\"name\": \"f\", \"arguments\": {\"text\": \"</tool_call>\"}}",
        "{\"name\": \"f\", \"parameters\": {}}",
        "{\"name\": ",
        "{\"answer\": 1}",
        CALL_F,
        "<tool_call>\n<function=f>\n<parameter=text>\na < b\n</parameter>\n</function>\n</tool_call>",
        "<function=f>{\"a\": 1}</function>",
        "<tool_call>{'name': 'f'}</tool_call>",
    ];
    prop_oneof![
        4 => prop::collection::vec(prop::sample::select(parts), 0..14).prop_map(|parts| parts.concat()),
        1 => ".{0,40}",
        1 => prop::collection::vec(any::<u8>(), 0..60)
            .prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
    ]
}

/// The text without formatting: without whitespace and tags that are not text.
fn strip_format(text: &str) -> String {
    let text = [THINK, THINK_END, PYTHON_TAG]
        .iter()
        .fold(text.to_owned(), |text, tag| text.replace(tag, ""));
    text.replace(|c: char| c.is_whitespace() || c == ';', "")
}

#[test]
fn repeated_reasoning_tag_is_removed_in_every_split() {
    let options = ReplyParserOptions {
        in_reasoning: true,
        ..options(FORMATS[0])
    };
    let text = "<think>\n<think>a</think>b";
    for size in 1..=text.len() {
        let (_, pieces) = parse_in_pieces(text, size, options);
        let parsed = combine(&pieces);
        assert_eq!(parsed.reasoning.as_deref(), Some("a"), "{size}");
        assert_eq!(parsed.content, "b", "{size}");
    }
}

#[test]
fn an_object_whose_first_key_is_broken_is_text_in_every_split() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    for start in ["{\"<|python_tag|>", "{\"na\n", "{ \"na\\\"me"] {
        let text = format!("{start}{call}");
        let options = options(ToolCallFormat::Llama);
        let whole = parse_reply(&text, options, &tools());
        assert!(whole.tool_calls.is_empty() && whole.content.starts_with("{"));
        for size in 1..=text.len() {
            let (_, pieces) = parse_in_pieces(&text, size, options);
            assert_eq!(combine(&pieces), whole, "{start:?} {size}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_split_of_a_reply_parses_like_the_whole(
        text in reply(), size in 1usize..9, in_reasoning in any::<bool>(), form in 0usize..3, offered in any::<bool>(),
    ) {
        let options = ReplyParserOptions { in_reasoning, tools: offered, ..options(FORMATS[form]) };
        let (_, pieces) = parse_in_pieces(&text, size, options);
        prop_assert_eq!(combine(&pieces), parse_reply(&text, options, &tools()));
    }

    #[test]
    fn no_text_is_lost_or_duplicated(
        text in reply(), size in 1usize..9, in_reasoning in any::<bool>(), form in 0usize..3,
    ) {
        let options = ReplyParserOptions { in_reasoning, ..options(FORMATS[form]) };
        let (parser, pieces) = parse_in_pieces(&text, size, options);
        let mut call_texts = parser.call_texts.iter();
        let mut emitted = String::new();
        // Arguments of the last started call.
        let mut arguments: Option<String> = None;
        for piece in &pieces {
            let incomplete = matches!(piece, ReplyDelta::IncompleteCall { .. });
            if !matches!(piece, ReplyDelta::ToolCallArguments { .. })
                && let Some(json) = arguments.take()
            {
                if incomplete {
                    let accepts_prefix = JsonScanner::new(0).accepts_prefix(&json);
                    prop_assert!(accepts_prefix, "{}", json);
                } else {
                    let value: Value = serde_json::from_str(&json).unwrap();
                    prop_assert!(value.is_object());
                }
            }
            match piece {
                ReplyDelta::Content(text) | ReplyDelta::Reasoning(text) | ReplyDelta::MalformedCall { text, .. } => {
                    emitted.push_str(text);
                }
                ReplyDelta::ToolCallStart { .. } => {
                    emitted.push_str(call_texts.next().unwrap());
                    arguments = Some(String::new());
                }
                ReplyDelta::IncompleteCall { .. } => {}
                ReplyDelta::ToolCallArguments { json, .. } => {
                    arguments.as_mut().unwrap().push_str(json);
                }
            }
        }
        if let Some(json) = arguments {
            prop_assert!(serde_json::from_str::<Value>(&json).unwrap().is_object());
        }
        prop_assert_eq!(call_texts.next(), None);
        // Removing a tag may join the halves of another one, so tags are removed until none is left.
        let (mut input, mut output) = (strip_format(&text), strip_format(&emitted));
        while input != strip_format(&input) || output != strip_format(&output) {
            (input, output) = (strip_format(&input), strip_format(&output));
        }
        prop_assert_eq!(input, output);
    }
}
