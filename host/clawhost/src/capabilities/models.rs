//! The models that plugins can ask, by alias.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clawhost_chat::{ChatInput, ReplyParserOptions, Tool, ToolSchemas, parse_reply};
use clawhost_config::{LocalModel, ModelAlias};
use clawhost_engine::{
    CallableTool, Constraint, Engine, Event, FinishReason, GenerateRequest, Generation,
    LoadedVersion, Priority, SamplingParams, Sequence, SubmitError, ToolCallConstraint,
    check_schema,
};
use clawhost_plugins::{
    Answer, Message, ModelChoice, ModelClient, ModelError, ModelFinish, ModelRequest,
    ModelResponse, Role, ToolSpec,
};

use super::external::External;

/// Models by alias. `policy` is always there; `judge` and `teacher` are the reference unless the
/// configuration says otherwise.
pub(crate) struct Models {
    engine: Engine,
    aliases: BTreeMap<String, Backend>,
}

#[derive(Clone)]
enum Backend {
    Served(LocalModel),
    External(Arc<External>),
}

impl Models {
    /// Reads the aliases.
    ///
    /// # Errors
    /// An alias that says nothing or two things, a key whose variable is not set.
    pub(crate) fn new(engine: Engine, configured: &BTreeMap<String, ModelAlias>) -> Result<Models> {
        let mut aliases = BTreeMap::from([
            ("policy".to_owned(), Backend::Served(LocalModel::Policy)),
            ("judge".to_owned(), Backend::Served(LocalModel::Reference)),
            ("teacher".to_owned(), Backend::Served(LocalModel::Reference)),
        ]);
        for (alias, section) in configured {
            section.validate(alias)?;
            let backend = match (&section.source, &section.url) {
                (Some(which), None) => Backend::Served(*which),
                (None, Some(url)) => {
                    let key = section
                        .api_key
                        .as_ref()
                        .map(|key| {
                            key.read()
                                .with_context(|| format!("models.{alias}.api_key"))
                        })
                        .transpose()?;
                    let model = section.model.as_deref().unwrap_or(alias);
                    let timeout = section.timeout();
                    let external = External::new(url, model, key, timeout, section.logprobs);
                    Backend::External(Arc::new(external))
                }
                _ => unreachable!("a valid alias has either a source or a url"),
            };
            aliases.insert(alias.clone(), backend);
        }
        Ok(Models { engine, aliases })
    }

    fn backend(&self, alias: &str) -> Result<Backend, ModelError> {
        self.aliases
            .get(alias)
            .cloned()
            .ok_or_else(|| ModelError::Denied(alias.to_owned()))
    }
}

impl ModelClient for Models {
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>> {
        let backend = self.backend(&request.model);
        let engine = self.engine.clone();
        Box::pin(async move {
            match backend? {
                Backend::External(endpoint) => endpoint.complete(&request).await,
                Backend::Served(which) => complete(engine, which, request).await,
            }
        })
    }

    fn score(
        &self,
        model: String,
        messages: Vec<Message>,
        completion: String,
    ) -> Answer<Result<Vec<f32>, ModelError>> {
        let backend = self.backend(&model);
        let engine = self.engine.clone();
        Box::pin(async move {
            match backend? {
                Backend::External(_) => Err(ModelError::Rejected(format!(
                    "{model} is an external endpoint, which cannot score; name a served model"
                ))),
                Backend::Served(which) => {
                    let wanted = Wanted::default();
                    let still_wanted = wanted.0.clone();
                    blocking(move || score(&engine, which, &messages, &completion, &still_wanted))
                        .await
                }
            }
        })
    }

    fn count(
        &self,
        model: String,
        messages: Vec<Message>,
        tools: Vec<ToolSpec>,
        completion: String,
    ) -> Answer<Result<Option<u64>, ModelError>> {
        let backend = self.backend(&model);
        let engine = self.engine.clone();
        Box::pin(async move {
            match backend? {
                Backend::External(_) => Ok(None),
                Backend::Served(_) => {
                    blocking(move || {
                        let (_, prompt) = render(&engine, &messages, &chat_tools(&tools))?;
                        let reply = encode(&engine, &completion)?;
                        Ok(Some((prompt.len() + reply.len()) as u64))
                    })
                    .await
                }
            }
        })
    }
}

