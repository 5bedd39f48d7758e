//! Replies as models write them, whole and in every possible division. The replies stand in `reply_cases.json`.

use super::*;
use crate::text::json_object::JsonObject;
use proptest::prelude::*;
use serde_json::Value;

const CALL_F: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
const FORMS: [CallForm; 3] = [CallForm::Hermes, CallForm::QwenXml, CallForm::Llama];

fn file() -> Value {
    serde_json::from_str(include_str!("reply_cases.json")).unwrap()
}

fn tools() -> Arc<ToolTypes> {
    Arc::new(ToolTypes::of(file()["tools"].as_array().unwrap()))
}

fn style(calls: CallForm) -> ReplyStyle {
    ReplyStyle {
        calls,
        ..ReplyStyle::default()
    }
}

fn divided(text: &str, size: usize, style: ReplyStyle) -> (ReplyParser, Vec<ReplyPiece>) {
    let mut parser = ReplyParser::new(style, tools());
    let mut pieces = Vec::new();
    let characters: Vec<char> = text.chars().collect();
    for piece in characters.chunks(size) {
        pieces.extend(parser.push(&piece.iter().collect::<String>()));
    }
    pieces.extend(parser.finish());
    (parser, pieces)
}

fn joined(pieces: &[ReplyPiece]) -> ParsedReply {
    let mut parsed = ParsedReply::default();
    pieces.iter().for_each(|piece| parsed.add(piece));
    parsed
}

