//! A model without an idea, held to a form, writes that form.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::sampling::{Sampler, Sampling};
use crate::text::{CallForm, ReplyStyle, Tokenizer, ToolTypes, byte_level, parse_reply};

/// The end token of [`byte_level`].
const END: u32 = 262;

fn compiler() -> Arc<Compiler> {
    compiler_of(CallForm::Hermes)
}

fn compiler_of(calls: CallForm) -> Arc<Compiler> {
    let tokenizer: Arc<Tokenizer> = Arc::new(byte_level());
    Arc::new(Compiler::new(tokenizer, 300, Arc::new([END]), calls))
}

/// Logits of no meaning, different at each place.
fn noise(seed: u64, place: usize) -> Vec<f32> {
    (0..300)
        .map(|id| ((id as f32 + 1.7) * (place as f32 + 0.3) + seed as f32).sin() * 3.0)
        .collect()
}

/// Draws until the form is whole; the text, and whether it ended by itself.
fn write(
    compiler: &Arc<Compiler>,
    constraint: &Constraint,
    seed: u64,
    most: usize,
) -> (String, bool) {
    let sampling = Sampling {
        seed: Some(seed),
        ..Sampling::default()
    };
    let guide = compiler.guide(constraint).unwrap();
    let mut sampler = Sampler::new(&sampling, &[]).guided(Arc::new([END]), Some(guide));
    let mut ids = Vec::new();
    for place in 0..most {
        let drawn = sampler.draw(&noise(seed, place)).unwrap();
        if drawn.id == END {
            return (compiler_text(&ids), true);
        }
        ids.push(drawn.id);
    }
    (compiler_text(&ids), false)
}

fn compiler_text(ids: &[u32]) -> String {
    byte_level().decode_with_special(ids)
}

fn always(schema: Value, valid: fn(&Value) -> bool) {
    let compiler = compiler();
    let constraint = Constraint::json_schema(schema.clone());
    for seed in 0..12 {
        let (text, ended) = write(&compiler, &constraint, seed, 2_000);
        assert!(ended, "{schema}: {text}");
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{schema}: {error}: {text}"));
        assert!(valid(&value), "{schema}: {text}");
    }
}

fn short(value: &Value, most: usize) -> bool {
    value
        .as_str()
        .is_some_and(|text| text.chars().count() <= most)
}

#[test]
fn objects_have_what_is_required_and_nothing_else() {
    always(
        json!({
            "type": "object", "additionalProperties": false, "required": ["name", "age"],
            "properties": {
                "name": {"type": "string", "maxLength": 8},
                "age": {"type": "integer", "minimum": 3, "maximum": 120},
                "nick": {"type": ["string", "null"], "maxLength": 4},
            },
        }),
        |value| {
            let map = value.as_object().unwrap();
            let known = map
                .keys()
                .all(|key| ["name", "age", "nick"].contains(&key.as_str()));
            let age = value["age"].as_i64().unwrap();
            known && short(&value["name"], 8) && (3..=120).contains(&age)
        },
    );
}

#[test]
fn arrays_keep_their_bounds_and_choices_their_values() {
    always(
        json!({
            "type": "array", "minItems": 2, "maxItems": 4,
            "items": {"enum": ["red", "grün", 3, null]},
        }),
        |value| {
            let items = value.as_array().unwrap();
            let allowed = json!(["red", "grün", 3, null]);
            (2..=4).contains(&items.len())
                && items
                    .iter()
                    .all(|item| allowed.as_array().unwrap().contains(item))
        },
    );
}

#[test]
fn references_recursion_and_alternatives_hold() {
    always(
        json!({
            "$defs": {"tree": {
                "type": "object", "additionalProperties": false, "required": ["v"],
                "properties": {
                    "v": {"anyOf": [{"type": "boolean"}, {"const": "x"}]},
                    "left": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                },
            }},
            "$ref": "#/$defs/tree",
        }),
        |value| {
            let mut at = value;
            while at.is_object() {
                assert!(at["v"].is_boolean() || at["v"] == "x");
                at = at.get("left").unwrap_or(&Value::Null);
            }
            at.is_null()
        },
    );
}

