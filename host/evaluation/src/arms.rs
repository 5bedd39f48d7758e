//! An arm: many conversations of a persona with one endpoint, several at a time.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;

use crate::client::ChatClient;
use crate::conversation::{ConversationOptions, ConversationRecord, run_conversation};
use crate::idle::{Health, WaitError, WaitOptions, wait_until_idle};
use crate::persona::Persona;

/// Options of an arm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArmOptions {
    /// Number of conversations. Default: 60.
    pub conversations: usize,
    /// Concurrent conversations, which form a round. Default: 4.
    pub concurrency: usize,
    /// Options of each conversation.
    pub conversation: ConversationOptions,
    /// Waiting between rounds until the endpoint has finished training.
    pub wait: WaitOptions,
}

impl Default for ArmOptions {
    fn default() -> Self {
        ArmOptions {
            conversations: 60,
            concurrency: 4,
            conversation: ConversationOptions::default(),
            wait: WaitOptions::default(),
        }
    }
}

/// Record of an arm.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArmRecord {
    /// Name of the arm in the report.
    pub name: String,
    /// The conversations, by index.
    pub conversations: Vec<ConversationRecord>,
    /// Training steps that the endpoint reported between start and end.
    pub steps: u64,
    /// Wall time of the arm in seconds.
    pub seconds: f64,
    /// Seconds spent waiting between rounds.
    pub waited_seconds: f64,
}

impl ArmRecord {
    /// One value per conversation that has a first reply.
    pub fn values(&self) -> Vec<f64> {
        self.conversations
            .iter()
            .filter_map(ConversationRecord::value)
            .collect()
    }

    /// One entry per conversation, by index: its value, or None without a first reply.
    pub fn curve(&self) -> Vec<Option<f64>> {
        let ends = self.conversations.iter().map(|c| c.index + 1);
        let mut curve = vec![None; ends.max().unwrap_or(0)];
        for conversation in &self.conversations {
            curve[conversation.index] = conversation.value();
        }
        curve
    }

    /// Number of failed requests.
    pub fn failed_requests(&self) -> usize {
        self.conversations.iter().map(|c| c.failures.len()).sum()
    }

    /// The adapters that served replies, in order of first use.
    pub fn adapters(&self) -> Vec<String> {
        let mut seen = Vec::new();
        for reply in self.conversations.iter().flat_map(|c| &c.replies) {
            if let Some(adapter) = reply.adapter.as_ref().filter(|a| !seen.contains(*a)) {
                seen.push(adapter.clone());
            }
        }
        seen
    }

    /// Milliseconds to the first text of each reply.
    pub fn first_token_ms(&self) -> Vec<f64> {
        self.replies(|r| r.first_token_ms)
    }

    /// Milliseconds to the end of each reply.
    pub fn total_ms(&self) -> Vec<f64> {
        self.replies(|r| r.total_ms)
    }

    fn replies(&self, value: fn(&crate::conversation::ReplyRecord) -> f64) -> Vec<f64> {
        let replies = self.conversations.iter().flat_map(|c| &c.replies);
        replies.map(value).collect()
    }
}

/// Events of a running arm.
#[derive(Debug, Clone, PartialEq)]
pub enum ArmEvent {
    /// A conversation has finished.
    ConversationFinished {
        /// The arm.
        arm: String,
        /// Its value in the report.
        value: Option<f64>,
        /// Number of replies.
        replies: usize,
        /// Number of failed requests.
        failures: usize,
    },
    /// A round has finished and the endpoint is idle.
    RoundFinished {
        /// Name of the arm.
        arm: String,
        /// The last health report of the endpoint.
        health: Health,
        /// Time waited.
        waited: Duration,
    },
}

/// Runs an arm. Events are sent as they happen; the receiver may be dropped.
///
/// # Errors
/// [`WaitError`] if the endpoint does not answer `/healthz` or does not become idle in time. A failed request is not an
/// error of the arm: it is in the record.
pub async fn run_arm(
    name: &str,
    client: &ChatClient,
    persona: &dyn Persona,
    options: ArmOptions,
    events: &UnboundedSender<ArmEvent>,
) -> Result<ArmRecord, WaitError> {
    let started = Instant::now();
    let (before, mut waited) = wait_until_idle(client, options.wait).await?;
    let mut steps = before.steps;
    let mut record = ArmRecord {
        name: name.to_owned(),
        conversations: Vec::with_capacity(options.conversations),
        steps: 0,
        seconds: 0.0,
        waited_seconds: 0.0,
    };
    let round = options.concurrency.max(1);
    for from in (0..options.conversations).step_by(round) {
        let to = (from + round).min(options.conversations);
        let memory = memory(&record.conversations, options.conversation.memory_size);
        let mut running = futures_util::stream::iter(from..to)
            .map(|index| {
                run_conversation(
                    client,
                    persona,
                    options.conversation,
                    index,
                    memory.as_deref(),
                )
            })
            .buffer_unordered(round);
        while let Some(conversation) = running.next().await {
            // The receiver may have been dropped; the record is kept anyway.
            let _ = events.send(ArmEvent::ConversationFinished {
                arm: name.to_owned(),
                value: conversation.value(),
                replies: conversation.replies.len(),
                failures: conversation.failures.len(),
            });
            record.conversations.push(conversation);
        }
        let (health, elapsed) = wait_until_idle(client, options.wait).await?;
        waited += elapsed;
        steps = health.steps;
        let _ = events.send(ArmEvent::RoundFinished {
            arm: name.to_owned(),
            health,
            waited: elapsed,
        });
    }
    record.conversations.sort_by_key(|c| c.index);
    record.steps = steps.saturating_sub(before.steps);
    record.seconds = started.elapsed().as_secs_f64();
    record.waited_seconds = waited.as_secs_f64();
    Ok(record)
}

/// The system message of a client with a memory: the latest corrections of earlier conversations in the persona's
/// words, oldest first. None without corrections.
pub(crate) fn memory(earlier: &[ConversationRecord], memory_size: usize) -> Option<String> {
    let mut ordered: Vec<&ConversationRecord> = earlier.iter().collect();
    ordered.sort_by_key(|conversation| conversation.index);
    let all: Vec<&String> = ordered.iter().flat_map(|c| c.corrections()).collect();
    let latest = &all[all.len().saturating_sub(memory_size)..];
    if latest.is_empty() {
        return None;
    }
    let mut text = "What this person said about earlier replies:".to_owned();
    for correction in latest {
        text.push_str("\n- ");
        text.push_str(correction);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Ending;

    fn conversation(index: usize, ending: Ending, reactions: &[&str]) -> ConversationRecord {
        ConversationRecord {
            index,
            opening: String::new(),
            replies: vec![],
            reactions: reactions.iter().map(|r| (*r).to_owned()).collect(),
            ending,
            first: None,
            draws: vec![],
            failures: vec![],
        }
    }

    #[test]
    fn memory_contains_the_latest_corrections_without_closing_messages() {
        let earlier = [
            conversation(1, Ending::GaveUp, &["no bold", "no lists", "I give up"]),
            conversation(0, Ending::Content, &["too long", "thanks"]),
            conversation(2, Ending::Broken, &["who knows"]),
            conversation(3, Ending::Content, &["thanks"]),
        ];
        assert_eq!(
            memory(&earlier, 2).as_deref(),
            Some("What this person said about earlier replies:\n- no bold\n- no lists")
        );
        assert!(memory(&earlier, 9).is_some_and(|text| text.contains(":\n- too long\n- no bold")));
        assert_eq!(memory(&earlier, 0), None);
        assert_eq!(memory(&earlier[3..], 9), None);
    }
}
