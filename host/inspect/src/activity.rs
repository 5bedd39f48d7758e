//! The last records for the operator page, read from the journal with bounded queries, and only after a commit.

use std::collections::BTreeMap;

use clawhost_chat::{AssistantMessage, Message, Role};
use clawhost_journal::{
    AdapterOwner, Counts, Journal, JournalError, JudgingState, OwnerCounts, ReleaseRow,
    ReleaseState, StepId, StepRecord, TurnId, TurnState, TurnSummary, VerdictOutcome,
    VerdictRecord,
};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

/// Whose records are read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Viewer {
    /// Everything.
    Operator,
    /// What belongs to one owner of adapters, or to the shared adapter; for operators.
    Owner(Option<AdapterOwner>),
    /// The turns of the key with this name.
    Key(String),
}

const SESSIONS: usize = 32;
const TURNS_OF_OWNER: u32 = 384;
const OWNERS: u32 = 200;
/// Sessions among which those of a key are searched.
const SESSIONS_OF_ALL_KEYS: u32 = 1000;
const TURNS_PER_SESSION: u32 = 12;
const TURNS: usize = 24;
const STEPS: usize = 120;
const ADAPTERS: usize = 40;
const RELEASES: u32 = 120;
/// Characters of a prompt and of a reply.
const TEXT: usize = 280;

/// Turns and rewards.
#[derive(Clone, Serialize)]
pub struct Records {
    /// Newest first.
    pub turns: Vec<TurnRow>,
    /// Rewards of the last judged replies, oldest first.
    pub rewards: Vec<f32>,
}

/// Records that only operators see.
#[derive(Clone, Serialize)]
pub struct OperatorRecords {
    /// Rows of the whole journal.
    pub counts: Counts,
    /// Owners with training steps, as `?owner=` names them, the one with the newest step first.
    pub owners: Vec<String>,
    /// The owner that steps, release, adapters and releases are limited to; `None` for all, with the release of the shared
    /// adapter.
    pub owner: Option<OwnerRecord>,
    /// Oldest first.
    pub steps: Vec<StepRow>,
    /// The served version.
    pub release: ReleaseState,
    /// Oldest first.
    pub adapters: Vec<AdapterSummary>,
    /// Oldest first.
    pub releases: Vec<ReleaseRow>,
}

/// The owner of the records.
#[derive(Clone, Serialize)]
pub struct OwnerRecord {
    /// As `?owner=` names it.
    pub name: String,
    /// Its rows.
    #[serde(flatten)]
    pub counts: OwnerCounts,
}

/// A turn.
#[derive(Clone, Serialize)]
pub struct TurnRow {
    /// Id.
    pub id: TurnId,
    /// Session of the turn.
    pub session: String,
    /// Name of the API key.
    pub key: Option<String>,
    /// Arrival of the request, unix milliseconds.
    pub received_ms: i64,
    /// State of the reply.
    pub state: TurnState,
    /// State of the judgement.
    pub judging: JudgingState,
    #[serde(flatten)]
    /// Prompt and reply.
    pub text: TurnText,
    /// Verdicts, oldest first.
    pub verdicts: Vec<VerdictRow>,
}

/// The part of a turn that does not change after its end.
#[derive(Clone, Serialize)]
pub struct TurnText {
    /// The last user message, shortened.
    pub prompt: String,
    /// The reply, shortened.
    pub reply: String,
    /// Why it was aborted or skipped.
    pub reason: Option<String>,
    /// Adapter version that generated the reply; 0 is the base model.
    pub adapter_version: u64,
}

/// A verdict: a reward, or the reason for none.
#[derive(Clone, Serialize)]
pub struct VerdictRow {
    /// Who judged.
    pub source: String,
    /// The reward.
    pub reward: Option<f32>,
    /// Why there is no reward.
    pub reason: Option<String>,
}

/// A training step with its main metrics; those that it did not compute are absent.
#[derive(Clone, Serialize)]
pub struct StepRow {
    /// Id.
    pub id: StepId,
    /// Start, unix milliseconds.
    pub started_ms: i64,
    /// End, unix milliseconds.
    pub ended_ms: i64,
    /// Outcome.
    pub outcome: String,
    /// Why it published nothing.
    pub reason: Option<String>,
    /// Number of trained samples.
    pub trained: u64,
    /// Number of dropped samples.
    pub dropped: u64,
    /// Adapter version that it produced.
    pub adapter: Option<u64>,
    /// Owner of that adapter; `None` is the shared one.
    pub owner: Option<AdapterOwner>,
    /// Mean reward; `None` without rewards.
    pub reward_mean: Option<f64>,
    /// KL to the reference policy, nats per token.
    pub kl_reference: Option<f64>,
    /// KL to the policy that generated the samples, nats per token.
    pub kl_old: Option<f64>,
    /// Loss of the first update.
    pub loss_first: Option<f64>,
    /// Loss of the last update.
    pub loss_last: Option<f64>,
    /// Norm of the gradient.
    pub gradient_norm: Option<f64>,
    /// Mean entropy, nats per token.
    pub entropy: Option<f64>,
}

