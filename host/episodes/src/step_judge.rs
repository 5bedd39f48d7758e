//! Verdicts on the single replies of an episode, by a judge component beside the environment.
//!
//! The judge is called after the episode has ended, once per reply: it sees the episode up to that reply and what followed,
//! its reward, and the short fields of the task. **No verdict is not a vote of 0**: a fault, an abstention or a verdict that
//! does not accept the reply gives no vote, and the episode keeps its reward. This module does not combine votes with
//! rewards; the estimator `step` does.

use clawhost_plugins::{CallContext, Message, Plugin, Receipt, Trajectory, Verdict};
use futures_util::{StreamExt as _, stream};

use crate::task::Task;

/// Judge calls of one episode at a time.
const PARALLEL: usize = 8;
/// Fields of a task that are longer, as JSON, are not shown.
const MAX_FIELD_BYTES: usize = 4096;

/// A judge of the replies of episodes.
#[derive(Debug, Clone)]
pub struct StepJudge {
    /// The component.
    pub judge: Plugin,
    /// Settings and limits of its calls. The `sample_id` is replaced by the name of the episode and the step.
    pub call: CallContext,
}

/// The verdicts on the replies of an episode.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedSteps {
    /// Name of the judge.
    pub judge: String,
    /// sha256 of its component, in hex.
    pub digest: String,
    /// One per reply, in order: the verdict, or why there is none.
    pub verdicts: Vec<Result<Verdict, String>>,
}

impl JudgedSteps {
    /// The vote on a reply: its reward; none without a verdict, for one that does not accept the reply, and for an
    /// abstention, which is a reward of 0 without votes.
    pub fn vote(&self, step: usize) -> Option<f32> {
        let verdict = self.verdicts.get(step)?.as_ref().ok()?;
        let abstains = verdict.reward == 0.0 && verdict.votes.is_empty();
        (verdict.accept && !abstains).then_some(verdict.reward)
    }
}

/// The conversation of an episode, reply by reply.
#[derive(Debug, Default)]
pub(crate) struct StepTrace {
    steps: Vec<TracedStep>,
}

#[derive(Debug)]
struct TracedStep {
    /// The messages since the previous reply.
    seen: Vec<Message>,
    reply: Message,
    truncated: bool,
    /// What followed the reply.
    followed: Vec<Message>,
}

impl StepTrace {
    pub(crate) fn push(&mut self, seen: Vec<Message>, reply: Message, truncated: bool) {
        self.steps.push(TracedStep {
            seen,
            reply,
            truncated,
            followed: Vec::new(),
        });
    }

    /// What followed the last reply.
    pub(crate) fn follow(&mut self, messages: &[Message]) {
        if let Some(last) = self.steps.last_mut() {
            last.followed = messages.to_vec();
        }
    }

    /// The episode up to a step. Only the last turn has the whole conversation as its prompt; the others have what was new.
    fn up_to(&self, step: usize, episode: &EpisodeId<'_>) -> Trajectory {
        let mut trajectory = Trajectory::new(episode.session, episode.group);
        trajectory.task_id = Some(episode.task.id.clone());
        trajectory.env_reward = Some(episode.reward);
        trajectory.metadata = short_fields(&episode.task.payload);
        let mut all = Vec::new();
        for (at, traced) in self.steps[..=step].iter().enumerate() {
            all.extend(traced.seen.iter().cloned());
            let prompt = match at == step {
                true => std::mem::take(&mut all),
                false => traced.seen.clone(),
            };
            all.push(traced.reply.clone());
            trajectory.push(
                prompt,
                traced.reply.clone(),
                traced.followed.clone(),
                traced.truncated,
            );
        }
        trajectory
    }
}

/// The episode that is judged.
pub(crate) struct EpisodeId<'a> {
    pub(crate) id: &'a str,
    /// Its session in the journal.
    pub(crate) session: &'a str,
    pub(crate) group: &'a str,
    pub(crate) task: &'a Task,
    pub(crate) reward: f32,
}

