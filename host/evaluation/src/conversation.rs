//! One conversation of a persona with an endpoint, and its record.

use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;
use serde_json::{Value, json};

use crate::client::{Asking, ChatClient, Reply, RequestError};
use crate::persona::{Persona, Reaction, Task};
use crate::scorer::{Score, score};
use crate::seeds::{Purpose, derive, request_seed};

/// How each conversation is held.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Manner {
    /// Everything random follows from it.
    pub seed: u64,
    /// How many replies the persona reads before it gives up. Default: 3.
    pub replies: u32,
    /// How many first replies to the opening are scored; the conversation goes on from the first of
    /// them. More than one only makes sense for a policy that does not learn. Default: 1.
    pub draws: u32,
    /// How many of the persona's latest corrections of earlier conversations are put into a system message
    /// of each new one, as a client with a memory does. Default: 0, no system message.
    pub remembered: usize,
    /// The `temperature` of requests. Default: none, the endpoint decides.
    pub temperature: Option<f32>,
    /// The `max_tokens` of requests. Default: none, the endpoint decides.
    pub max_tokens: Option<u32>,
}

impl Default for Manner {
    fn default() -> Self {
        Manner {
            seed: 1,
            replies: 3,
            draws: 1,
            remembered: 0,
            temperature: None,
            max_tokens: None,
        }
    }
}

/// One reply of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplyRecord {
    /// The text.
    pub text: String,
    /// `finish_reason`.
    pub finish: String,
    /// The adapter that served it, as the endpoint named it.
    pub adapter: Option<String>,
    /// Milliseconds to the first text.
    pub first_token_ms: f64,
    /// Milliseconds to the end.
    pub total_ms: f64,
}

impl ReplyRecord {
    fn of(reply: &Reply) -> ReplyRecord {
        let ms = |d: Duration| (d.as_secs_f64() * 1e4).round() / 10.0;
        ReplyRecord {
            text: reply.text.clone(),
            finish: reply.finish.clone(),
            adapter: reply.adapter.clone(),
            first_token_ms: ms(reply.first_token),
            total_ms: ms(reply.total),
        }
    }
}

/// How a conversation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The persona got what it wanted.
    Content,
    /// It asked often enough.
    GaveUp,
    /// A request failed.
    Broken,
}

/// What happened in one conversation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConversationRecord {
    /// Its number, from 0.
    pub index: usize,
    /// What the persona opened with.
    pub opening: String,
    /// The replies in order, without the one to the closing words.
    pub replies: Vec<ReplyRecord>,
    /// The persona's words after each reply, the closing ones last.
    pub reactions: Vec<String>,
    /// How it ended.
    pub ending: Ending,
    /// The score of the first reply; `None` when it never came.
    pub first: Option<Score>,
    /// The scores of the further first replies that were drawn, in the order of their seeds.
    pub draws: Vec<f64>,
    /// Messages of the requests that failed.
    pub failures: Vec<String>,
}

impl ConversationRecord {
    /// What the report counts: the mean score of all first replies to the opening.
    pub fn value(&self) -> Option<f64> {
        let first = self.first?.value;
        let sum: f64 = first + self.draws.iter().sum::<f64>();
        Some(sum / (1 + self.draws.len()) as f64)
    }

    /// What the persona asked to have otherwise: its reactions without the closing words. Nothing of a
    /// conversation that broke off, of which nobody can tell whether it was closing.
    pub fn corrections(&self) -> &[String] {
        match (self.ending, self.reactions.split_last()) {
            (Ending::Content | Ending::GaveUp, Some((_, corrections))) => corrections,
            _ => &[],
        }
    }
}

/// Holds conversation number `index`, below the system message `memory` where there is one.
pub(crate) async fn hold(
    client: &ChatClient,
    persona: &dyn Persona,
    manner: Manner,
    index: usize,
    memory: Option<&str>,
) -> ConversationRecord {
    let number = index as u64;
    let task = persona.begin(
        derive(manner.seed, number, Purpose::Task, 0),
        derive(manner.seed, number, Purpose::Wording, 0),
    );
    let system = memory.map(|text| json!({"role": "system", "content": text}));
    let opening: Vec<Value> = system.into_iter().chain([user(&task.opening)]).collect();
    let mut talk = Talk {
        client,
        manner,
        number,
        messages: opening.clone(),
        asked: 0,
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
    if let Some(ending) = talk.run(persona, &task).await {
        talk.record.ending = ending;
    }
    draw_more(&mut talk, &task, &opening).await;
    talk.record
}

struct Talk<'a> {
    client: &'a ChatClient,
    manner: Manner,
    number: u64,
    messages: Vec<Value>,
    asked: u64,
    record: ConversationRecord,
}

impl Talk<'_> {
    /// The conversation proper; `None` when a request failed.
    async fn run(&mut self, persona: &dyn Persona, task: &Task) -> Option<Ending> {
        let limit = self.manner.replies.max(1);
        for turn in 1..=limit {
            let reply = self.ask().await?;
            if turn == 1 {
                self.record.first = Some(score(task, &reply.text));
            }
            self.record.replies.push(ReplyRecord::of(&reply));
            let wording = derive(
                self.manner.seed,
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
                Reaction::GivesUp(_) => Ending::GaveUp,
            };
            // The closing words are sent too: without them nobody would learn how it was received.
            self.ask().await?;
            return Some(ending);
        }
        None
    }

    async fn ask(&mut self) -> Option<Reply> {
        let seed = request_seed(self.manner.seed, self.number, Purpose::Request, self.asked);
        self.asked += 1;
        match self.client.chat(&self.messages, self.asking(seed)).await {
            Ok(reply) => Some(reply),
            Err(error) => {
                self.failed(&error);
                None
            }
        }
    }

    fn asking(&self, seed: u64) -> Asking {
        Asking {
            seed,
            temperature: self.manner.temperature,
            max_tokens: self.manner.max_tokens,
        }
    }

    fn failed(&mut self, error: &RequestError) {
        tracing::warn!(conversation = self.record.index, %error, "a request failed");
        self.record.failures.push(error.to_string());
    }
}

/// Further first replies to the same opening, four requests at a time.
async fn draw_more(talk: &mut Talk<'_>, task: &Task, opening: &[Value]) {
    let seeds: Vec<u64> = (1..u64::from(talk.manner.draws))
        .map(|at| request_seed(talk.manner.seed, talk.number, Purpose::Draw, at))
        .collect();
    let replies: Vec<Result<Reply, RequestError>> = futures_util::stream::iter(seeds)
        .map(|seed| talk.client.chat(opening, talk.asking(seed)))
        .buffered(4)
        .collect()
        .await;
    for reply in replies {
        match reply {
            Ok(reply) => talk.record.draws.push(score(task, &reply.text).value),
            Err(error) => talk.failed(&error),
        }
    }
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}