/// Runs work that takes long off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ModelError> + Send + 'static,
) -> Result<T, ModelError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(ModelError::Unavailable(error.to_string())))
}

/// Says to work on another thread, when it is dropped, that nobody waits for it any more.
struct Wanted(Arc<AtomicBool>);

impl Default for Wanted {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The tokens of a text.
fn encode(engine: &Engine, text: &str) -> Result<Vec<u32>, ModelError> {
    let encoded = engine.tokenizer().encode(text);
    encoded.map_err(|error| ModelError::Rejected(error.to_string()))
}

/// The weights that an alias means at this moment.
fn weights(engine: &Engine, which: LocalModel) -> LoadedVersion {
    match which {
        LocalModel::Policy => engine.active(),
        LocalModel::Reference => LoadedVersion::base(engine.model()),
    }
}

/// The tools as the chat template renders them.
fn chat_tools(tools: &[ToolSpec]) -> Vec<Tool> {
    let tools = tools.iter().map(|tool| {
        serde_json::from_value(tool.to_openai()).expect("a tool of a plugin is one of OpenAI's")
    });
    tools.collect()
}

/// The prompt's text and tokens.
fn render(
    engine: &Engine,
    messages: &[Message],
    tools: &[Tool],
) -> Result<(String, Vec<u32>), ModelError> {
    let messages = messages
        .iter()
        .map(|message| serde_json::from_value(message.to_openai()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| ModelError::Rejected(error.to_string()))?;
    let text = engine
        .template()
        .render(&ChatInput {
            messages: &messages,
            tools,
            add_generation_prompt: true,
            extra: None,
        })
        .map_err(|error| ModelError::Rejected(error.to_string()))?;
    let ids = encode(engine, &text)?;
    Ok((text, ids))
}

async fn complete(
    engine: Engine,
    which: LocalModel,
    request: ModelRequest,
) -> Result<ModelResponse, ModelError> {
    let (reading, generations) = blocking(move || begin(&engine, which, &request)).await?;
    let mut response = ModelResponse {
        choices: Vec::new(),
        prompt_tokens: 0,
        completion_tokens: 0,
    };
    for generation in generations {
        let (choice, prompt, completion) = finish(generation, &reading).await?;
        response.choices.push(choice);
        response.prompt_tokens = prompt;
        response.completion_tokens += completion;
    }
    Ok(response)
}

/// What replies to a prompt are read with.
struct Reading {
    style: ReplyParserOptions,
    tools: Arc<ToolSchemas>,
}

/// All choices, or none: dropping a generation cancels it.
fn begin(
    engine: &Engine,
    which: LocalModel,
    request: &ModelRequest,
) -> Result<(Reading, Vec<Generation>), ModelError> {
    let tools = chat_tools(&request.tools);
    let (text, prompt) = render(engine, &request.messages, &tools)?;
    let served = weights(engine, which);
    let style = engine
        .reply_format()
        .parser_options(&text, !tools.is_empty());
    let constraint = constraint(request, style.in_reasoning)?;
    let generations = (0..request.n)
        .map(|choice| {
            engine.generate(GenerateRequest {
                prompt: prompt.clone(),
                sampling: SamplingParams {
                    temperature: request.temperature,
                    top_p: request.top_p,
                    max_tokens: request.max_tokens,
                    stop: request.stop.clone(),
                    // Votes differ, and the same request gives the same votes again.
                    seed: request
                        .seed
                        .map(|seed| seed.wrapping_add(u64::from(choice))),
                    constraint: constraint.clone(),
                    ..SamplingParams::default()
                },
                version: served.clone(),
                priority: Priority::Judge,
                user: None,
            })
        })
        .collect::<Result<_, _>>()
        .map_err(|refused| match refused {
            SubmitError::Busy { .. }
            | SubmitError::ShuttingDown
            | SubmitError::Unavailable(_)
            | SubmitError::Overloaded { .. } => ModelError::Unavailable(refused.to_string()),
            other => ModelError::Rejected(other.to_string()),
        })?;
    let reading = Reading {
        style,
        tools: Arc::new(ToolSchemas::from_definitions(&tools)),
    };
    Ok((reading, generations))
}

/// What holds the reply to the schema that the plugin gives, behind any thoughts. With tools the reply may be a call
/// instead.
fn constraint(
    request: &ModelRequest,
    after_reasoning: bool,
) -> Result<Option<Constraint>, ModelError> {
    let Some(schema) = &request.schema else {
        return Ok(None);
    };
    let schema = serde_json::from_str(schema)
        .map_err(|error| ModelError::Rejected(format!("the schema is no JSON: {error}")))?;
    let tools = request.tools.iter().map(|tool| {
        // A tool whose parameters are no schema can be called with any arguments.
        let parameters = serde_json::from_str(&tool.parameters).ok();
        CallableTool {
            name: tool.name.clone(),
            parameters: parameters.filter(|schema| check_schema(schema).is_ok()),
        }
    });
    let calls = (!request.tools.is_empty()).then(|| ToolCallConstraint {
        tools: tools.collect(),
        most: 1,
    });
    Ok(Some(Constraint {
        calls,
        after_reasoning,
        ..Constraint::json_schema(schema)
    }))
}

async fn finish(
    mut generation: Generation,
    reading: &Reading,
) -> Result<(ModelChoice, u64, u64), ModelError> {
    let mut text = String::new();
    let mut logprob = 0.0;
    loop {
        match generation.next().await {
            Some(Event::Token(token)) => {
                text.push_str(&token.text);
                logprob += f64::from(token.model_logprob);
            }
            Some(Event::Finished(end)) => {
                text.push_str(&end.text);
                let reply = parse_reply(&text, reading.style, &reading.tools);
                let calls = reply.has_complete_calls();
                let mut message = Message::text(Role::Assistant, reply.content);
                for (index, call) in reply.tool_calls.into_iter().enumerate() {
                    message.push_call(format!("call_{index}"), call.name, call.arguments);
                }
                let choice = ModelChoice {
                    message,
                    finish: match end.reason {
                        FinishReason::Stop if calls => ModelFinish::ToolCalls,
                        FinishReason::Stop => ModelFinish::Stop,
                        FinishReason::Length => ModelFinish::Length,
                    },
                    // Unknown where another server generates and does not tell it.
                    logprob: logprob.is_finite().then_some(logprob),
                };
                return Ok((
                    choice,
                    end.prompt_tokens as u64,
                    end.completion_tokens as u64,
                ));
            }
            Some(Event::Failed(reason)) => return Err(ModelError::Unavailable(reason)),
            None => return Err(ModelError::Unavailable("the engine has stopped".to_owned())),
        }
    }
}

fn score(
    engine: &Engine,
    which: LocalModel,
    messages: &[Message],
    completion: &str,
    wanted: &AtomicBool,
) -> Result<Vec<f32>, ModelError> {
    let (_, mut tokens) = render(engine, messages, &[])?;
    let rejected = |error: String| ModelError::Rejected(error);
    let start = tokens.len();
    let reply = encode(engine, completion)?;
    if reply.is_empty() || start == 0 {
        return Err(rejected("there is nothing to score".to_owned()));
    }
    tokens.extend(reply);
    if tokens.len() > engine.context() {
        return Err(rejected(format!(
            "{} tokens, but the context holds {}",
            tokens.len(),
            engine.context()
        )));
    }
    if !wanted.load(Ordering::Relaxed) {
        return Err(ModelError::Timeout);
    }
    let served = weights(engine, which);
    let sequence = Sequence {
        tokens: &tokens,
        start,
        temperature: 1.0,
        candidates: clawhost_engine::Candidates::None,
    };
    let scored = engine.score(&served, &[sequence]);
    let mut scored = scored.map_err(|error| rejected(error.to_string()))?;
    Ok(scored.remove(0).logprobs)
}

#[cfg(test)]
mod tests {
    use clawhost_engine::EngineOptions;
    use clawhost_model::ModelFiles;

    use super::*;
    use serde_json::Value;

    fn ask(model: &str) -> ModelRequest {
        ModelRequest {
            model: model.into(),
            messages: vec![Message::text(Role::User, "What is 3 + 4?")],
            tools: Vec::new(),
            n: 3,
            temperature: 0.8,
            top_p: 1.0,
            max_tokens: 12,
            stop: Vec::new(),
            seed: Some(7),
            schema: None,
        }
    }

    fn models(text: &str) -> Result<Models> {
        let engine =
            clawhost_cpu::load_engine(&ModelFiles::embedded(), EngineOptions::default()).unwrap();
        Models::new(engine, &toml::from_str(text).unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn served_models_vote_and_score_the_same_each_time() {
        let models = models("").unwrap();
        let first = models.complete(ask("judge")).await.unwrap();
        let again = models.complete(ask("judge")).await.unwrap();
        let said = |response: &ModelResponse| -> Vec<String> {
            let texts = response.choices.iter().map(|c| c.message.visible_text());
            texts.collect()
        };
        assert_eq!(said(&first), said(&again));
        assert_eq!(first.choices.len(), 3);
        assert!(first.prompt_tokens > 5 && first.completion_tokens > 3);
        let messages = ask("judge").messages;
        let good = models
            .score("policy".into(), messages.clone(), "3 + 4 = 7".into())
            .await
            .unwrap();
        let bad = models
            .score("policy".into(), messages, "zebra zebra".into())
            .await
            .unwrap();
        let mean = |all: &[f32]| all.iter().sum::<f32>() / all.len() as f32;
        assert!(mean(&good) > mean(&bad), "{good:?} {bad:?}");
        // What is charged before is what is read.
        let count = async |completion: &str| {
            let messages = ask("judge").messages;
            let counted = models.count("judge".into(), messages, Vec::new(), completion.into());
            counted.await.unwrap().unwrap()
        };
        let prompt = count("").await;
        assert_eq!(prompt, first.prompt_tokens);
        assert_eq!(count("3 + 4 = 7").await, prompt + good.len() as u64);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_cannot_be_asked_is_said() {
        let models = models("").unwrap();
        let unknown = models.complete(ask("gpt")).await;
        assert_eq!(unknown, Err(ModelError::Denied("gpt".into())));
        let mut schema = ask("policy");
        schema.schema = Some(r#"{"not": {}}"#.into());
        assert!(matches!(
            models.complete(schema).await,
            Err(ModelError::Rejected(_))
        ));
        let mut long = ask("policy");
        long.messages = vec![Message::text(Role::User, "word ".repeat(100_000))];
        assert!(matches!(
            models.complete(long).await,
            Err(ModelError::Rejected(_))
        ));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_served_model_answers_in_the_form_of_a_schema() {
        let models = models("").unwrap();
        let mut held = ask("judge");
        held.max_tokens = 64;
        held.schema = Some(r#"{"type": "object", "properties": {"good": {"type": "boolean"}}, "required": ["good"], "additionalProperties": false}"#.into());
        let response = models.complete(held).await.unwrap();
        assert_eq!(response.choices.len(), 3);
        for choice in &response.choices {
            let value: Value = serde_json::from_str(&choice.message.visible_text()).unwrap();
            assert!(value["good"].is_boolean());
            assert_eq!(value.as_object().unwrap().len(), 1);
        }
    }

    #[test]
    fn an_alias_is_one_thing() {
        assert!(models("[judge]\nsource = \"policy\"").is_ok());
        assert!(models("[judge]\nurl = \"http://127.0.0.1:1/v1\"").is_ok());
        for wrong in [
            "[judge]",
            "[judge]\nsource = \"policy\"\nurl = \"http://127.0.0.1:1/v1\"",
            "[judge]\nsource = \"policy\"\nmodel = \"x\"",
            "[judge]\nurl = \"http://127.0.0.1:1/v1\"\napi_key = \"env:NO_SUCH_KEY_IS_SET\"",
        ] {
            assert!(models(wrong).is_err(), "{wrong}");
        }
    }
}
