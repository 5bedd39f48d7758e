//! An arm: a persona holds many conversations with one endpoint, a few at a time.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;

use crate::client::ChatClient;
use crate::conversation::{ConversationRecord, Manner, hold};
use crate::persona::Persona;
use crate::settling::{Health, Patience, SettleError, settle};

/// How an arm is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArmOptions {
    /// How many conversations. Default: 60.
    pub conversations: usize,
    /// How many at a time; they form a round. Default: 4.
    pub concurrency: usize,
    /// How each is held.
    pub manner: Manner,
    /// How long to wait between rounds until the endpoint has learned what it can.
    pub patience: Patience,
}

impl Default for ArmOptions {
    fn default() -> Self {
        ArmOptions {
            conversations: 60,
            concurrency: 4,
            manner: Manner::default(),
            patience: Patience::default(),
        }
    }
}

/// Everything that happened in an arm.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArmRecord {
    /// What the arm is called in the report.
    pub name: String,
    /// The conversations, by number.
    pub conversations: Vec<ConversationRecord>,
    /// Training steps that the endpoint reported between the beginning and the end.
    pub steps: u64,
    /// Wall time of the whole arm in seconds.
    pub seconds: f64,
    /// How much of it was spent waiting between rounds.
    pub waited_seconds: f64,
}

impl ArmRecord {
    /// The series that the report is about: one value per conversation whose first reply came.
    pub fn values(&self) -> Vec<f64> {
        self.conversations
            .iter()
            .filter_map(ConversationRecord::value)
            .collect()
    }

    /// One entry per conversation, by number: its value, or none where its first reply did not come.
    pub fn curve(&self) -> Vec<Option<f64>> {
        let ends = self.conversations.iter().map(|c| c.index + 1);
        let mut curve = vec![None; ends.max().unwrap_or(0)];
        for conversation in &self.conversations {
            if let Some(slot) = curve.get_mut(conversation.index) {
                *slot = conversation.value();
            }
        }
        curve
    }

    /// How many requests failed.
    pub fn failed_requests(&self) -> usize {
        self.conversations.iter().map(|c| c.failures.len()).sum()
    }

    /// The adapters that served replies, in the order in which they first did.
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

    fn replies(&self, of: fn(&crate::conversation::ReplyRecord) -> f64) -> Vec<f64> {
        let all = self.conversations.iter().flat_map(|c| &c.replies);
        all.map(of).collect()
    }
}

/// What an arm tells while it runs.
#[derive(Debug, Clone, PartialEq)]
pub enum ArmEvent {
    /// A conversation has ended.
    Ended {
        /// The arm.
        arm: String,
        /// Its value in the report.
        value: Option<f64>,
        /// How many replies it took.
        replies: usize,
        /// Requests of it that failed.
        failures: usize,
    },
    /// A round is over and the endpoint has settled.
    Settled {
        /// The arm.
        arm: String,
        /// What the endpoint said.
        health: Health,
        /// How long that took.
        waited: Duration,
    },
}

/// Runs an arm to its end. Events are sent as they happen; nobody has to listen.
///
/// # Errors
/// [`SettleError`] when the endpoint does not answer `/healthz` or does not settle in time. A request
/// that fails is no error of the arm: it is in the record.
pub async fn run_arm(
    name: &str,
    client: &ChatClient,
    persona: &dyn Persona,
    options: ArmOptions,
    events: &UnboundedSender<ArmEvent>,
) -> Result<ArmRecord, SettleError> {
    let begun = Instant::now();
    let (before, mut waited) = settle(client, options.patience).await?;
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
        let memory = memory(&record.conversations, options.manner.remembered);
        let mut running = futures_util::stream::iter(from..to)
            .map(|index| hold(client, persona, options.manner, index, memory.as_deref()))
            .buffer_unordered(round);
        while let Some(ended) = running.next().await {
            // A closed channel means that nobody wants to watch; the record is kept all the same.
            let _ = events.send(ArmEvent::Ended {
                arm: name.to_owned(),
                value: ended.value(),
                replies: ended.replies.len(),
                failures: ended.failures.len(),
            });
            record.conversations.push(ended);
        }
        let (health, took) = settle(client, options.patience).await?;
        waited += took;
        steps = health.steps;
        let _ = events.send(ArmEvent::Settled {
            arm: name.to_owned(),
            health,
            waited: took,
        });
    }
    record.conversations.sort_by_key(|c| c.index);
    record.steps = steps.saturating_sub(before.steps);
    record.seconds = begun.elapsed().as_secs_f64();
    record.waited_seconds = waited.as_secs_f64();
    Ok(record)
}

/// What a client with a memory says first: the latest corrections of earlier conversations in the
/// persona's own words, oldest first. None before there are any.
fn memory(earlier: &[ConversationRecord], remembered: usize) -> Option<String> {
    let mut ordered: Vec<&ConversationRecord> = earlier.iter().collect();
    ordered.sort_by_key(|conversation| conversation.index);
    let all: Vec<&String> = ordered.iter().flat_map(|c| c.corrections()).collect();
    let latest = all.get(all.len().saturating_sub(remembered)..)?;
    if latest.is_empty() {
        return None;
    }
    let mut text = "What this person said about earlier replies:".to_owned();
    for said in latest {
        text.push_str("\n- ");
        text.push_str(said);
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
    fn a_memory_holds_the_latest_corrections_and_no_thanks() {
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