#[test]
fn numbers_patterns_and_formats_hold() {
    always(
        json!({
            "type": "object", "additionalProperties": false, "required": ["n", "m", "code", "day"],
            "properties": {
                "n": {"type": "number", "minimum": -0.5, "exclusiveMaximum": 1.5},
                "m": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 50},
                "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
                "day": {"type": "string", "format": "date"},
                "any": {"type": "string", "format": "of-no-kind", "maxLength": 3},
            },
        }),
        |value| {
            let n = value["n"].as_f64().unwrap();
            let code = value["code"].as_str().unwrap();
            let day = value["day"].as_str().unwrap();
            (-0.5..1.5).contains(&n)
                && value["m"].as_i64().unwrap() % 5 == 0
                && code.len() == 6
                && code.as_bytes()[2] == b'-'
                && day.len() == 10
        },
    );
}

#[test]
fn texts_are_one_of_a_choice_or_match_a_pattern() {
    let compiler = compiler();
    let texts = ["yes", "no, \"never\"", "größer 🦀"].map(str::to_owned);
    let choice = Constraint::answer(Answer::Choice(texts.to_vec()));
    let regex = Constraint::answer(Answer::Regex(r"[a-c]{3}/\d\d".to_owned()));
    let mut seen = std::collections::HashSet::new();
    for seed in 0..12 {
        let (text, ended) = write(&compiler, &choice, seed, 100);
        assert!(ended && texts.contains(&text), "{text}");
        seen.insert(text);
        let (text, ended) = write(&compiler, &regex, seed, 100);
        let (letters, digits) = text.split_once('/').unwrap();
        assert!(
            ended && letters.len() == 3 && digits.chars().count() == 2,
            "{text}"
        );
    }
    assert!(seen.len() > 1, "the model chooses among what is allowed");
}

#[test]
fn calls_are_of_given_tools_with_valid_arguments_in_the_models_form() {
    let look = json!({
        "type": "object", "additionalProperties": false, "required": ["where", "far"],
        "$defs": {"place": {"enum": ["here", "there"]}, "flag": {"type": "boolean"}},
        "properties": {
            "where": {"enum": ["here", "there"]},
            "far": {"$ref": "#/$defs/flag"},
            "times": {"type": "integer", "minimum": 1, "maximum": 9},
        },
    });
    let tools = vec![
        Callable {
            name: "look".to_owned(),
            parameters: Some(look.clone()),
        },
        Callable {
            name: "wait".to_owned(),
            parameters: Some(json!({"additionalProperties": false})),
        },
    ];
    let offered = [
        json!({"type": "function", "function": {"name": "look", "parameters": look}}),
        json!({"type": "function", "function": {"name": "wait"}}),
    ];
    for form in [CallForm::Hermes, CallForm::QwenXml, CallForm::Llama] {
        let compiler = compiler_of(form);
        for (most, seed) in (0..16).map(|seed| (1 + seed % 2 * 2, seed)) {
            let constraint = Constraint::calls(tools.clone(), most);
            let (text, ended) = write(&compiler, &constraint, u64::from(seed), 2_000);
            assert!(ended, "{text}");
            let style = ReplyStyle {
                calls: form,
                ..ReplyStyle::default()
            };
            let reply = parse_reply(&text, style, &Arc::new(ToolTypes::of(&offered)));
            assert!(reply.malformed.is_empty(), "{form:?}: {text}");
            assert!(reply.content.is_empty(), "{form:?}: {text}");
            let calls = reply.tool_calls;
            assert!(
                (1..=most as usize).contains(&calls.len()),
                "{form:?}: {text}"
            );
            for call in calls {
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                match call.name.as_str() {
                    "look" => {
                        let place = arguments["where"].as_str().unwrap();
                        assert!(
                            ["here", "there"].contains(&place) && arguments["far"].is_boolean()
                        );
                        let times = arguments
                            .get("times")
                            .map_or(1, |times| times.as_i64().unwrap());
                        assert!((1..=9).contains(&times), "{text}");
                    }
                    "wait" => assert_eq!(arguments, json!({})),
                    other => panic!("{other}"),
                }
            }
        }
    }
}

#[test]
fn thoughts_come_before_the_form_and_are_free() {
    let compiler = compiler();
    let constraint = Constraint {
        after_reasoning: true,
        ..Constraint::answer(Answer::Choice(vec!["done".to_owned()]))
    };
    let guide = compiler.guide(&constraint).unwrap();
    let tokenizer = byte_level();
    let sampling = Sampling {
        temperature: 0.0,
        ..Sampling::default()
    };
    let mut sampler = Sampler::new(&sampling, &[]).guided(Arc::new([END]), Some(guide));
    let mut said = Vec::new();
    // The model wants to say this, and then nothing but `!`; 264 is the end of the block as one token.
    let mut wanted = tokenizer.encode("{hm} <b>").unwrap();
    wanted.push(264);
    wanted.push(u32::from(b'\n'));
    for place in 0..wanted.len() + 5 {
        let mut logits = vec![0.0; 300];
        let want = wanted.get(place).copied().unwrap_or(u32::from(b'!'));
        logits[want as usize] = 5.0;
        // Of what the form allows it takes letters rather than further line breaks.
        (b'a'..=b'z').for_each(|letter| logits[usize::from(letter)] += 1.0);
        said.push(sampler.draw(&logits).unwrap().id);
    }
    let text = tokenizer.decode_with_special(&said);
    assert_eq!(text, "{hm} <b></think>\ndone<|im_end|>");
}

