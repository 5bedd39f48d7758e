//! `environment-plugin`: an environment that the policy acts in.
//!
//! An episode uses one store from `reset` to `close`, because the environment's state lives in it. Every command is a
//! call with its own limits. A fault drops the store and ends the episode; an error that the plugin returns does not.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wasmtime::Store;
use wasmtime::component::ResourceAny;

use crate::bindings::environment as guest;
use crate::call::CallContext;
use crate::capability::model::ToolSpec;
use crate::conversation::Message;
use crate::convert;
use crate::exports::{Export, LinkedExport};
use crate::fault::{Fault, FaultKind};
use crate::host::Plugin;
use crate::invoke::{self, Admitted, Place, Stop, Work};
use crate::kind::Kind;
use crate::loaded_plugin::LoadedPlugin;
use crate::receipt::{CallResult, Receipt};
use crate::store::CallState;
use crate::verdict::{CheckResult, Metric};
use clawhost_config::VerdictRules;

/// Maximum messages, and maximum tools, in one observation.
const MAX_ITEMS: usize = 1_000;

/// The task of an episode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeTask {
    /// Name of the task within its task set.
    pub id: String,
    /// The instruction for the policy.
    pub instruction: String,
    /// The row of the task set, as JSON text.
    pub payload: String,
}

/// An observation of the policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// Messages to add to the conversation.
    pub messages: Vec<Message>,
    /// Tools that the policy may call next.
    pub tools: Vec<ToolSpec>,
}

/// Whether an episode continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// It continues.
    Running,
    /// It reached a terminal state.
    Terminated,
    /// It was cut off, for example by a step limit.
    Truncated,
}

/// The result of an action.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// The next observation.
    pub observation: Observation,
    /// The reward of this action, validated.
    pub reward: f32,
    /// Whether the episode continues.
    pub progress: Progress,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

/// The grade of an episode.
#[derive(Debug, Clone, PartialEq)]
pub struct EpisodeOutcome {
    /// The reward, validated.
    pub reward: f32,
    /// Whether the task was solved, if the environment decides that.
    pub success: Option<bool>,
    /// A report for the operator.
    pub report: String,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

/// An episode in progress. Dropping it drops the environment's state and everything that it opened.
pub struct Episode {
    loaded: Arc<LoadedPlugin>,
    call: CallContext,
    /// None after a fault, while a command runs, and after the end.
    live: Option<Box<LiveEpisode>>,
    graded: bool,
}

/// The store of an episode and the handles into it.
struct LiveEpisode {
    store: Store<CallState>,
    guest: Arc<guest::Guest>,
    session: ResourceAny,
    _place: Place,
}

impl std::fmt::Debug for Episode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Episode")
            .field("environment", &self.loaded.name)
            .field("live", &self.live.is_some())
            .finish_non_exhaustive()
    }
}

impl Plugin {
    /// Starts an episode in its own store. Dropping the future ends it.
    pub async fn start_episode(
        &self,
        call: CallContext,
        task: EpisodeTask,
        seed: u64,
    ) -> CallResult<(Episode, Observation)> {
        let Export::Environment(export) = self.export() else {
            return self.wrong_kind(&call, Kind::Environment);
        };
        let (loaded, export) = (self.loaded(), export.clone());
        let mut receipt = invoke::blank_receipt(&loaded, &call);
        let admitted = match invoke::admit(&loaded).await {
            Ok(admitted) => admitted,
            Err(fault) => return invoke::finish(&loaded, receipt, Err(fault)),
        };
        let starting = async move {
            let context = call.clone();
            let reset = reset(&loaded, admitted, context, &mut receipt, export, task, seed);
            let outcome = invoke::contain_panic(reset).await;
            let outcome = outcome.map(|(live, observation)| {
                let episode = Episode {
                    loaded: Arc::clone(&loaded),
                    call,
                    live: Some(live),
                    graded: false,
                };
                (episode, observation)
            });
            invoke::finish(&loaded, receipt, outcome)
        };
        self.threads().run(starting).await
    }
}

/// Resets the environment in a store of its own.
async fn reset(
    loaded: &Arc<LoadedPlugin>,
    admitted: Admitted,
    call: CallContext,
    receipt: &mut Receipt,
    export: LinkedExport<guest::GuestIndices>,
    task: EpisodeTask,
    seed: u64,
) -> Result<(Box<LiveEpisode>, Observation), Fault> {
    let rules = call.limits.verdict;
    let (place, mut store) = invoke::open(loaded, admitted, call, receipt).await?;
    let task = guest::Task {
        id: task.id,
        instruction: task.instruction,
        payload: task.payload,
    };
    let reset = invoke::supervise(&mut store, receipt, move |store| {
        Box::pin(async move {
            let guest = export.instantiate(store).await?;
            let (session, observation) = guest
                .session()
                .call_reset(&mut *store, &task, seed)
                .await
                .map_err(Stop::while_running)?
                .map_err(Stop::plugin_error)?;
            let observation = check_observation(observation, &rules).map_err(Stop::BadOutput)?;
            Ok((guest, session, observation))
        })
    });
    let (guest, session, observation) = reset.await?;
    let live = LiveEpisode {
        store,
        guest: Arc::new(guest),
        session,
        _place: place,
    };
    Ok((Box::new(live), observation))
}

