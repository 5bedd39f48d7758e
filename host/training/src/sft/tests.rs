//! Fine-tuning of the embedded policy, and of templates that are not so kind.

use std::sync::Arc;

use clawhost_policy::{
    Adapter, ChatTemplate, Engine, EngineOptions, LoraSpec, ModelFiles, Tokenizer,
};
use serde_json::{Value, json};

use super::*;

fn embedded() -> Engine {
    Engine::load(&ModelFiles::embedded(), EngineOptions::default()).unwrap()
}

/// What the trained tokens say, sequence by sequence, runs of them apart by `|`.
fn said(engine: &Engine, examples: &[ChatExample]) -> Vec<String> {
    let tokenizer = engine.tokenizer();
    let text = |example: &ChatExample| {
        let mut runs: Vec<Vec<u32>> = Vec::new();
        let mut before = false;
        for (token, trains) in example.tokens.iter().zip(&example.trains) {
            if *trains && !before {
                runs.push(Vec::new());
            }
            if let Some(run) = runs.last_mut().filter(|_| *trains) {
                run.push(*token);
            }
            before = *trains;
        }
        let runs: Vec<String> = runs
            .iter()
            .map(|ids| tokenizer.decode_with_special(ids))
            .collect();
        runs.join("|")
    };
    examples.iter().map(text).collect()
}

fn conversation() -> Value {
    json!({
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "two and two?"},
            {"role": "assistant", "content": "Let me see.", "weight": 0},
            {"role": "user", "content": "well?"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 2, \"b\": 2}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "4"},
            {"role": "assistant", "content": "It is 4."},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {}}}],
    })
}

#[test]
fn exactly_what_the_assistant_said_trains_tool_calls_too() {
    let engine = embedded();
    let format = ChatFormat::of(&engine);
    let examples = format.examples(&conversation()).unwrap();
    assert_eq!(
        examples.len(),
        1,
        "a template that continues gives one sequence"
    );
    let spoken = said(&engine, &examples);
    let runs: Vec<&str> = spoken[0].split('|').collect();
    let text = spoken[0].clone();
    assert!(
        text.contains("<tool_call>") && text.contains("\"add\""),
        "{text}"
    );
    assert!(text.ends_with("It is 4.<|im_end|>"), "{text}");
    assert!(
        !text.contains("Let me see") && !text.contains("well?") && !text.contains("Be brief"),
        "{text}"
    );
    assert_eq!(text.matches("<|im_end|>").count(), 2, "{runs:?}");
    assert!(!examples[0].trains[0]);
    // The prompt of each reply is what the gateway would have sent.
    let whole = engine.tokenizer().decode_with_special(&examples[0].tokens);
    assert!(
        whole.contains("Let me see.<|im_end|>\n<|im_start|>user\nwell?"),
        "{whole}"
    );
}

fn format_of(template: &str) -> (Arc<Tokenizer>, ChatTemplate) {
    let engine = embedded();
    (
        Arc::clone(engine.tokenizer()),
        ChatTemplate::new(template, []).unwrap(),
    )
}

#[test]
fn a_template_that_forgets_gives_a_sequence_for_each_reply() {
    // Only the last message is written whole; older replies lose what they say.
    let (tokenizer, template) = format_of(
        "{% for m in messages %}{{ m.role }}: {% if loop.last or m.role == 'user' %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
    );
    let engine = embedded();
    let format = ChatFormat {
        tokenizer: &tokenizer,
        template: &template,
        ends: engine.end_tokens(),
        context: 512,
    };
    let talk = json!({"messages": [
        {"role": "user", "content": "one"}, {"role": "assistant", "content": "first"},
        {"role": "user", "content": "two"}, {"role": "assistant", "content": "second"},
    ]});
    let examples = format.examples(&talk).unwrap();
    assert_eq!(
        said(&engine, &examples),
        ["first<|im_end|>", "second<|im_end|>"]
    );
    let second = tokenizer.decode_with_special(&examples[1].tokens);
    assert!(
        second.contains("assistant: <|im_end|>") && !second.contains("first"),
        "{second}"
    );
}

#[test]
fn a_template_that_begins_replies_otherwise_is_refused() {
    let (tokenizer, template) = format_of(
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant says: {% endif %}",
    );
    let format = ChatFormat {
        tokenizer: &tokenizer,
        template: &template,
        ends: &[2],
        context: 512,
    };
    let talk = json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]});
    let error = format.examples(&talk).unwrap_err().to_string();
    assert!(
        error.contains("messages[1]") && error.contains("otherwise than it begins one"),
        "{error}"
    );
}