#[test]
fn the_mask_is_in_the_first_log_prob_and_not_in_the_second() {
    let compiler = compiler();
    let constraint = Constraint::answer(Answer::Choice(vec!["h".to_owned()]));
    let guide = compiler.guide(&constraint).unwrap();
    let mut sampler = Sampler::new(&Sampling::default(), &[]).guided(Arc::new([END]), Some(guide));
    let logits = vec![0.0; 300];
    for right in [u32::from(b'h'), END] {
        let drawn = sampler.draw(&logits).unwrap();
        assert_eq!(drawn.id, right);
        assert_eq!(drawn.logprob, 0.0);
        assert!(drawn.forced);
        assert!((drawn.full_logprob + 300f32.ln()).abs() < 1e-5);
    }
    assert!(!sampler.is_complete(), "there is a token to end with");
}

#[test]
fn a_token_is_forced_where_the_form_left_no_other() {
    let compiler = compiler();
    let texts = ["yes", "yet"].map(str::to_owned).to_vec();
    let guide = compiler.guide(&Constraint::answer(Answer::Choice(texts)));
    let mut sampler =
        Sampler::new(&Sampling::default(), &[]).guided(Arc::new([END]), Some(guide.unwrap()));
    let forced: Vec<bool> = (0..4)
        .map(|place| sampler.draw(&noise(1, place)).unwrap().forced)
        .collect();
    // Only single bytes of this vocabulary spell the texts: they part at the third.
    assert_eq!(forced, [true, true, false, true]);
}

#[test]
fn what_is_drawn_and_recorded_does_not_depend_on_what_was_forced() {
    let compiler = compiler();
    let texts = ["yes", "yet"].map(str::to_owned).to_vec();
    let allowed: [&[u32]; 4] = [&[121], &[101], &[115, 116], &[END]];
    for seed in 0..20 {
        let sampling = Sampling {
            seed: Some(seed),
            ..Sampling::default()
        };
        let guide = compiler.guide(&Constraint::answer(Answer::Choice(texts.clone())));
        let mut held = Sampler::new(&sampling, &[]).guided(Arc::new([END]), Some(guide.unwrap()));
        // The same distribution without a form: what is not allowed is as good as impossible.
        let mut free = Sampler::new(&sampling, &[]);
        for (place, allowed) in allowed.into_iter().enumerate() {
            let logits = noise(seed, place);
            let mut masked = logits.clone();
            for (id, logit) in masked.iter_mut().enumerate() {
                if !allowed.contains(&(id as u32)) {
                    *logit -= 1e4;
                }
            }
            let (one, other) = (held.draw(&logits).unwrap(), free.draw(&masked).unwrap());
            assert_eq!(one.id, other.id);
            assert!((one.logprob - other.logprob).abs() < 1e-6);
            let total: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
            let full = f64::from(logits[one.id as usize]) - total.ln();
            assert!((f64::from(one.full_logprob) - full).abs() < 1e-5);
            assert_eq!((one.forced, other.forced), (allowed.len() == 1, false));
        }
    }
}

#[test]
fn a_wish_for_more_tokens_can_leave_one_as_well() {
    let compiler = compiler();
    let constraint = Constraint::answer(Answer::Regex("ab?".to_owned()));
    let forced = |min_tokens: u32| -> Vec<bool> {
        let sampling = Sampling {
            min_tokens,
            ..Sampling::default()
        };
        let guide = compiler.guide(&constraint).unwrap();
        let mut sampler = Sampler::new(&sampling, &[]).guided(Arc::new([END]), Some(guide));
        (0..2)
            .map(|place| sampler.draw(&noise(1, place)).unwrap().forced)
            .collect()
    };
    assert_eq!(forced(0), [true, false]);
    assert_eq!(forced(2), [true, true]);
}

