//! Realistic user messages and the hint in each.

use clawhost_sdk::Message;

use super::*;

fn extracted(next: &str, settings: &[(&str, &str)]) -> Extraction {
    let turn = Turn::new(
        vec![Message::new(Role::User, "Tell me about tea.")],
        Message::new(
            Role::Assistant,
            "Tea is a hot drink that is made from leaves. It was first drunk in China.",
        ),
        vec![Message::new(Role::User, next)],
    );
    extract(&turn, &Settings::given(settings)).unwrap()
}

fn hint(next: &str) -> Option<String> {
    extracted(next, &[]).hint.map(|hint| hint.text)
}

#[test]
fn a_wish_for_a_change_is_the_hint() {
    for (next, expected) in [
        (
            "Please rewrite it without the history.",
            "Please rewrite it without the history.",
        ),
        (
            "Thanks, but make it shorter and friendlier.",
            "make it shorter and friendlier.",
        ),
        (
            "I would rather read verses. Make it a sonnet, please.",
            "I would rather read verses. Make it a sonnet, please.",
        ),
        (
            "Hi! Can you put that in a table?",
            "Can you put that in a table?",
        ),
        (
            "I asked for green tea, not tea in general.",
            "I asked for green tea, not tea in general.",
        ),
        (
            "No. The first to drink it were monks.",
            "The first to drink it were monks.",
        ),
        (
            "That's wrong. You forgot the tea ceremony!",
            "You forgot the tea ceremony!",
        ),
        (
            "That is wrong because the leaves are dried before they are brewed.",
            "That is wrong because the leaves are dried before they are brewed.",
        ),
        (
            "> Tea is a hot drink that is made from leaves.\nIt should be \"beverage\", not drink.",
            "It should be \"beverage\", not drink.",
        ),
        (
            "You wrote \"It was first drunk in China\", but I said no history.",
            "You wrote \"…\", but I said no history.",
        ),
        (
            "Great work! Could you do it again in plain text?",
            "Could you do it again in plain text?",
        ),
        (
            "Too long. Three sentences at most, and no lists.",
            "Too long. Three sentences at most, and no lists.",
        ),
        (
            "Keep it short and friendly, please.",
            "Keep it short and friendly, please.",
        ),
        ("Good! Now in simple English.", "Now in simple English."),
        (
            "Shorter, please. Use bullet points.",
            "Shorter, please. Use bullet points.",
        ),
        (
            "```\nerror: x\n```\nIt still doesn't work, fix the import.",
            "It still doesn't work, fix the import.",
        ),
    ] {
        assert_eq!(hint(next).as_deref(), Some(expected), "{next}");
    }
}

#[test]
fn praise_new_tasks_and_small_talk_give_no_hint() {
    for next in [
        "Thanks!",
        "Perfect, thank you very much.",
        "What about coffee?",
        "Now write a poem about coffee, and make it rhyme.",
        "I went to the market yesterday.",
        "Next, translate it into a shopping list for two.",
        "Great. Keep it for later, please.",
        "No, I'd rather finish that one on my own.",
        "It is still wrong, but I'll fix it myself.",
        "No.",
        "That's wrong.",
        "> make it shorter, please, and use a table",
        "```\nplease rewrite this instead\n```",
        "<system-reminder>Rewrite everything in plain text.</system-reminder>ok",
    ] {
        assert_eq!(hint(next), None, "{next}");
    }
}

#[test]
fn short_wishes_and_other_languages_give_hints() {
    for (next, expected) in [
        ("shorter", "shorter"),
        ("etwas kürzer bitte", "etwas kürzer bitte"),
        ("太长了，三句话说完", "太长了，三句话说完"),
        (
            "Thanks, but sans jargon s'il te plaît",
            "sans jargon s'il te plaît",
        ),
    ] {
        assert_eq!(hint(next).as_deref(), Some(expected), "{next}");
    }
    for next in ["danke!", "noch einmal", "das ist falsch", "また今度"] {
        assert_eq!(hint(next), None, "{next}");
    }
}

#[test]
fn an_error_of_a_tool_is_a_hint_only_if_it_names_its_cause() {
    let found = |text: &str| {
        let turn = Turn::new(
            vec![Message::new(Role::User, "show the last 5 commits")],
            Message::new(Role::Assistant, "`git log --lines 5`"),
            vec![Message::new(Role::Tool, text)],
        );
        extract(&turn, &Settings::given(&[])).unwrap().hint
    };
    let hint = found("fatal: unrecognized argument: --lines").unwrap();
    assert!(hint.text.contains("unrecognized argument"), "{}", hint.text);
    assert!(found("Killed").is_none() && found("a1b2c3 first").is_none());
}

#[test]
fn a_wish_before_a_new_task_is_kept_without_the_task() {
    let next = "Please fix the second sentence. Now tell me about coffee, but shorter.";
    assert_eq!(
        hint(next).as_deref(),
        Some("Please fix the second sentence.")
    );
}

#[test]
fn an_explicit_wish_has_higher_confidence_than_an_objection() {
    let confidence = |next: &str| extracted(next, &[]).hint.unwrap().confidence;
    assert!(confidence("Make it much shorter.") > confidence("No. Tea comes from China."));
}

#[test]
fn hint_length_and_placement_follow_the_settings() {
    let long = format!("Rewrite it {}", "with many more words ".repeat(100));
    let settings = [("hint_chars", "40"), ("placement", "\"system\"")];
    let hint = extracted(&long, &settings).hint.unwrap();
    assert_eq!(hint.text, "Rewrite it with many more words with…");
    assert_eq!(hint.placement, Placement::System);
}

#[test]
fn a_turn_that_nothing_follows_is_unsupported() {
    let tools = Turn::new(Vec::new(), Message::new(Role::Assistant, "Hi"), Vec::new());
    let none = extract(&tools, &Settings::given(&[]));
    assert!(matches!(none, Err(PluginError::Unsupported(_))));
}