#[test]
fn every_case_reads_as_it_should_in_every_division() {
    let cases = file();
    for case in cases["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let calls = match case["form"].as_str().unwrap() {
            "hermes" => CallForm::Hermes,
            "qwen-xml" => CallForm::QwenXml,
            "llama" => CallForm::Llama,
            other => panic!("{other}"),
        };
        let style = ReplyStyle {
            in_reasoning: case["in_reasoning"] == true,
            tools: case["tools"] != false,
            ..style(calls)
        };
        let expected: Vec<ToolCall> = case["calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| ToolCall {
                name: call[0].as_str().unwrap().to_owned(),
                arguments: call[1].as_str().unwrap().to_owned(),
            })
            .collect();
        for size in 1..=text.chars().count().max(1) {
            let parsed = joined(&divided(text, size, style).1);
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
fn what_a_form_says_it_consists_of_is_read_as_that() {
    for form in FORMS {
        let parts = form.parts();
        let call = |name: &str, text: &str| {
            let arguments = match parts.arguments {
                super::super::form::ArgumentForm::Json => {
                    format!("{{\"text\": {}}}", Value::from(text))
                }
                super::super::form::ArgumentForm::Each {
                    open,
                    middle,
                    close,
                } => {
                    format!("{open}text{middle}{text}{close}")
                }
            };
            format!(
                "{}{name}{}{arguments}{}",
                parts.open, parts.middle, parts.close
            )
        };
        let text = [call("f", "a <b>\n \"c\""), call("f", "d")].join(parts.between);
        let parsed = parse_reply(&text, style(form), &tools());
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
fn a_prompt_that_opened_the_block_is_known() {
    assert!(opens_reasoning("<|im_start|>assistant\n<think>\n"));
    assert!(!opens_reasoning(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ));
}

#[test]
fn switched_off_parsing_leaves_the_text_alone() {
    let text = format!("<think>\nx\n</think>\n\n{CALL_F}");
    let none = ReplyStyle {
        reasoning: false,
        tools: false,
        ..ReplyStyle::default()
    };
    assert_eq!(parse_reply(&text, none, &tools()).content, text);
    let only_reasoning = ReplyStyle {
        tools: false,
        ..ReplyStyle::default()
    };
    assert_eq!(parse_reply(&text, only_reasoning, &tools()).content, CALL_F);
}

#[test]
fn content_streams_and_only_the_undecided_end_is_held() {
    let mut parser = ReplyParser::new(ReplyStyle::default(), tools());
    let content = |text: &str| vec![ReplyPiece::Content(text.to_owned())];
    assert_eq!(parser.push("Hel"), content("Hel"));
    assert_eq!(parser.push("lo <to"), content("lo"));
    assert_eq!(parser.push("p>"), content(" <top>"));
    assert_eq!(parser.push("<tool_call>{\"name\":"), []);
    assert_eq!(parser.push("\"f\"}</tool_"), []);
    let expected = [
        ReplyPiece::ToolCallStart {
            index: 0,
            name: "f".to_owned(),
        },
        ReplyPiece::ToolCallArguments {
            index: 0,
            json: "{}".to_owned(),
        },
    ];
    assert_eq!(parser.push("call>"), expected);
    assert!(parser.has_calls());
    assert_eq!(parser.push("\n"), []);
    assert_eq!(parser.finish(), []);
}

/// What each push of a text adds to the arguments of its calls.
fn arguments(parser: &mut ReplyParser, pushes: &[&str]) -> Vec<String> {
    let json = |pieces: Vec<ReplyPiece>| {
        let json = pieces.into_iter().filter_map(|piece| match piece {
            ReplyPiece::ToolCallArguments { json, .. } => Some(json),
            _ => None,
        });
        json.collect::<String>()
    };
    pushes.iter().map(|text| json(parser.push(text))).collect()
}

#[test]
fn arguments_stream_once_the_call_is_certain() {
    let mut parser = ReplyParser::new(style(CallForm::Hermes), tools());
    let start = ReplyPiece::ToolCallStart {
        index: 0,
        name: "f".to_owned(),
    };
    assert_eq!(
        parser.push("<tool_call>\n{\"name\": \"f\", \"arguments\": "),
        []
    );
    assert_eq!(parser.push("{")[0], start);
    assert!(!parser.has_calls(), "the call goes on");
    let pushes = [
        "\"text\": \"one",
        " two",
        "\\",
        "n\"",
        "}",
        "}\n",
        "</tool_call>",
    ];
    let pieces = arguments(&mut parser, &pushes);
    assert_eq!(pieces, [pushes[0], " two", "\\", "n\"", "}", "", ""]);
    assert!(parser.has_calls());

    // Values without quotes: text goes out as it is written, anything else once it is whole.
    let mut parser = ReplyParser::new(style(CallForm::QwenXml), tools());
    let pushes = [
        "<tool_call>\n<function=f>\n<parameter=text>",
        "\nline \"1\"\n",
        "line 2\n</para",
        "meter>\n<parameter=a>\n1",
        "2\n</parameter>\n",
        "</function>\n</tool_call>",
    ];
    let pieces = arguments(&mut parser, &pushes);
    let expected = [
        "",
        "{\"text\": \"line \\\"1\\\"",
        "\\nline 2",
        "\"",
        "",
        ", \"a\": 12}",
    ];
    assert_eq!(pieces, expected);

    // An object without a tag may still turn out to be no call, unless the reply must be one.
    let pushes = ["{\"name\": \"f\", \"parameters\": {\"a\": ", "1}", "}"];
    let mut parser = ReplyParser::new(style(CallForm::Llama), tools());
    assert_eq!(arguments(&mut parser, &pushes), ["", "", ""]);
    let must_call = ReplyStyle {
        must_call: true,
        ..style(CallForm::Llama)
    };
    let mut parser = ReplyParser::new(must_call, tools());
    assert_eq!(arguments(&mut parser, &pushes), ["{\"a\": ", "1}", ""]);
    // A tool that was not offered is held back until the call is whole.
    let mut parser = ReplyParser::new(style(CallForm::Hermes), tools());
    let pushes = [
        "<tool_call>{\"name\": \"g\", \"arguments\": {",
        "}}",
        "</tool_call>",
    ];
    assert_eq!(arguments(&mut parser, &pushes), ["", "", "{}"]);
}

#[test]
fn text_behind_what_is_no_call_streams_on() {
    let mut parser = ReplyParser::new(ReplyStyle::default(), tools());
    assert!(
        matches!(&*parser.push("Say <tool_call>x"), [_, ReplyPiece::MalformedCall { text, .. }, _] if text == " <tool_call>")
    );
    assert_eq!(
        parser.push(" and on"),
        [ReplyPiece::Content(" and on".to_owned())]
    );
    // An answer in JSON is let go as soon as its first key shows that it is no call.
    let mut parser = ReplyParser::new(style(CallForm::Llama), tools());
    assert_eq!(parser.push("{\"ag"), []);
    assert_eq!(parser.push("e\": ").len(), 2);
    assert_eq!(parser.push("3"), [ReplyPiece::Content(" 3".to_owned())]);
}

#[test]
fn reasoning_streams() {
    let mut parser = ReplyParser::new(ReplyStyle::default(), tools());
    let thought = |text: &str| vec![ReplyPiece::Reasoning(text.to_owned())];
    assert_eq!(parser.push("<thi"), []);
    assert_eq!(parser.push("nk>\n"), []);
    assert_eq!(parser.push("ab\n"), thought("ab"));
    assert_eq!(parser.push("cd </"), thought("\ncd "));
    assert_eq!(
        parser.push("think>\n\nhi"),
        [thought("").remove(0), ReplyPiece::Content("hi".into())][1..]
    );
}

/// A reply in which everything that any form knows may stand anywhere.
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

/// What is left when format is taken away: white space and the tags that are no text.
fn bare(text: &str) -> String {
    let text = [THINK, THINK_END, PYTHON]
        .iter()
        .fold(text.to_owned(), |text, tag| text.replace(tag, ""));
    text.replace(|c: char| c.is_whitespace() || c == ';', "")
}

#[test]
fn a_tag_that_is_written_again_is_taken_out_however_it_is_divided() {
    let style = ReplyStyle {
        in_reasoning: true,
        ..style(FORMS[0])
    };
    let text = "<think>\n<think>a</think>b";
    for size in 1..=text.len() {
        let (_, pieces) = divided(text, size, style);
        let parsed = joined(&pieces);
        assert_eq!(parsed.reasoning.as_deref(), Some("a"), "{size}");
        assert_eq!(parsed.content, "b", "{size}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_division_of_a_reply_reads_like_the_whole(
        text in reply(), size in 1usize..9, in_reasoning in any::<bool>(), form in 0usize..3, offered in any::<bool>(),
    ) {
        let style = ReplyStyle { in_reasoning, tools: offered, ..style(FORMS[form]) };
        let (_, pieces) = divided(&text, size, style);
        prop_assert_eq!(joined(&pieces), parse_reply(&text, style, &tools()));
    }

    #[test]
    fn no_text_is_lost_and_none_is_said_twice(
        text in reply(), size in 1usize..9, in_reasoning in any::<bool>(), form in 0usize..3,
    ) {
        let style = ReplyStyle { in_reasoning, ..style(FORMS[form]) };
        let (parser, pieces) = divided(&text, size, style);
        let mut written = parser.written.iter();
        let mut again = String::new();
        // Arguments of the call that has begun last.
        let mut arguments: Option<String> = None;
        for piece in &pieces {
            let breaks = matches!(piece, ReplyPiece::BrokenCall { .. });
            if !matches!(piece, ReplyPiece::ToolCallArguments { .. })
                && let Some(json) = arguments.take()
            {
                if breaks {
                    let begun = JsonObject::at(0).begins(&json);
                    prop_assert!(begun, "{}", json);
                } else {
                    let value: Value = serde_json::from_str(&json).unwrap();
                    prop_assert!(value.is_object());
                }
            }
            match piece {
                ReplyPiece::Content(text) | ReplyPiece::Reasoning(text) | ReplyPiece::MalformedCall { text, .. } => {
                    again.push_str(text);
                }
                ReplyPiece::ToolCallStart { .. } => {
                    again.push_str(written.next().unwrap());
                    arguments = Some(String::new());
                }
                ReplyPiece::BrokenCall { .. } => {}
                ReplyPiece::ToolCallArguments { json, .. } => {
                    arguments.as_mut().unwrap().push_str(json);
                }
            }
        }
        if let Some(json) = arguments {
            prop_assert!(serde_json::from_str::<Value>(&json).unwrap().is_object());
        }
        prop_assert_eq!(written.next(), None);
        // A tag may have been cut in two by one that was taken out, so tags go until none is left.
        let (mut once, mut twice) = (bare(&text), bare(&again));
        while once != bare(&once) || twice != bare(&twice) {
            (once, twice) = (bare(&once), bare(&twice));
        }
        prop_assert_eq!(once, twice);
    }
}