#[test]
fn what_is_no_conversation_says_why() {
    let engine = embedded();
    let format = ChatFormat::of(&engine);
    for (talk, part) in [
        (json!([]), "an object with `messages`"),
        (json!({"messages": []}), "must be a list that is not empty"),
        (
            json!({"messages": [{"role": "bot", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            json!({"messages": [{"role": "user"}]}),
            "neither content nor tool_calls",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}]}),
            "no assistant message",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "x"}], "tools": {}}),
            "`tools` must be a list",
        ),
    ] {
        let error = format.examples(&talk).unwrap_err().to_string();
        assert!(error.contains(part), "{talk}: {error}");
    }
    let short = ChatFormat {
        context: 8,
        ..format
    };
    let error = short.examples(&conversation()).unwrap_err().to_string();
    assert!(error.contains("do not fit the context of 8"), "{error}");
}

/// Conversations of one kind: whatever is asked about a number, the reply counts down from it in a fixed form.
fn talk(number: usize) -> Value {
    json!({"messages": [
        {"role": "user", "content": format!("Tell me about {number}.")},
        {"role": "assistant", "content": format!("So {number}, then {}, and that is all!", number + 1)},
    ]})
}

fn examples(engine: &Engine, numbers: impl Iterator<Item = usize>) -> Vec<ChatExample> {
    let format = ChatFormat::of(engine);
    numbers
        .flat_map(|n| format.examples(&talk(n)).unwrap())
        .collect()
}

fn tuned(engine: &Engine, learned: Learned, options: &SftOptions) -> (Tuned, Vec<SftProgress>) {
    let train = examples(engine, (10..58).filter(|n| n % 4 != 0));
    let held_out = examples(engine, (10..58).filter(|n| n % 4 == 0));
    let mut seen = Vec::new();
    let tuned = tune(
        engine.model(),
        learned,
        &train,
        &held_out,
        options,
        |progress| {
            seen.push(progress.clone());
            ControlFlow::Continue(())
        },
    );
    (tuned.unwrap(), seen)
}

fn adapter(engine: &Engine) -> Learned {
    let spec = LoraSpec {
        rank: 8,
        alpha: 16.0,
        ..LoraSpec::default()
    };
    Learned::Lora(Arc::new(Adapter::init(engine.model().config(), spec, 1)))
}

fn options(rate: f64) -> SftOptions {
    let mut options = SftOptions {
        epochs: 3,
        batch: 6,
        ..SftOptions::default()
    };
    options.optimizer.learning_rate = rate;
    options
}

#[test]
fn what_was_held_out_becomes_likelier_by_training_and_not_without() {
    let engine = embedded();
    let (tuned_well, seen) = tuned(&engine, adapter(&engine), &options(3e-3));
    let (before, after) = (
        tuned_well.held_out_before.unwrap(),
        tuned_well.held_out.unwrap(),
    );
    assert!(after < 0.6 * before, "{before} to {after}");
    assert!(tuned_well.losses.1 < tuned_well.losses.0);
    assert_eq!((tuned_well.steps, seen.len()), (18, 18));
    let measured: Vec<u64> = seen
        .iter()
        .filter(|p| p.held_out.is_some())
        .map(|p| p.step)
        .collect();
    assert_eq!(measured, [6, 12, 18]);
    assert_eq!(seen[17].held_out, Some(after));
    // The same passes at a rate that moves nothing.
    let (control, _) = tuned(&engine, adapter(&engine), &options(1e-12));
    assert!((control.held_out.unwrap() - before).abs() < 1e-3 * before);
    // Once more, bit by bit.
    let (again, _) = tuned(&engine, adapter(&engine), &options(3e-3));
    assert_eq!(again.learned.digest(), tuned_well.learned.digest());
}

#[test]
fn all_weights_learn_as_well() {
    let engine = embedded();
    let base = Learned::Full(Arc::clone(engine.model()));
    let mut few = options(3e-4);
    few.epochs = 1;
    let (tuned, _) = tuned(&engine, base, &few);
    assert!(tuned.held_out.unwrap() < 0.9 * tuned.held_out_before.unwrap());
    assert_ne!(tuned.learned.digest(), engine.model().digest());
}

#[test]
fn the_size_of_a_pass_is_no_part_of_the_result_beyond_rounding() {
    let engine = embedded();
    let mut narrow = options(3e-3);
    narrow.epochs = 1;
    let wide = narrow.clone();
    narrow.pass_tokens = 1;
    let (one, _) = tuned(&engine, adapter(&engine), &narrow);
    let (other, _) = tuned(&engine, adapter(&engine), &wide);
    let moved = other.learned.delta_norm(&adapter(&engine));
    assert!(one.learned.delta_norm(&other.learned) < 0.05 * moved);
}
