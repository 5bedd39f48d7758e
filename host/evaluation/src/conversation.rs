//! One conversation of a persona with an endpoint.

use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;
use serde_json::{Value, json};

use crate::client::{ChatClient, Reply, RequestError, RequestParams};
use crate::persona::{Persona, Phase, Reaction, Task};
use crate::scorer::{Score, score};
use crate::seeds::{Purpose, derive, request_seed};

/// Options of each conversation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConversationOptions {
    /// Seed of everything random.
    pub seed: u64,
    /// Maximum number of replies before the persona gives up. Default: 3.
    pub replies: u32,
    /// Number of first replies to sample and score; the conversation continues from the first one. More than one only
    /// makes sense for a frozen model. Default: 1.
    pub draws: u32,
    /// Number of the persona's latest corrections in earlier conversations that are put into the system message, like a
    /// client with a memory. Default: 0, no system message.
    pub memory_size: usize,
    /// `temperature` of requests. Default: none, the endpoint decides.
    pub temperature: Option<f32>,
    /// `max_tokens` of requests. Default: none, the endpoint decides.
    pub max_tokens: Option<u32>,
}

impl Default for ConversationOptions {
    fn default() -> Self {
        ConversationOptions {
            seed: 1,
            replies: 3,
            draws: 1,
            memory_size: 0,
            temperature: None,
            max_tokens: None,
        }
    }
}

/// One reply.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplyRecord {
    /// The text.
    pub text: String,
    /// `finish_reason`.
    pub finish: String,
    /// The adapter that served it, as reported by the endpoint.
    pub adapter: Option<String>,
    /// Tokens of the prompt, if the endpoint reports them.
    pub prompt_tokens: Option<u64>,
    /// Milliseconds to the first text.
    pub first_token_ms: f64,
    /// Milliseconds to the end.
    pub total_ms: f64,
}

impl ReplyRecord {
    fn new(reply: &Reply) -> ReplyRecord {
        let ms = |d: Duration| (d.as_secs_f64() * 1e4).round() / 10.0;
        ReplyRecord {
            text: reply.text.clone(),
            finish: reply.finish.clone(),
            adapter: reply.adapter.clone(),
            prompt_tokens: reply.prompt_tokens,
            first_token_ms: ms(reply.first_token),
            total_ms: ms(reply.total),
        }
    }
}

/// How a conversation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The persona was satisfied.
    Content,
    /// The persona gave up.
    GaveUp,
    /// A request failed.
    Broken,
}

/// Record of one conversation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConversationRecord {
    /// Index, from 0.
    pub index: usize,
    /// The persona's first message.
    pub opening: String,
    /// The replies in order, without the one to the closing message.
    pub replies: Vec<ReplyRecord>,
    /// The persona's message after each reply, the closing one last.
    pub reactions: Vec<String>,
    /// How it ended.
    pub ending: Ending,
    /// Score of the first reply; `None` if there was none.
    pub first: Option<Score>,
    /// Scores of the additional first replies, in the order of their seeds.
    pub draws: Vec<f64>,
    /// Errors of failed requests.
    pub failures: Vec<String>,
}

impl ConversationRecord {
    /// The reported value: the mean score of all first replies.
    pub fn value(&self) -> Option<f64> {
        let first = self.first?.value;
        let sum: f64 = first + self.draws.iter().sum::<f64>();
        Some(sum / (1 + self.draws.len()) as f64)
    }

    /// The persona's corrections: its messages without the closing one. Empty for a conversation that failed, since its
    /// last message may be either.
    pub fn corrections(&self) -> &[String] {
        match (self.ending, self.reactions.split_last()) {
            (Ending::Content | Ending::GaveUp, Some((_, corrections))) => corrections,
            _ => &[],
        }
    }
}

