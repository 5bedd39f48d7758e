//! Groups of episodes, several at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use clawhost_engine::Engine;
use clawhost_journal::SessionId;
use clawhost_plugins::{CallContext, Plugin};
use futures_util::{Stream, StreamExt as _, stream};

use crate::episode::{EpisodeOptions, EpisodeSeeds, FinishedEpisode, NoVerdict, run_episode};
use crate::seeds::derive;
use crate::step_judge::{EpisodeId, StepJudge};
use crate::task::Task;

/// One episode to run.
#[derive(Debug, Clone)]
pub struct EpisodePlan {
    /// Name of the episode, unique in its journal.
    pub id: String,
    /// Episodes of one task share a group.
    pub group: String,
    /// The task.
    pub task: Arc<Task>,
    /// Index in the group, from 0.
    pub sample: u32,
    seeds: EpisodeSeeds,
}

impl EpisodePlan {
    /// The session in the journal that records the episode.
    pub fn session(&self) -> SessionId {
        SessionId(format!("episode/{}", self.id))
    }
}

/// `samples` episodes of each task. `round` names this round of the run; the same seed, round and task set give the same
/// plans. All episodes of a group start in the same state.
pub fn plan_groups(tasks: &[Arc<Task>], samples: u32, seed: u64, round: &str) -> Vec<EpisodePlan> {
    let plan = |task: &Arc<Task>, sample: u32| {
        let group = format!("{round}/{}", task.id);
        let number = sample.to_string();
        EpisodePlan {
            id: format!("{group}/{sample}"),
            task: Arc::clone(task),
            sample,
            seeds: EpisodeSeeds {
                environment: derive(seed, &["environment", &group]),
                policy: derive(seed, &["policy", &group, &number]),
            },
            group,
        }
    };
    tasks
        .iter()
        .flat_map(|task| (0..samples).map(move |sample| plan(task, sample)))
        .collect()
}

/// The tasks of a round, of which all are used before any is used again, in an order that depends on the seed.
pub fn choose_tasks(tasks: &[Arc<Task>], count: usize, round: u64, seed: u64) -> Vec<Arc<Task>> {
    let mut chosen: Vec<Arc<Task>> = Vec::new();
    let (count, length) = (count.min(tasks.len()) as u64, tasks.len() as u64);
    for position in round * count..(round + 1) * count {
        let epoch = (position / length).to_string();
        let mut order: Vec<&Arc<Task>> = tasks.iter().collect();
        order.sort_by_key(|task| derive(seed, &["order", &epoch, &task.id]));
        let task = order[usize::try_from(position % length).expect("an index of a slice")];
        // Two epochs may meet in a round.
        if chosen.iter().all(|other| other.id != task.id) {
            chosen.push(Arc::clone(task));
        }
    }
    chosen
}

/// An episode that was run.
#[derive(Debug, Clone)]
pub struct EpisodeRecord {
    /// What was run.
    pub plan: EpisodePlan,
    /// The verdict, or why there is none.
    pub result: Result<FinishedEpisode, NoVerdict>,
    /// Wall time in seconds.
    pub seconds: f64,
}

/// Runs episodes of one environment with the engine's active version.
#[derive(Clone)]
pub struct EpisodeRunner {
    /// The policy.
    pub engine: Engine,
    /// The environment.
    pub environment: Plugin,
    /// Settings and limits of its calls. The `sample_id` is replaced by the name of the episode.
    pub call: CallContext,
    /// Judges each reply; none if the outcome alone counts.
    pub step_judge: Option<StepJudge>,
    /// Limits and sampling of each episode.
    pub options: EpisodeOptions,
    /// Episodes that run at a time.
    pub parallel: usize,
}

impl EpisodeRunner {
    /// Runs episodes and returns them in order. `done` is called for each one as it ends. A panic ends only its own
    /// episode, without a verdict. Dropping the future cancels the episodes.
    pub async fn run(
        &self,
        plans: Vec<EpisodePlan>,
        mut done: impl FnMut(&EpisodeRecord),
    ) -> Vec<EpisodeRecord> {
        let order: HashMap<String, usize> = plans
            .iter()
            .enumerate()
            .map(|(index, plan)| (plan.id.clone(), index))
            .collect();
        let mut running = std::pin::pin!(self.stream(plans));
        let mut records = Vec::new();
        while let Some(record) = running.next().await {
            done(&record);
            records.push(record);
        }
        records.sort_by_key(|record| order.get(&record.plan.id).copied());
        records
    }