#[test]
fn without_a_form_no_token_is_forced() {
    let sampling = Sampling {
        temperature: 0.0,
        logit_bias: [(7, 100.0)].into(),
        ..Sampling::default()
    };
    let mut sampler = Sampler::new(&sampling, &[]).guided(Arc::new([END]), None);
    let drawn = sampler.draw(&noise(1, 0)).unwrap();
    assert_eq!((drawn.id, drawn.forced), (7, false));
}

#[test]
fn what_cannot_be_enforced_is_refused_by_its_place() {
    let deep = (0..80).fold(json!({}), |inner, _| json!({"items": inner}));
    let rows = [
        (
            json!({"properties": {"a": {"not": {}}}}),
            "properties.a.not",
        ),
        (json!({"items": {"uniqueItems": true}}), "items.uniqueItems"),
        (json!({"anyOf": [{}, {"type": "int"}]}), "anyOf[1].type"),
        (json!({"anyOf": []}), "anyOf"),
        (json!({"properties": []}), "properties"),
        (json!({"properties": {"a": 3}}), "properties.a"),
        (json!({"enum": []}), "enum"),
        (json!({"$ref": "#/$defs/none"}), "$ref"),
        (json!({"$ref": "https://example.org/schema"}), "$ref"),
        (json!({"required": [1]}), "required"),
        (json!({"minItems": 5000}), "minItems"),
        (json!({"maxLength": -1}), "maxLength"),
        (json!({"x-guidance": {"lenient": true}}), "x-guidance"),
        (json!([1]), ""),
        (json!(true), ""),
    ];
    for (schema, place) in rows {
        assert_eq!(check_schema(&schema).unwrap_err().path, place, "{schema}");
    }
    assert!(check_schema(&deep).unwrap_err().reason.contains("deeper"));
    assert_eq!(
        check_schema(&json!({"uniqueItems": false, "format": "int32"})),
        Ok(())
    );
}

#[test]
fn hostile_forms_harm_nobody_else() {
    let compiler = compiler();
    let chain = |levels: usize| {
        let mut definitions = serde_json::Map::new();
        for level in 0..levels {
            let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
            definitions.insert(
                format!("d{level}"),
                json!({"type": "object", "properties": {"a": next.clone(), "b": next}, "required": ["a", "b"]}),
            );
        }
        definitions.insert(format!("d{levels}"), json!({"type": "null"}));
        json!({"$defs": definitions, "$ref": "#/$defs/d0"})
    };
    let either = json!({"anyOf": (0..40).map(|i| json!({"properties": {format!("p{i}"): {"const": i}}})).collect::<Vec<_>>()});
    let product = json!({"allOf": vec![either; 6]});
    let wide =
        json!({"enum": (0..20_000).map(|i| format!("value number {i}")).collect::<Vec<_>>()});
    let mut outcomes = Vec::new();
    for schema in [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        chain(60),
        product,
        wide,
        json!({"type": "array", "minItems": 1000, "maxItems": 100_000, "items": {"type": "array", "minItems": 1000}}),
        json!({"type": "string", "pattern": "^((a{1,900}){1,900}){1,900}$"}),
        json!({"type": "string", "pattern": "(?=x)"}),
        json!({"type": "string", "pattern": "("}),
    ] {
        let constraint = Constraint::json_schema(schema);
        outcomes.push(compiler.guide(&constraint).map(|_| ()));
    }
    outcomes.push(
        compiler
            .guide(&Constraint::answer(Answer::Regex("(a+)+b".repeat(900))))
            .map(|_| ()),
    );
    let refused = |at: usize| outcomes[at].as_ref().unwrap_err().to_string();
    for nothing in 0..3 {
        assert!(
            refused(nothing).contains("form"),
            "a schema that only refers to itself"
        );
    }
    assert!(refused(4).contains("too large") && refused(5).contains("bytes"));
    assert!(refused(8).contains("look-ahead") && refused(9).contains("unclosed"));
    // Whatever became of them, the next one is served.
    let (text, _) = write(&compiler, &Constraint::json_object(), 3, 5);
    assert!(text.starts_with('{'));
}

#[test]
fn a_grammar_is_made_once() {
    let compiler = compiler();
    let constraint = Constraint::json_object();
    compiler.guide(&constraint).unwrap();
    let all = Arc::clone(&compiler);
    // With no place left for making grammars, what is known is still served.
    all.occupy();
    assert!(compiler.guide(&constraint).is_ok());
    let other = Constraint::json_schema(json!({"type": "null"}));
    assert_eq!(compiler.guide(&other).unwrap_err(), ConstraintError::Busy);
}
