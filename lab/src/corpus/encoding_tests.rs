use std::collections::HashSet;
use std::process::Command;
use std::sync::LazyLock;

use clawhost_chat::{ChatInput, ChatTemplate, Tokenizer};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::corpus::{END_OF_TEXT, Recipe};

/// A recipe whose tokenizer is trained on fewer conversations, to keep the tests fast.
static RECIPE: LazyLock<Recipe> = LazyLock::new(|| {
    let mut recipe = Recipe::embedded().unwrap();
    recipe.tokenizer.sample = 4000;
    recipe
});
static JSON: LazyLock<Vec<u8>> = LazyLock::new(|| RECIPE.train_tokenizer().unwrap());
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::from_bytes(&JSON).unwrap());
static TEMPLATE: LazyLock<ChatTemplate> =
    LazyLock::new(|| ChatTemplate::new(CHAT_TEMPLATE, []).unwrap());

#[test]
fn prompts_are_prefixes_of_later_prompts() {
    for index in 0..1500 {
        let conversation = RECIPE.conversation(index);
        let example = tokenize(&conversation, &TOKENIZER, &TEMPLATE, 0.25).unwrap();
        let messages = conversation.to_chat();
        let input = ChatInput {
            messages: &messages,
            tools: &[],
            add_generation_prompt: false,
            extra: None,
        };
        let whole = TEMPLATE.render(&input).unwrap();
        assert_eq!(
            format!("{}\n", TOKENIZER.decode_with_special(&example.tokens)),
            whole
        );
        // Token by token what serving the next turn would encode.
        assert_eq!(
            TOKENIZER.encode(whole.trim_end()).unwrap(),
            example.tokens,
            "{whole}"
        );
    }
}

#[test]
fn own_tokens_have_weight_one_and_end_with_the_end_of_message() {
    let end = TOKENIZER.id(MESSAGE_END).unwrap();
    for index in 0..300 {
        let conversation = RECIPE.conversation(index);
        let example = tokenize(&conversation, &TOKENIZER, &TEMPLATE, 0.25).unwrap();
        assert_eq!(example.tokens.len(), example.weights.len());
        let mut own = String::new();
        for (token, weight) in example.tokens.iter().zip(&example.weights) {
            if *weight == 1.0 {
                own += &TOKENIZER.decode_with_special(&[*token]);
            } else {
                assert_eq!(*weight, 0.25);
            }
        }
        let said: String = conversation
            .replies()
            .map(|reply| format!("{reply}{MESSAGE_END}"))
            .collect();
        assert_eq!(own, said);
        assert_eq!(example.tokens.last(), Some(&end));
    }
}

#[test]
fn a_template_that_rewrites_earlier_messages_is_rejected() {
    let forgetful = "{% for m in messages[-2:] %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let forgetful = ChatTemplate::new(forgetful, []).unwrap();
    let long = (0..)
        .map(|i| RECIPE.conversation(i))
        .find(|c| c.messages.len() >= 4)
        .unwrap();
    let refused = tokenize(&long, &TOKENIZER, &forgetful, 0.2);
    assert!(
        matches!(refused, Err(EncodeError::Rewrites { .. })),
        "{refused:?}"
    );
}

#[test]
fn short_numbers_are_one_token_everywhere() {
    for n in 0..100_u32 {
        let id = TOKENIZER.id(&n.to_string()).unwrap();
        for text in [
            format!("{n}"),
            format!("has {n} pens"),
            format!("**{n}**"),
            format!("({n})."),
            format!("x={n}\n"),
        ] {
            let tokens = TOKENIZER.encode(&text).unwrap();
            assert_eq!(
                tokens.iter().filter(|t| **t == id).count(),
                1,
                "{text}: {tokens:?}"
            );
        }
    }
    let year = TOKENIZER.encode("2026").unwrap();
    assert_eq!(year.len(), 4);
}

#[test]
fn the_vocabulary_is_as_large_as_the_recipe_says_and_its_ids_are_known() {
    assert_eq!(TOKENIZER.vocab_size(), RECIPE.tokenizer.vocab);
    assert_eq!(
        TOKENIZER.id(END_OF_TEXT),
        Some(crate::corpus::layout::END_OF_TEXT_ID)
    );
    assert_eq!(
        TOKENIZER.id(MESSAGE_END),
        Some(crate::corpus::layout::MESSAGE_END_ID)
    );
    for token in ["<think>", "</think>", "<tool_call>", "</tool_call>"] {
        let id = TOKENIZER.id(token).unwrap();
        assert_eq!(TOKENIZER.encode(token).unwrap(), [id]);
        assert!(
            !TOKENIZER.is_special(id),
            "{token} stays in decoded text, where it is parsed"
        );
    }
    assert!(TOKENIZER.is_special(TOKENIZER.id(MESSAGE_END).unwrap()));
}

#[test]
fn a_vocabulary_too_large_for_the_sample_is_an_error() {
    let mut recipe = RECIPE.clone();
    recipe.tokenizer.sample = 1;
    recipe.tokenizer.vocab = 4000;
    let error = recipe.train_tokenizer().unwrap_err().to_string();
    assert!(error.contains("tokenizer.vocab = 4000"), "{error}");
}