/// An adapter version.
#[derive(Clone, Serialize)]
pub struct AdapterSummary {
    /// Version, from 1.
    pub version: u64,
    /// Version that it was trained from; 0 is the base model.
    pub parent: u64,
    /// Digest of its weights.
    pub digest: String,
    /// Creation, unix milliseconds.
    pub created_ms: i64,
    /// State: active, candidate or retired.
    pub state: String,
    /// The step that produced it.
    pub step: Option<StepId>,
    /// Its owner; `None` is the shared adapter.
    pub owner: Option<AdapterOwner>,
}

/// Reads the records of one viewer. What cannot change is read once.
pub struct RecordLoader {
    viewer: Viewer,
    changes: Option<watch::Receiver<u64>>,
    loaded: Option<(Records, Option<OperatorRecords>)>,
    /// Texts of the listed turns that have ended.
    texts: BTreeMap<TurnId, TurnText>,
    /// Oldest first.
    steps: Vec<StepRow>,
}

impl RecordLoader {
    /// A loader that has read nothing yet.
    pub fn new(viewer: Viewer) -> Self {
        Self {
            viewer,
            changes: None,
            loaded: None,
            texts: BTreeMap::new(),
            steps: Vec::new(),
        }
    }

    /// The records; for operators also those that only they see.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn load(
        &mut self,
        journal: &Journal,
    ) -> Result<(Records, Option<OperatorRecords>), JournalError> {
        let changes = self.changes.get_or_insert_with(|| journal.watch());
        if changes.has_changed().unwrap_or(true) {
            self.loaded = None;
        }
        // Before the queries: a commit during them is read next time.
        changes.borrow_and_update();
        if let Some(loaded) = &self.loaded {
            return Ok(loaded.clone());
        }
        let loaded = self.query(journal)?;
        self.loaded = Some(loaded.clone());
        Ok(loaded)
    }

    fn query(
        &mut self,
        journal: &Journal,
    ) -> Result<(Records, Option<OperatorRecords>), JournalError> {
        let records = self.turns(journal)?;
        let operator = match self.viewer {
            Viewer::Operator | Viewer::Owner(_) => Some(self.operator_records(journal)?),
            Viewer::Key(_) => None,
        };
        Ok((records, operator))
    }

    fn turns(&mut self, journal: &Journal) -> Result<Records, JournalError> {
        let summaries = self.summaries(journal)?;
        let mut verdicts: BTreeMap<TurnId, Vec<VerdictRecord>> = BTreeMap::new();
        for summary in summaries
            .iter()
            .filter(|summary| summary.judging == JudgingState::Done)
        {
            verdicts.insert(summary.id, journal.verdicts(summary.id)?);
        }
        let mut in_order: Vec<&VerdictRecord> = verdicts.values().flatten().collect();
        in_order.sort_by_key(|verdict| verdict.ms);
        let rewards = in_order.into_iter().filter_map(reward).collect();
        let mut turns = Vec::new();
        let mut texts = BTreeMap::new();
        for summary in summaries.into_iter().take(TURNS) {
            // It may have been deleted in between.
            let Some(text) = self.text(journal, &summary)? else {
                continue;
            };
            if summary.state != TurnState::Generating {
                texts.insert(summary.id, text.clone());
            }
            let verdicts = match verdicts.remove(&summary.id) {
                Some(verdicts) => verdicts,
                None => journal.verdicts(summary.id)?,
            };
            turns.push(TurnRow {
                id: summary.id,
                session: summary.session.0,
                key: summary.key,
                received_ms: summary.received_ms,
                state: summary.state,
                judging: summary.judging,
                text,
                verdicts: verdicts.into_iter().map(verdict_row).collect(),
            });
        }
        self.texts = texts;
        Ok(Records { turns, rewards })
    }

    /// The last turns of the viewer, newest first.
    fn summaries(&self, journal: &Journal) -> Result<Vec<TurnSummary>, JournalError> {
        let mut sessions = match &self.viewer {
            Viewer::Operator => journal.sessions(SESSIONS as u32)?,
            Viewer::Owner(owner) => return journal.last_turns_of(owner.as_ref(), TURNS_OF_OWNER),
            Viewer::Key(name) => {
                let mut sessions = journal.sessions(SESSIONS_OF_ALL_KEYS)?;
                sessions.retain(|session| session.key.as_deref() == Some(name));
                sessions
            }
        };
        sessions.truncate(SESSIONS);
        let mut summaries = Vec::new();
        for session in sessions {
            summaries.extend(journal.last_turns(&session.id, TURNS_PER_SESSION)?);
        }
        summaries.sort_by_key(|summary| std::cmp::Reverse(summary.id));
        Ok(summaries)
    }

    fn text(
        &self,
        journal: &Journal,
        summary: &TurnSummary,
    ) -> Result<Option<TurnText>, JournalError> {
        if let Some(text) = self.texts.get(&summary.id) {
            return Ok(Some(text.clone()));
        }
        let Some(turn) = journal.turn(summary.id)? else {
            return Ok(None);
        };
        let reply = turn
            .completion
            .as_ref()
            .map_or_else(String::new, |completion| reply_text(&completion.reply));
        Ok(Some(TurnText {
            prompt: shorten(&last_user_message(&turn.messages), TEXT),
            reply: shorten(&reply, TEXT),
            reason: turn.reason,
            adapter_version: turn.adapter_version,
        }))
    }

    fn operator_records(&mut self, journal: &Journal) -> Result<OperatorRecords, JournalError> {
        let filter = match &self.viewer {
            Viewer::Owner(owner) => Some(owner.as_ref()),
            Viewer::Operator | Viewer::Key(_) => None,
        };
        let new = match (self.steps.last(), filter) {
            (last, Some(owner)) => {
                let after = last.map_or(StepId(0), |step| step.id);
                journal.steps_of(owner, after, STEPS as u32)?
            }
            (Some(last), None) => journal.steps_after(last.id, STEPS as u32)?,
            (None, None) => {
                let mut steps = journal.steps(STEPS as u32)?;
                steps.reverse();
                steps
            }
        };
        self.steps.extend(new.into_iter().map(step_row));
        let surplus = self.steps.len().saturating_sub(STEPS);
        self.steps.drain(..surplus);
        let mut releases = match filter {
            Some(owner) => journal.releases_of(owner, RELEASES)?,
            None => journal.releases(RELEASES)?,
        };
        releases.reverse();
        let mut adapters = journal.adapters()?;
        if let Some(owner) = filter {
            adapters.retain(|row| row.owner.as_ref() == owner);
        }
        let surplus = adapters.len().saturating_sub(ADAPTERS);
        adapters.drain(..surplus);
        Ok(OperatorRecords {
            counts: journal.counts()?,
            owners: journal
                .adapter_owners(OWNERS)?
                .iter()
                .map(|owner| owner_name(owner.as_ref()))
                .collect(),
            owner: match filter {
                Some(owner) => Some(OwnerRecord {
                    name: owner_name(owner),
                    counts: journal.owner_counts(owner)?,
                }),
                None => None,
            },
            steps: self.steps.clone(),
            release: journal.release_state_of(filter.flatten())?,
            adapters: adapters
                .into_iter()
                .map(|row| AdapterSummary {
                    version: row.version,
                    parent: row.parent,
                    digest: row.digest,
                    created_ms: row.created_ms,
                    state: row.state,
                    step: row.step,
                    owner: row.owner,
                })
                .collect(),
            releases,
        })
    }
}