/// Runs conversation number `index`, with the system message `memory` if there is one.
pub(crate) async fn run_conversation(
    client: &ChatClient,
    persona: &dyn Persona,
    options: ConversationOptions,
    index: usize,
    memory: Option<&str>,
) -> ConversationRecord {
    let number = index as u64;
    let task = persona.task(options.seed, index, Phase::Talk);
    let opening = opening(&task, memory);
    let mut run = ConversationRun {
        client,
        options,
        number,
        messages: opening.clone(),
        requests: 0,
        record: ConversationRecord {
            index,
            opening: task.opening.clone(),
            replies: Vec::new(),
            reactions: Vec::new(),
            ending: Ending::Broken,
            first: None,
            draws: Vec::new(),
            failures: Vec::new(),
        },
    };
    if let Some(ending) = run.run(persona, &task).await {
        run.record.ending = ending;
    }
    sample_first_replies(&mut run, &task, &opening).await;
    run.record
}

struct ConversationRun<'a> {
    client: &'a ChatClient,
    options: ConversationOptions,
    number: u64,
    messages: Vec<Value>,
    requests: u64,
    record: ConversationRecord,
}

impl ConversationRun<'_> {
    /// Runs the conversation; `None` if a request failed.
    async fn run(&mut self, persona: &dyn Persona, task: &Task) -> Option<Ending> {
        let limit = self.options.replies.max(1);
        for turn in 1..=limit {
            let reply = self.send().await?;
            if turn == 1 {
                self.record.first = Some(score(task, &reply.text));
            }
            self.record.replies.push(ReplyRecord::new(&reply));
            let wording = derive(
                self.options.seed,
                self.number,
                Purpose::Wording,
                u64::from(turn),
            );
            let reaction = persona.react(task, &reply.text, wording, turn == limit);
            self.messages
                .push(json!({"role": "assistant", "content": reply.text}));
            self.messages.push(user(reaction.text()));
            self.record.reactions.push(reaction.text().to_owned());
            let ending = match reaction {
                Reaction::Rewrite(_) => continue,
                Reaction::Content(_) => Ending::Content,
                Reaction::GiveUp(_) => Ending::GaveUp,
            };
            // The closing message is sent too: it is the feedback on the last reply.
            self.send().await?;
            return Some(ending);
        }
        None
    }

    async fn send(&mut self) -> Option<Reply> {
        let seed = request_seed(
            self.options.seed,
            self.number,
            Purpose::Request,
            self.requests,
        );
        self.requests += 1;
        match self
            .client
            .chat(&self.messages, self.request_params(seed))
            .await
        {
            Ok(reply) => Some(reply),
            Err(error) => {
                self.record_failure(&error);
                None
            }
        }
    }

    fn request_params(&self, seed: u64) -> RequestParams {
        RequestParams {
            seed,
            temperature: self.options.temperature,
            max_tokens: self.options.max_tokens,
        }
    }

    fn record_failure(&mut self, error: &RequestError) {
        tracing::warn!(conversation = self.record.index, %error, "a request failed");
        self.record.failures.push(error.to_string());
    }
}

/// Samples additional first replies to the same opening, four requests at a time.
async fn sample_first_replies(run: &mut ConversationRun<'_>, task: &Task, opening: &[Value]) {
    let seeds: Vec<u64> = (1..u64::from(run.options.draws))
        .map(|at| request_seed(run.options.seed, run.number, Purpose::Draw, at))
        .collect();
    let replies: Vec<Result<Reply, RequestError>> = futures_util::stream::iter(seeds)
        .map(|seed| run.client.chat(opening, run.request_params(seed)))
        .buffered(4)
        .collect()
        .await;
    for reply in replies {
        match reply {
            Ok(reply) => run.record.draws.push(score(task, &reply.text).value),
            Err(error) => run.record_failure(&error),
        }
    }
}

/// The first request of a task: its opening, after the system message `memory` if there is one.
pub(crate) fn opening(task: &Task, memory: Option<&str>) -> Vec<Value> {
    let system = memory.map(|text| json!({"role": "system", "content": text}));
    system.into_iter().chain([user(&task.opening)]).collect()
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}