impl StepJudge {
    /// Judges every reply. Returns the receipts of the calls as well.
    pub(crate) async fn judge(
        &self,
        trace: &StepTrace,
        episode: &EpisodeId<'_>,
    ) -> (JudgedSteps, Vec<Receipt>) {
        let calls = (0..trace.steps.len()).map(|step| async move {
            let call = CallContext {
                sample_id: format!("{}/step-{step}", episode.id),
                ..self.call.clone()
            };
            let trajectory = trace.up_to(step, episode);
            let turn = u32::try_from(step).expect("an episode has fewer steps");
            self.judge.score_turn(call, &trajectory, turn).await
        });
        let mut judged = stream::iter(calls).buffered(PARALLEL);
        let (mut verdicts, mut receipts) = (Vec::new(), Vec::new());
        while let Some(result) = judged.next().await {
            verdicts.push(result.outcome.map_err(|fault| fault.to_string()));
            receipts.push(result.receipt);
        }
        let steps = JudgedSteps {
            judge: self.judge.name().to_owned(),
            digest: self.judge.digest().to_owned(),
            verdicts,
        };
        (steps, receipts)
    }
}

/// The short fields of a task's payload, as JSON texts.
fn short_fields(payload: &str) -> Vec<(String, String)> {
    let fields: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(payload).unwrap_or_default();
    fields
        .into_iter()
        .map(|(key, value)| (key, value.to_string()))
        .filter(|(_, value)| value.len() <= MAX_FIELD_BYTES)
        .collect()
}

#[cfg(test)]
mod tests {
    use clawhost_plugins::{Role, Vote};

    use super::*;
    use crate::task::parse_tasks;

    fn verdict(reward: f32, votes: usize, accept: bool) -> Result<Verdict, String> {
        let vote = Vote {
            score: reward,
            rationale: String::new(),
        };
        Ok(Verdict {
            reward,
            accept,
            votes: vec![vote; votes],
            rationale: String::new(),
            metrics: Vec::new(),
        })
    }

    #[test]
    fn a_fault_or_an_abstention_is_no_vote() {
        let judged = JudgedSteps {
            judge: "j".to_owned(),
            digest: String::new(),
            verdicts: vec![
                verdict(0.5, 0, true),
                verdict(0.0, 1, true),
                verdict(0.0, 0, true),
                verdict(1.0, 1, false),
                Err("out of fuel".to_owned()),
            ],
        };
        let votes: Vec<Option<f32>> = (0..6).map(|step| judged.vote(step)).collect();
        assert_eq!(votes, [Some(0.5), Some(0.0), None, None, None, None]);
    }

    #[test]
    fn a_step_is_shown_the_episode_up_to_it() {
        let task = &parse_tasks(
            r#"{"id":"t","instruction":"x","answer":5,"form":"line"}"#,
            "tasks",
        )
        .unwrap()[0];
        let says = |text: &str| Message::text(Role::User, text);
        let reply = |text: &str| Message::text(Role::Assistant, text);
        let mut trace = StepTrace::default();
        trace.push(vec![says("task")], reply("one"), false);
        trace.follow(&[says("result")]);
        trace.push(vec![says("result")], reply("two"), true);
        let episode = EpisodeId {
            id: "e",
            session: "episode/e",
            group: "g",
            task,
            reward: -1.0,
        };
        let first = trace.up_to(0, &episode);
        assert_eq!(first.turns.len(), 1);
        assert_eq!(first.turns[0].next_state, [says("result")]);
        assert_eq!(first.env_reward, Some(-1.0));
        let second = trace.up_to(1, &episode);
        assert_eq!(second.turns[0].prompt, [says("task")]);
        assert_eq!(
            second.turns[1].prompt,
            [says("task"), reply("one"), says("result")]
        );
        assert!(second.turns[1].truncated && second.turns[1].next_state.is_empty());
        assert_eq!(second.task_id.as_deref(), Some("t"));
        let answer = ("answer".to_owned(), "5".to_owned());
        assert!(second.metadata.contains(&answer), "{:?}", second.metadata);
    }
}
