//! A random model constrained to a format always produces that format.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Sampler;
use clawhost_chat::testing::byte_level;
use clawhost_chat::{ReplyParserOptions, Tokenizer, ToolCallFormat, ToolSchemas, parse_reply};
use clawhost_engine::backend::{SampleError, SamplerOutput, SamplerSpec};
use clawhost_engine::{
    CallableTool, Constraint, ConstraintError, GrammarCompiler, GrammarMatcher, ResponseFormat,
    SamplingParams, check_schema,
};

/// The EOS token of [`byte_level`].
const END: u32 = 262;

fn compiler() -> Arc<GrammarCompiler> {
    compiler_for(ToolCallFormat::Hermes)
}

fn compiler_for(calls: ToolCallFormat) -> Arc<GrammarCompiler> {
    let tokenizer: Arc<Tokenizer> = Arc::new(byte_level());
    Arc::new(GrammarCompiler::new(tokenizer, 300, Arc::new([END]), calls))
}

/// A sampler with the grammar that constrains it, as the engine uses them.
struct Constrained {
    sampler: Sampler,
    grammar: Option<GrammarMatcher>,
    eos_token_ids: Arc<[u32]>,
}

impl Constrained {
    fn new(sampling: &SamplingParams, eos: &[u32], grammar: Option<GrammarMatcher>) -> Self {
        let eos_token_ids: Arc<[u32]> = eos.into();
        let sampler = Sampler::new(SamplerSpec {
            params: sampling.clone(),
            seed: sampling.seed.unwrap_or(1),
            prompt: Arc::new([]),
            eos_token_ids: Arc::clone(&eos_token_ids),
            banned: Vec::new(),
            recorded: None,
        });
        Self {
            sampler,
            grammar,
            eos_token_ids,
        }
    }

    fn sample(&mut self, logits: &[f32]) -> Result<SamplerOutput, SampleError> {
        let grammar = self.grammar.as_mut();
        let mask = grammar.map(|grammar| grammar.allowed_tokens(&self.eos_token_ids));
        let sampled = self.sampler.sample(logits, mask.transpose()?.as_ref())?;
        self.sampler.accept(sampled.id);
        if let Some(grammar) = &mut self.grammar {
            grammar.accept_token(sampled.id)?;
        }
        Ok(sampled)
    }

    fn is_complete(&self) -> bool {
        let complete = self
            .grammar
            .as_ref()
            .is_some_and(GrammarMatcher::is_complete);
        complete && self.eos_token_ids.is_empty()
    }
}

/// Pseudo-random logits, different at each step.
fn noise(seed: u64, step: usize) -> Vec<f32> {
    (0..300)
        .map(|id| ((id as f32 + 1.7) * (step as f32 + 0.3) + seed as f32).sin() * 3.0)
        .collect()
}

/// Samples until the output is complete. Returns the text, and whether it ended by itself.
fn generate(
    compiler: &Arc<GrammarCompiler>,
    constraint: &Constraint,
    seed: u64,
    max_tokens: usize,
) -> (String, bool) {
    let sampling = SamplingParams {
        seed: Some(seed),
        ..SamplingParams::default()
    };
    let grammar = compiler.matcher(constraint).unwrap();
    let mut sampler = Constrained::new(&sampling, &[END], Some(grammar));
    let mut ids = Vec::new();
    for step in 0..max_tokens {
        let sampled = sampler.sample(&noise(seed, step)).unwrap();
        if sampled.id == END {
            return (compiler_text(&ids), true);
        }
        ids.push(sampled.id);
    }
    (compiler_text(&ids), false)
}

fn compiler_text(ids: &[u32]) -> String {
    byte_level().decode_with_special(ids)
}

fn assert_always(schema: Value, valid: fn(&Value) -> bool) {
    let compiler = compiler();
    let constraint = Constraint::json_schema(schema.clone());
    for seed in 0..12 {
        let (text, ended) = generate(&compiler, &constraint, seed, 2_000);
        assert!(ended, "{schema}: {text}");
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{schema}: {error}: {text}"));
        assert!(valid(&value), "{schema}: {text}");
    }
}

fn is_short(value: &Value, max_tokens: usize) -> bool {
    value
        .as_str()
        .is_some_and(|text| text.chars().count() <= max_tokens)
}

#[test]
fn objects_have_required_properties_and_no_others() {
    assert_always(
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
            known && is_short(&value["name"], 8) && (3..=120).contains(&age)
        },
    );
}