/// The owner as `?owner=` names it.
fn owner_name(owner: Option<&AdapterOwner>) -> String {
    owner.map_or_else(|| "shared".to_owned(), AdapterOwner::to_string)
}

fn reward(verdict: &VerdictRecord) -> Option<f32> {
    match verdict.outcome {
        VerdictOutcome::Verdict { reward, .. } => Some(reward),
        VerdictOutcome::None { .. } => None,
    }
}

fn verdict_row(verdict: VerdictRecord) -> VerdictRow {
    VerdictRow {
        reward: reward(&verdict),
        reason: match verdict.outcome {
            VerdictOutcome::None { reason } => Some(reason),
            VerdictOutcome::Verdict { .. } => None,
        },
        source: verdict.source,
    }
}

fn step_row(step: StepRecord) -> StepRow {
    let metric = |name: &str| step.metrics.get(name).and_then(Value::as_f64);
    StepRow {
        id: step.id,
        started_ms: step.started_ms,
        ended_ms: step.ended_ms,
        outcome: step.outcome.to_string(),
        trained: step.trained_count,
        dropped: step.dropped_count,
        adapter: step.adapter,
        owner: step.owner,
        // Without rewards the mean is recorded as 0.
        reward_mean: metric("reward_mean").filter(|_| metric("rewarded") != Some(0.0)),
        kl_reference: metric("kl_reference"),
        kl_old: metric("kl_old"),
        loss_first: metric("loss_first"),
        loss_last: metric("loss_last"),
        gradient_norm: metric("gradient_norm"),
        entropy: metric("entropy"),
        reason: step.reason,
    }
}

/// The last user message of a request.
fn last_user_message(messages: &[Message]) -> String {
    let mut users = messages
        .iter()
        .filter(|message| message.role() == Role::User);
    users.next_back().map(Message::text).unwrap_or_default()
}

/// The text of a reply, followed by the names of the tools that it called.
fn reply_text(reply: &AssistantMessage) -> String {
    let mut text = reply.text();
    for call in &reply.tool_calls {
        text.push_str(" → ");
        text.push_str(&call.function.name);
    }
    text
}

/// The first `limit` characters, in one line.
fn shorten(text: &str, limit: usize) -> String {
    let mut short: String = text
        .chars()
        .take(limit)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(limit).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_truncated_between_characters() {
        assert_eq!(shorten("añb\nc", 4), "añb …");
        assert_eq!(shorten("añb", 3), "añb");
    }
}
