//! Fine-tuning of the embedded policy, and chat templates that rewrite messages.

use std::sync::Arc;

use clawhost_chat::{ChatTemplate, Tokenizer};
use clawhost_engine::{Engine, EngineOptions};
use clawhost_model::{Adapter, LoraSpec, ModelFiles, Quantization};
use serde_json::{Value, json};

use super::*;

fn embedded() -> Engine {
    clawhost_cpu::load_engine(&ModelFiles::embedded(), EngineOptions::default()).unwrap()
}

/// The text of each sequence's trained tokens, with consecutive runs separated by `|`.
fn trained_text(engine: &Engine, examples: &[ChatExample]) -> Vec<String> {
    let tokenizer = engine.tokenizer();
    let text = |example: &ChatExample| {
        let mut runs: Vec<Vec<u32>> = Vec::new();
        let mut before = false;
        for (token, trains) in example.tokens.iter().zip(&example.loss_mask) {
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
fn only_assistant_tokens_train_including_tool_calls() {
    let engine = embedded();
    let format = ChatFormat::from_engine(&engine);
    let examples = format.examples(&conversation()).unwrap();
    assert_eq!(
        examples.len(),
        1,
        "an append-only template gives one sequence"
    );
    let trained = trained_text(&engine, &examples);
    let runs: Vec<&str> = trained[0].split('|').collect();
    let text = trained[0].clone();
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
    assert!(!examples[0].loss_mask[0]);
    // The prompt of each reply is rendered as by the gateway.
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
fn a_template_that_drops_old_replies_gives_one_sequence_per_reply() {
    // Only the last message is rendered in full; older replies lose their content.
    let (tokenizer, template) = format_of(
        "{% for m in messages %}{{ m.role }}: {% if loop.last or m.role == 'user' %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
    );
    let engine = embedded();
    let format = ChatFormat {
        tokenizer: &tokenizer,
        template: &template,
        eos_token_ids: engine.eos_token_ids(),
        context: 512,
    };
    let talk = json!({"messages": [
        {"role": "user", "content": "one"}, {"role": "assistant", "content": "first"},
        {"role": "user", "content": "two"}, {"role": "assistant", "content": "second"},
    ]});
    let examples = format.examples(&talk).unwrap();
    assert_eq!(
        trained_text(&engine, &examples),
        ["first<|im_end|>", "second<|im_end|>"]
    );
    let second = tokenizer.decode_with_special(&examples[1].tokens);
    assert!(
        second.contains("assistant: <|im_end|>") && !second.contains("first"),
        "{second}"
    );
}

#[test]
fn a_template_that_rewrites_the_generation_prompt_is_rejected() {
    let (tokenizer, template) = format_of(
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant says: {% endif %}",
    );
    let format = ChatFormat {
        tokenizer: &tokenizer,
        template: &template,
        eos_token_ids: &[2],
        context: 512,
    };
    let talk = json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]});
    let error = format.examples(&talk).unwrap_err().to_string();
    assert!(
        error.contains("messages[1]")
            && error.contains("does not render this reply after its generation prompt"),
        "{error}"
    );
}

#[test]
fn invalid_conversations_are_rejected_with_a_reason() {
    let engine = embedded();
    let format = ChatFormat::from_engine(&engine);
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

/// Conversations of a fixed form about a number.
fn conversation_about(number: usize) -> Value {
    json!({"messages": [
        {"role": "user", "content": format!("Tell me about {number}.")},
        {"role": "assistant", "content": format!("So {number}, then {}, and that is all!", number + 1)},
    ]})
}

fn examples(engine: &Engine, numbers: impl Iterator<Item = usize>) -> Vec<ChatExample> {
    let format = ChatFormat::from_engine(engine);
    numbers
        .flat_map(|n| format.examples(&conversation_about(n)).unwrap())
        .collect()
}

fn run_sft(
    engine: &Engine,
    weights: TrainedWeights,
    options: &SftOptions,
) -> (SftOutput, Vec<SftProgress>) {
    let train = examples(engine, (10..58).filter(|n| n % 4 != 0));
    let held_out = examples(engine, (10..58).filter(|n| n % 4 == 0));
    let mut seen = Vec::new();
    let output = fine_tune(
        &**engine.backend(),
        &weights,
        &train,
        &held_out,
        options,
        |progress| {
            seen.push(progress.clone());
            ControlFlow::Continue(())
        },
    );
    (output.unwrap(), seen)
}

fn adapter(engine: &Engine) -> TrainedWeights {
    let spec = LoraSpec {
        rank: 8,
        alpha: 16.0,
        ..LoraSpec::default()
    };
    TrainedWeights::Lora(Arc::new(Adapter::init(engine.model().config(), spec, 1)))
}

fn options(rate: f64) -> SftOptions {
    let mut options = SftOptions {
        num_epochs: 3,
        batch_size: 6,
        ..SftOptions::default()
    };
    options.optimizer.learning_rate = rate;
    options
}

#[test]
fn training_lowers_the_held_out_loss() {
    let engine = embedded();
    let (tuned, seen) = run_sft(&engine, adapter(&engine), &options(3e-3));
    let (before, after) = (tuned.held_out_before.unwrap(), tuned.held_out.unwrap());
    assert!(after < 0.6 * before, "{before} to {after}");
    assert!(tuned.losses.1 < tuned.losses.0);
    assert_eq!((tuned.steps, seen.len()), (18, 18));
    let measured: Vec<u64> = seen
        .iter()
        .filter(|p| p.held_out.is_some())
        .map(|p| p.step)
        .collect();
    assert_eq!(measured, [6, 12, 18]);
    assert_eq!(seen[17].held_out, Some(after));
    // The same updates with a learning rate too small to matter.
    let (control, _) = run_sft(&engine, adapter(&engine), &options(1e-12));
    assert!((control.held_out.unwrap() - before).abs() < 1e-3 * before);
    // A repetition is bit-identical.
    let (again, _) = run_sft(&engine, adapter(&engine), &options(3e-3));
    assert_eq!(again.weights.digest(), tuned.weights.digest());
}

#[test]
fn full_parameter_training_lowers_the_held_out_loss() {
    let engine = embedded();
    let base = TrainedWeights::Full(Arc::clone(engine.model()));
    let mut few = options(3e-4);
    few.num_epochs = 1;
    let (tuned, _) = run_sft(&engine, base, &few);
    assert!(tuned.held_out.unwrap() < 0.9 * tuned.held_out_before.unwrap());
    assert_ne!(tuned.weights.digest(), engine.model().digest());
}

#[test]
fn an_adapter_learns_on_a_quantized_base_as_on_f32() {
    let held_out = |quantization| {
        let engine_options = EngineOptions {
            quantization,
            ..EngineOptions::default()
        };
        let engine = clawhost_cpu::load_engine(&ModelFiles::embedded(), engine_options).unwrap();
        let (tuned, _) = run_sft(&engine, adapter(&engine), &options(3e-3));
        tuned.held_out_before.unwrap() - tuned.held_out.unwrap()
    };
    let plain = held_out(Quantization::None);
    assert!(plain > 0.1);
    for (quantization, least) in [(Quantization::Int8, 0.98), (Quantization::Int4, 0.9)] {
        let ratio = held_out(quantization) / plain;
        assert!(ratio > least && ratio < 1.2, "{quantization:?}: {ratio}");
    }
}

#[test]
fn the_micro_batch_size_changes_the_result_only_by_rounding() {
    let engine = embedded();
    let mut narrow = options(3e-3);
    narrow.num_epochs = 1;
    let wide = narrow.clone();
    narrow.micro_batch_tokens = 1;
    let (one, _) = run_sft(&engine, adapter(&engine), &narrow);
    let (other, _) = run_sft(&engine, adapter(&engine), &wide);
    let moved = other.weights.delta_norm(&adapter(&engine));
    assert!(one.weights.delta_norm(&other.weights) < 0.05 * moved);
}
