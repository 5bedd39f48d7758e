//! Replies as models write them, whole and in every possible division.

use super::*;
use proptest::prelude::*;

const CALL_F: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

fn parse(text: &str) -> ParsedReply {
    parse_reply(text, ReplyStyle::default())
}

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall {
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    }
}

#[test]
fn reasoning_content_and_calls_are_told_apart() {
    let text = format!("<think>\nfirst\n\nthen\n</think>\n\nOn it.\n{CALL_F}\n{CALL_F}");
    let parsed = parse(&text);
    assert_eq!(parsed.reasoning.as_deref(), Some("first\n\nthen"));
    assert_eq!(parsed.content, "On it.");
    assert_eq!(
        parsed.tool_calls,
        [call("f", "{\"a\": 1}"), call("f", "{\"a\": 1}")]
    );
    assert!(parsed.malformed.is_empty());
}

#[test]
fn a_prompt_that_opened_the_block_is_known() {
    assert!(opens_reasoning("<|im_start|>assistant\n<think>\n"));
    assert!(!opens_reasoning(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ));
    let style = ReplyStyle {
        in_reasoning: true,
        ..ReplyStyle::default()
    };
    let parsed = parse_reply("hm\n</think>\n\nyes", style);
    assert_eq!(
        (parsed.reasoning.as_deref(), parsed.content.as_str()),
        (Some("hm"), "yes")
    );
}

#[test]
fn a_reply_that_ends_while_reasoning_is_all_reasoning() {
    let parsed = parse("<think>\nand then </thi");
    assert_eq!(
        (parsed.reasoning.as_deref(), parsed.content.as_str()),
        (Some("and then </thi"), "")
    );
}

#[test]
fn tags_in_the_middle_of_content_are_content() {
    for text in [
        "I write <think> here.",
        "a < b",
        "x <tool_cal",
        "  two  spaces  \n",
        "<thinking>",
        "",
    ] {
        let parsed = parse(text);
        assert_eq!(
            (parsed.content.as_str(), parsed.reasoning),
            (text, None),
            "{text:?}"
        );
    }
}

#[test]
fn a_malformed_call_stays_text_and_is_marked() {
    let text = "See: <tool_call>{'name': 'f'}</tool_call> done";
    let parsed = parse(text);
    assert_eq!(parsed.content, text);
    assert_eq!(parsed.malformed.len(), 1);
    assert!(parsed.tool_calls.is_empty());
}

#[test]
fn a_call_cut_off_by_the_length_limit_stays_text() {
    let text = "Go\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": ";
    let parsed = parse(text);
    assert_eq!(parsed.content, text);
    assert_eq!(parsed.malformed, ["the reply ended inside the call"]);
}

#[test]
fn a_whole_call_without_its_closing_tag_counts() {
    assert_eq!(
        parse("<tool_call>{\"name\": \"f\"}").tool_calls,
        [call("f", "{}")]
    );
}

#[test]
fn a_closing_tag_inside_an_argument_does_not_end_the_call() {
    let arguments = "{\"text\": \"write </tool_call> here\"}";
    let text = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {arguments}}}</tool_call>");
    assert_eq!(parse(&text).tool_calls, [call("f", arguments)]);
}

#[test]
fn switched_off_parsing_leaves_the_text_alone() {
    let text = format!("<think>\nx\n</think>\n\n{CALL_F}");
    let none = ReplyStyle {
        reasoning: false,
        tools: false,
        ..ReplyStyle::default()
    };
    assert_eq!(parse_reply(&text, none).content, text);
    let only_reasoning = ReplyStyle {
        tools: false,
        ..ReplyStyle::default()
    };
    assert_eq!(parse_reply(&text, only_reasoning).content, CALL_F);
}

#[test]
fn content_streams_and_only_the_undecided_end_is_held() {
    let mut parser = ReplyParser::new(ReplyStyle::default());
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

#[test]
fn reasoning_streams() {
    let mut parser = ReplyParser::new(ReplyStyle::default());
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

proptest! {
    #[test]
    fn any_division_of_a_reply_parses_like_the_whole(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<think>", "</think>", "\n", "\n\n", " ", "text", "é", "<", "</tool_call>", "<tool_call>",
            "{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}", "{\"name\": ", CALL_F,
        ]), 0..12),
        size in 1usize..9,
        in_reasoning in any::<bool>(),
    ) {
        let text = parts.concat();
        let style = ReplyStyle { in_reasoning, ..ReplyStyle::default() };
        let mut parser = ReplyParser::new(style);
        let mut parsed = ParsedReply::default();
        let characters: Vec<char> = text.chars().collect();
        for piece in characters.chunks(size) {
            for piece in parser.push(&piece.iter().collect::<String>()) {
                parsed.add(&piece);
            }
        }
        for piece in parser.finish() {
            parsed.add(&piece);
        }
        prop_assert_eq!(parsed, parse_reply(&text, style));
    }
}