/// Prints the fingerprint of this process; [`two_processes_agree`] runs it in a subprocess.
#[test]
fn fingerprint() {
    println!("fingerprint {}", corpus_fingerprint());
}

#[test]
fn two_processes_agree() {
    let run = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "corpus::encoding::tests::fingerprint",
            "--nocapture",
        ])
        .output()
        .unwrap();
    let out = String::from_utf8(run.stdout).unwrap();
    let (_, there) = out
        .split_once("fingerprint ")
        .expect("the other process prints its fingerprint");
    assert_eq!(
        there.split_whitespace().next(),
        Some(corpus_fingerprint().as_str())
    );
}

/// FNV-1a over the tokenizer and some conversations.
fn corpus_fingerprint() -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let talk = (0..500).flat_map(|i| serde_json::to_vec(&RECIPE.held_out(i)).unwrap());
    for byte in JSON.iter().copied().chain(talk) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

#[test]
fn tools_results_and_reasoning_are_rendered() {
    let render = |messages: serde_json::Value, tools: serde_json::Value, open: bool| {
        let messages: Vec<clawhost_chat::Message> = serde_json::from_value(messages).unwrap();
        let tools: Vec<clawhost_chat::Tool> = serde_json::from_value(tools).unwrap();
        TEMPLATE.render(&ChatInput {
            messages: &messages,
            tools: &tools,
            add_generation_prompt: open,
            extra: None,
        })
    };
    let call = json!({ "id": "c1", "type": "function", "function": { "name": "add", "arguments": { "a": 1 } } });
    let messages = json!([
        { "role": "developer", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "1 + 1" }] },
        { "role": "assistant", "content": null, "reasoning_content": "I add.", "tool_calls": [call, call] },
        { "role": "tool", "tool_call_id": "c1", "content": "2" },
        { "role": "tool", "tool_call_id": "c2", "content": "2" },
    ]);
    let tools = json!([{ "type": "function", "function": { "name": "add" } }]);
    assert_eq!(
        render(messages, tools, true).unwrap(),
        "<|im_start|>system\nBe brief.\n\n# Tools\n\nThese functions can be called:\n<tools>\n\
         {\"type\": \"function\", \"function\": {\"name\": \"add\"}}\n</tools>\n\nA call is one JSON object:\n<tool_call>\n\
         {\"name\": <function>, \"arguments\": <object>}\n</tool_call><|im_end|>\n\
         <|im_start|>user\n1 + 1<|im_end|>\n\
         <|im_start|>assistant\n<think>\nI add.\n</think>\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n"
    );
    let late = json!([{ "role": "user", "content": "a" }, { "role": "system", "content": "b" }]);
    assert_eq!(
        render(late, json!([]), false).unwrap(),
        "<|im_start|>user\na<|im_end|>\n<|im_start|>system\nb<|im_end|>\n"
    );
    let unknown = render(
        json!([{ "role": "narrator", "content": "a" }]),
        json!([]),
        false,
    );
    assert!(unknown.unwrap_err().to_string().contains("narrator"));
}

#[test]
fn conversations_alternate_roles_and_differ() {
    let mut seen = HashSet::new();
    for index in 0..2000 {
        let conversation = RECIPE.conversation(index);
        assert_eq!(conversation, RECIPE.conversation(index));
        let roles: Vec<Role> = conversation.messages.iter().map(|m| m.role).collect();
        let talk = roles.strip_prefix(&[Role::System]).unwrap_or(&roles);
        assert!(
            (2..=8).contains(&talk.len()) && talk.len().is_multiple_of(2),
            "{roles:?}"
        );
        for (at, role) in talk.iter().enumerate() {
            assert_eq!(
                *role,
                if at % 2 == 0 {
                    Role::User
                } else {
                    Role::Assistant
                }
            );
        }
        seen.insert(serde_json::to_string(&conversation.messages).unwrap());
    }
    assert!(
        seen.len() > 1960,
        "hardly any conversation comes twice: {}",
        seen.len()
    );
}

#[test]
fn texts_are_complete_and_clean() {
    for index in 0..6000 {
        for message in RECIPE.conversation(index).messages {
            let text = &message.content;
            assert_eq!(text.trim(), text, "{text:?}");
            assert!(!text.is_empty());
            assert!(!text.contains(['{', '}']), "an unfilled slot: {text}");
            if message.role == Role::Assistant {
                for blemish in [
                    "  ", " ,", " .", " !", " ?", ",,", "..", "!.", "?.", ".,", "(", ")",
                ] {
                    assert!(!text.contains(blemish), "{blemish:?} in {text}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_text_round_trips(text in any::<String>()) {
        let tokens = TOKENIZER.encode(&text).unwrap();
        prop_assert_eq!(TOKENIZER.decode_with_special(&tokens), text);
    }

    #[test]
    fn mixed_text_round_trips(text in "[ \\n\\t*#0-9a-zé'½漢🙂.,!<|>_-]{0,80}") {
        let tokens = TOKENIZER.encode(&text).unwrap();
        prop_assert_eq!(TOKENIZER.decode_with_special(&tokens), text);
    }
}