    /// As [`EpisodeRunner::run`], in the order in which the episodes end.
    pub fn stream(&self, plans: Vec<EpisodePlan>) -> impl Stream<Item = EpisodeRecord> + '_ {
        stream::iter(plans)
            .map(|plan| self.run_one(plan))
            .buffer_unordered(self.parallel.max(1))
    }

    async fn run_one(&self, plan: EpisodePlan) -> EpisodeRecord {
        let started = Instant::now();
        let (runner, planned) = (self.clone(), plan.clone());
        let call = CallContext {
            sample_id: plan.id.clone(),
            ..self.call.clone()
        };
        let mut episode = AbortOnDrop(tokio::spawn(async move {
            let EpisodeRunner {
                engine,
                environment,
                options,
                ..
            } = &runner;
            let (task, seeds) = (&planned.task, planned.seeds);
            let (mut episode, trace) =
                run_episode(engine, environment, call, task, seeds, options).await?;
            if let Some(judge) = &runner.step_judge {
                let session = planned.session();
                let id = EpisodeId {
                    id: &planned.id,
                    session: session.as_str(),
                    group: &planned.group,
                    task,
                    reward: episode.reward,
                };
                let (judged, receipts) = judge.judge(&trace, &id).await;
                episode.judged = Some(judged);
                episode.receipts.extend(receipts);
            }
            Ok::<_, NoVerdict>(episode)
        }));
        let result = (&mut episode.0).await.unwrap_or_else(|error| {
            tracing::error!(episode = plan.id, %error, "an episode panicked; this is a bug");
            Err(NoVerdict(format!("the episode panicked: {error}")))
        });
        EpisodeRecord {
            plan,
            result,
            seconds: started.elapsed().as_secs_f64(),
        }
    }
}

/// A task that ends when its owner is dropped.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::parse_tasks;

    #[test]
    fn every_task_is_chosen_once_per_epoch() {
        let text: String = (0..6)
            .map(|id| format!("{{\"id\":\"{id}\",\"instruction\":\"x\"}}\n"))
            .collect();
        let tasks: Vec<_> = parse_tasks(&text, "t")
            .unwrap()
            .into_iter()
            .map(Arc::new)
            .collect();
        let rounds = |from: u64| -> Vec<String> {
            let mut ids: Vec<String> = (from..from + 3)
                .flat_map(|round| choose_tasks(&tasks, 2, round, 1))
                .map(|task| task.id.clone())
                .collect();
            ids.sort();
            ids
        };
        assert_eq!(rounds(0), ["0", "1", "2", "3", "4", "5"]);
        assert_eq!(rounds(3), rounds(0));
        assert_eq!(choose_tasks(&tasks, 100, 2, 1).len(), 6);
    }

    #[test]
    fn a_group_shares_the_environment_seed_and_nothing_else() {
        let text = "{\"id\":\"a\",\"instruction\":\"x\"}\n{\"id\":\"b\",\"instruction\":\"x\"}";
        let tasks: Vec<_> = parse_tasks(text, "t")
            .unwrap()
            .into_iter()
            .map(Arc::new)
            .collect();
        let plans = plan_groups(&tasks, 2, 5, "step-1");
        let ids: Vec<&str> = plans.iter().map(|plan| plan.id.as_str()).collect();
        assert_eq!(
            ids,
            ["step-1/a/0", "step-1/a/1", "step-1/b/0", "step-1/b/1"]
        );
        assert_eq!(plans[0].group, plans[1].group);
        assert_eq!(plans[0].seeds.environment, plans[1].seeds.environment);
        assert_ne!(plans[0].seeds.policy, plans[1].seeds.policy);
        assert_ne!(plans[1].seeds.environment, plans[2].seeds.environment);
        let again = plan_groups(&tasks, 2, 5, "step-1");
        assert_eq!(again[3].seeds, plans[3].seeds);
        assert_ne!(plan_groups(&tasks, 2, 5, "step-2")[3].seeds, plans[3].seeds);
    }
}