#[test]
fn arrays_respect_item_counts_and_enums() {
    assert_always(
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
fn references_recursion_and_any_of_are_enforced() {
    assert_always(
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
fn numbers_patterns_and_formats_are_enforced() {
    assert_always(
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
fn texts_match_a_choice_or_a_regex() {
    let compiler = compiler();
    let texts = ["yes", "no, \"never\"", "größer 🦀"].map(str::to_owned);
    let choice = Constraint::response_format(ResponseFormat::Choice(texts.to_vec()));
    let regex = Constraint::response_format(ResponseFormat::Regex(r"[a-c]{3}/\d\d".to_owned()));
    let mut seen = std::collections::HashSet::new();
    for seed in 0..12 {
        let (text, ended) = generate(&compiler, &choice, seed, 100);
        assert!(ended && texts.contains(&text), "{text}");
        seen.insert(text);
        let (text, ended) = generate(&compiler, &regex, seed, 100);
        let (letters, digits) = text.split_once('/').unwrap();
        assert!(
            ended && letters.len() == 3 && digits.chars().count() == 2,
            "{text}"
        );
    }
    assert!(seen.len() > 1, "the model chooses among the allowed texts");
}

#[test]
fn tool_calls_have_valid_arguments_in_every_tool_call_format() {
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
        CallableTool {
            name: "look".to_owned(),
            parameters: Some(look.clone()),
        },
        CallableTool {
            name: "wait".to_owned(),
            parameters: Some(json!({"additionalProperties": false})),
        },
    ];
    let offered: Vec<clawhost_chat::Tool> = serde_json::from_value(json!([
        {"function": {"name": "look", "parameters": look}},
        {"function": {"name": "wait"}},
    ]))
    .unwrap();
    for format in [
        ToolCallFormat::Hermes,
        ToolCallFormat::QwenXml,
        ToolCallFormat::Llama,
    ] {
        let compiler = compiler_for(format);
        for (most, seed) in (0..16).map(|seed| (1 + seed % 2 * 2, seed)) {
            let constraint = Constraint::tool_calls(tools.clone(), most);
            let (text, ended) = generate(&compiler, &constraint, u64::from(seed), 2_000);
            assert!(ended, "{text}");
            let style = ReplyParserOptions {
                calls: format,
                ..ReplyParserOptions::default()
            };
            let reply = parse_reply(
                &text,
                style,
                &Arc::new(ToolSchemas::from_definitions(&offered)),
            );
            assert!(reply.malformed.is_empty(), "{format:?}: {text}");
            assert!(reply.content.is_empty(), "{format:?}: {text}");
            let calls = reply.tool_calls;
            assert!(
                (1..=most as usize).contains(&calls.len()),
                "{format:?}: {text}"
            );
            for call in calls {
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                match call.name.as_str() {
                    "look" => {
                        let side = arguments["where"].as_str().unwrap();
                        assert!(["here", "there"].contains(&side) && arguments["far"].is_boolean());
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
fn reasoning_before_the_constraint_is_free() {
    let compiler = compiler();
    let constraint = Constraint {
        after_reasoning: true,
        ..Constraint::response_format(ResponseFormat::Choice(vec!["done".to_owned()]))
    };
    let grammar = compiler.matcher(&constraint).unwrap();
    let tokenizer = byte_level();
    let sampling = SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    };
    let mut sampler = Constrained::new(&sampling, &[END], Some(grammar));
    let mut ids = Vec::new();
    // The model prefers this, and then only `!`; 264 is `</think>` as one token.
    let mut wanted = tokenizer.encode("{hm} <b>").unwrap();
    wanted.push(264);
    wanted.push(u32::from(b'\n'));
    for step in 0..wanted.len() + 5 {
        let mut logits = vec![0.0; 300];
        let want = wanted.get(step).copied().unwrap_or(u32::from(b'!'));
        logits[want as usize] = 5.0;
        // Among allowed tokens it prefers letters to further line breaks.
        (b'a'..=b'z').for_each(|letter| logits[usize::from(letter)] += 1.0);
        ids.push(sampler.sample(&logits).unwrap().id);
    }
    let text = tokenizer.decode_with_special(&ids);
    assert_eq!(text, "{hm} <b></think>\ndone<|im_end|>");
}

#[test]
fn bitmask_affects_logprob_and_not_full_logprob() {
    let compiler = compiler();
    let constraint = Constraint::response_format(ResponseFormat::Choice(vec!["h".to_owned()]));
    let grammar = compiler.matcher(&constraint).unwrap();
    let mut sampler = Constrained::new(&SamplingParams::default(), &[END], Some(grammar));
    let logits = vec![0.0; 300];
    for right in [u32::from(b'h'), END] {
        let sampled = sampler.sample(&logits).unwrap();
        assert_eq!(sampled.id, right);
        assert_eq!(sampled.logprob, 0.0);
        assert!(sampled.forced);
        assert!((sampled.full_logprob + 300f32.ln()).abs() < 1e-5);
    }
    assert!(!sampler.is_complete(), "EOS remains to end the reply");
}

#[test]
fn token_is_forced_where_the_grammar_allows_no_other() {
    let compiler = compiler();
    let texts = ["yes", "yet"].map(str::to_owned).to_vec();
    let grammar = compiler.matcher(&Constraint::response_format(ResponseFormat::Choice(texts)));
    let mut sampler = Constrained::new(&SamplingParams::default(), &[END], Some(grammar.unwrap()));
    let forced: Vec<bool> = (0..4)
        .map(|step| sampler.sample(&noise(1, step)).unwrap().forced)
        .collect();
    // The texts tokenize to single bytes and differ at the third.
    assert_eq!(forced, [true, true, false, true]);
}

#[test]
fn forced_tokens_do_not_change_samples_or_logprobs() {
    let compiler = compiler();
    let texts = ["yes", "yet"].map(str::to_owned).to_vec();
    let allowed: [&[u32]; 4] = [&[121], &[101], &[115, 116], &[END]];
    for seed in 0..20 {
        let sampling = SamplingParams {
            seed: Some(seed),
            ..SamplingParams::default()
        };
        let grammar = compiler.matcher(&Constraint::response_format(ResponseFormat::Choice(
            texts.clone(),
        )));
        let mut constrained = Constrained::new(&sampling, &[END], Some(grammar.unwrap()));
        // The same distribution without a grammar: disallowed tokens are practically impossible.
        let mut free = Constrained::new(&sampling, &[], None);
        for (step, allowed) in allowed.into_iter().enumerate() {
            let logits = noise(seed, step);
            let mut masked = logits.clone();
            for (id, logit) in masked.iter_mut().enumerate() {
                if !allowed.contains(&(id as u32)) {
                    *logit -= 1e4;
                }
            }
            let (one, other) = (
                constrained.sample(&logits).unwrap(),
                free.sample(&masked).unwrap(),
            );
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
fn min_tokens_can_force_a_token() {
    let compiler = compiler();
    let constraint = Constraint::response_format(ResponseFormat::Regex("ab?".to_owned()));
    let forced = |min_tokens: u32| -> Vec<bool> {
        let sampling = SamplingParams {
            min_tokens,
            ..SamplingParams::default()
        };
        let grammar = compiler.matcher(&constraint).unwrap();
        let mut sampler = Constrained::new(&sampling, &[END], Some(grammar));
        (0..2)
            .map(|step| sampler.sample(&noise(1, step)).unwrap().forced)
            .collect()
    };
    assert_eq!(forced(0), [true, false]);
    assert_eq!(forced(2), [true, true]);
}

#[test]
fn no_token_is_forced_without_a_constraint() {
    let sampling = SamplingParams {
        temperature: 0.0,
        logit_bias: [(7, 100.0)].into(),
        ..SamplingParams::default()
    };
    let mut sampler = Constrained::new(&sampling, &[END], None);
    let sampled = sampler.sample(&noise(1, 0)).unwrap();
    assert_eq!((sampled.id, sampled.forced), (7, false));
}

#[test]
fn schema_errors_name_their_location() {
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
    for (schema, path) in rows {
        assert_eq!(check_schema(&schema).unwrap_err().path, path, "{schema}");
    }
    assert!(check_schema(&deep).unwrap_err().reason.contains("deeper"));
    assert_eq!(
        check_schema(&json!({"uniqueItems": false, "format": "int32"})),
        Ok(())
    );
}

#[test]
fn hostile_schemas_do_not_affect_later_requests() {
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
        outcomes.push(compiler.matcher(&constraint).map(|_| ()));
    }
    outcomes.push(
        compiler
            .matcher(&Constraint::response_format(ResponseFormat::Regex(
                "(a+)+b".repeat(900),
            )))
            .map(|_| ()),
    );
    let error = |at: usize| outcomes[at].as_ref().unwrap_err().to_string();
    for nothing in 0..3 {
        assert!(
            error(nothing).contains("format"),
            "a schema that only references itself"
        );
    }
    assert!(error(4).contains("too large") && error(5).contains("bytes"));
    assert!(error(8).contains("look-ahead") && error(9).contains("unclosed"));
    // The next constraint still compiles.
    let (text, _) = generate(&compiler, &Constraint::json_object(), 3, 5);
    assert!(text.starts_with('{'));
}

#[test]
fn compiled_grammars_are_cached() {
    let compiler = compiler();
    let constraint = Constraint::json_object();
    compiler.matcher(&constraint).unwrap();
    let all = Arc::clone(&compiler);
    // With all compile slots occupied, cached grammars are still available.
    all.occupy_all_slots();
    assert!(compiler.matcher(&constraint).is_ok());
    let other = Constraint::json_schema(json!({"type": "null"}));
    assert_eq!(compiler.matcher(&other).unwrap_err(), ConstraintError::Busy);
}