impl Episode {
    /// Performs an action. After grading or a fault, returns the fault `episode-over`.
    pub async fn step(&mut self, action: &Message) -> CallResult<Transition> {
        if self.graded {
            return self.episode_over();
        }
        let action = convert::message_to_guest(action);
        let rules = self.call.limits.verdict;
        self.command(move |store, guest, session| {
            Box::pin(async move {
                let answer = guest
                    .session()
                    .call_step(&mut *store, session, &action)
                    .await
                    .map_err(Stop::while_running)?
                    .map_err(Stop::plugin_error)?;
                check_transition(answer, &rules).map_err(Stop::BadOutput)
            })
        })
        .await
    }

    /// Grades the episode, once and after its last step. Only [`Episode::close`] can be called afterwards.
    pub async fn grade(&mut self) -> CallResult<EpisodeOutcome> {
        if std::mem::replace(&mut self.graded, true) {
            return self.episode_over();
        }
        let rules = self.call.limits.verdict;
        self.command(move |store, guest, session| {
            Box::pin(async move {
                let answer = guest
                    .session()
                    .call_grade(&mut *store, session)
                    .await
                    .map_err(Stop::while_running)?
                    .map_err(Stop::plugin_error)?;
                check_outcome(answer, &rules).map_err(Stop::BadOutput)
            })
        })
        .await
    }

    /// Lets the environment release its resources and drops the store, whatever the environment returns.
    pub async fn close(mut self) -> CallResult<()> {
        self.command(|store, guest, session| {
            Box::pin(async move {
                let answer = guest
                    .session()
                    .call_close(&mut *store, session)
                    .await
                    .map_err(Stop::while_running)?;
                session
                    .resource_drop_async(&mut *store)
                    .await
                    .map_err(Stop::while_running)?;
                answer.map_err(Stop::plugin_error)
            })
        })
        .await
    }

    /// The result of a command on an episode that is over.
    fn episode_over<T>(&self) -> CallResult<T> {
        invoke::refused(&self.loaded, &self.call, Fault::new(FaultKind::EpisodeOver))
    }

    async fn command<T, F>(&mut self, work: F) -> CallResult<T>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Store<CallState>, Arc<guest::Guest>, ResourceAny) -> Work<'a, T>
            + Send
            + 'static,
    {
        let Some(mut live) = self.live.take() else {
            return self.episode_over();
        };
        let mut receipt = invoke::blank_receipt(&self.loaded, &self.call);
        let loaded = Arc::clone(&self.loaded);
        let running = async move {
            let outcome = invoke::contain_panic(live.run(&mut receipt, work)).await;
            let alive = match &outcome {
                Ok(_) => true,
                Err(fault) => matches!(fault.kind, FaultKind::PluginError { .. }),
            };
            let called = invoke::finish(&loaded, receipt, outcome);
            (alive.then_some(live), called)
        };
        let (live, called) = self.loaded.threads.run(running).await;
        self.live = live;
        called
    }
}

impl LiveEpisode {
    /// Runs a command with the budgets of a call.
    async fn run<T, F>(&mut self, receipt: &mut Receipt, work: F) -> Result<T, Fault>
    where
        F: for<'a> FnOnce(&'a mut Store<CallState>, Arc<guest::Guest>, ResourceAny) -> Work<'a, T>,
    {
        invoke::refuel(&mut self.store)
            .map_err(|error| invoke::host_fault(&format!("{error:#}")))?;
        let (guest, session) = (Arc::clone(&self.guest), self.session);
        invoke::supervise(&mut self.store, receipt, move |store| {
            work(store, guest, session)
        })
        .await
    }
}

fn check_observation(
    observation: guest::Observation,
    rules: &VerdictRules,
) -> Result<Observation, String> {
    for (what, count) in [
        ("messages", observation.messages.len()),
        ("tools", observation.tools.len()),
    ] {
        if count > MAX_ITEMS {
            return Err(format!(
                "the observation has {count} {what}, the limit is {MAX_ITEMS}"
            ));
        }
    }
    for tool in &observation.tools {
        if tool.name.is_empty() || tool.name.len() > rules.name_size {
            return Err(format!(
                "a tool's name has {} bytes, expected 1 to {}",
                tool.name.len(),
                rules.name_size
            ));
        }
    }
    Ok(Observation {
        messages: observation
            .messages
            .into_iter()
            .map(convert::message_from_guest)
            .collect(),
        tools: observation
            .tools
            .into_iter()
            .map(|tool| ToolSpec {
                name: tool.name,
                description: tool.description,
                parameters: tool.parameters,
            })
            .collect(),
    })
}

fn check_transition(answer: guest::Transition, rules: &VerdictRules) -> Result<Transition, String> {
    let metrics = convert::metrics_from_guest(answer.metrics);
    rules.check_reward("reward", answer.reward)?;
    rules.check_metrics(&metrics)?;
    Ok(Transition {
        observation: check_observation(answer.observation, rules)?,
        reward: answer.reward,
        progress: match answer.status {
            guest::Status::Running => Progress::Running,
            guest::Status::Terminated => Progress::Terminated,
            guest::Status::Truncated => Progress::Truncated,
        },
        metrics,
    })
}

fn check_outcome(answer: guest::Outcome, rules: &VerdictRules) -> Result<EpisodeOutcome, String> {
    let metrics = convert::metrics_from_guest(answer.metrics);
    rules.check_reward("reward", answer.reward)?;
    rules.check_text("the report", &answer.report)?;
    rules.check_metrics(&metrics)?;
    Ok(EpisodeOutcome {
        reward: answer.reward,
        success: answer.success,
        report: answer.report,
        metrics,
    })
}
