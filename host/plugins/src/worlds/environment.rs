//! `environment-plugin`: a world that the policy acts in.
//!
//! An episode keeps one store from `reset` to `close`, because the world lives in it. Every command
//! gets the budgets of a call of its own. After a fault the store is gone and the episode is over;
//! an error that the plugin itself reports leaves it alive.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wasmtime::Store;
use wasmtime::component::ResourceAny;

use crate::bindings::environment as guest;
use crate::call::CallContext;
use crate::calls::{Export, Ready};
use crate::capability::model::ToolSpec;
use crate::conversation::Message;
use crate::convert;
use crate::fault::{Fault, FaultKind};
use crate::host::{Called, Plugin};
use crate::invoke::{self, Admitted, Place, Stop, Work};
use crate::kind::Kind;
use crate::loaded::Loaded;
use crate::receipt::Receipt;
use crate::store::CallState;
use crate::verdict::{Metric, VerdictRules};

/// Most messages, and most tools, in one observation.
const MAX_ITEMS: usize = 1_000;

/// What the policy is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeTask {
    /// Name of the task within its set.
    pub id: String,
    /// What it says.
    pub instruction: String,
    /// The row of the task set, as JSON text.
    pub payload: String,
}

/// What the policy sees.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// Messages to add to the conversation.
    pub messages: Vec<Message>,
    /// Tools that may be called now.
    pub tools: Vec<ToolSpec>,
}

/// Whether an episode goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// It goes on.
    Running,
    /// It came to its end.
    Terminated,
    /// It was cut off.
    Truncated,
}

/// What an action led to.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// What the policy sees next.
    pub observation: Observation,
    /// The reward of this action, checked.
    pub reward: f32,
    /// Whether the episode goes on.
    pub progress: Progress,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

/// The grade of an episode.
#[derive(Debug, Clone, PartialEq)]
pub struct EpisodeOutcome {
    /// The reward, checked.
    pub reward: f32,
    /// Whether the task was done, where that is a question.
    pub success: Option<bool>,
    /// What was found, for people.
    pub report: String,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

/// An episode in progress. Dropping it drops the world and everything that it opened.
pub struct Episode {
    loaded: Arc<Loaded>,
    call: CallContext,
    /// None after a fault, while a command runs, and after the end.
    live: Option<Box<Live>>,
    graded: bool,
}

/// The store of an episode and the handles into it.
struct Live {
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
    /// Starts an episode in a store of its own. Dropping the future ends it.
    pub async fn start_episode(
        &self,
        call: CallContext,
        task: EpisodeTask,
        seed: u64,
    ) -> Called<(Episode, Observation)> {
        let Export::Environment(ready) = self.export() else {
            return self.wrong_kind(&call, Kind::Environment);
        };
        let loaded = self.loaded();
        let receipt = invoke::blank_receipt(&loaded, &call);
        let admitted = match invoke::admit(&loaded).await {
            Ok(admitted) => admitted,
            Err(fault) => return invoke::with_fault(&loaded, receipt, fault),
        };
        let started = start(
            Arc::clone(&loaded),
            admitted,
            call.clone(),
            receipt.clone(),
            ready.clone(),
            task,
            seed,
        );
        match loaded.threads.spawn(started).await {
            Ok((outcome, receipt)) => Called {
                outcome: outcome.map(|(live, observation)| {
                    let episode = Episode {
                        loaded: Arc::clone(&loaded),
                        call,
                        live: Some(live),
                        graded: false,
                    };
                    (episode, observation)
                }),
                receipt,
            },
            Err(error) => {
                let fault = invoke::host_fault(&error.to_string());
                invoke::with_fault(&loaded, receipt, fault)
            }
        }
    }
}

async fn start(
    loaded: Arc<Loaded>,
    admitted: Admitted,
    call: CallContext,
    mut receipt: Receipt,
    ready: Ready<guest::GuestIndices>,
    task: EpisodeTask,
    seed: u64,
) -> (Result<(Box<Live>, Observation), Fault>, Receipt) {
    let rules = call.limits.verdict;
    let (mut store, place) = match invoke::open(&loaded, admitted, call, &mut receipt).await {
        Ok(opened) => opened,
        Err(fault) => {
            let called = invoke::with_fault(&loaded, receipt, fault);
            return (called.outcome, called.receipt);
        }
    };
    let task = guest::Task {
        id: task.id,
        instruction: task.instruction,
        payload: task.payload,
    };
    let (outcome, receipt) = invoke::supervise(&mut store, receipt, move |store| {
        Box::pin(async move {
            let guest = ready.start(store).await?;
            let (session, observation) = guest
                .session()
                .call_reset(&mut *store, &task, seed)
                .await
                .map_err(Stop::while_running)?
                .map_err(Stop::plugin_error)?;
            let observation = observed(observation, &rules).map_err(Stop::BadOutput)?;
            Ok((guest, session, observation))
        })
    })
    .await;
    let outcome = outcome.map(|(guest, session, observation)| {
        let live = Live {
            store,
            guest: Arc::new(guest),
            session,
            _place: place,
        };
        (Box::new(live), observation)
    });
    (outcome, receipt)
}

impl Episode {
    /// Acts. After the grade, or a fault, the answer is the fault `episode-over`.
    pub async fn step(&mut self, action: &Message) -> Called<Transition> {
        if self.graded {
            return self.over();
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
                transition(answer, &rules).map_err(Stop::BadOutput)
            })
        })
        .await
    }

    /// Grades the episode; once, after its last step. Only [`Episode::close`] reaches the environment
    /// after it.
    pub async fn grade(&mut self) -> Called<EpisodeOutcome> {
        if std::mem::replace(&mut self.graded, true) {
            return self.over();
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
                graded(answer, &rules).map_err(Stop::BadOutput)
            })
        })
        .await
    }

    /// Lets the environment release what it holds, and drops its store whatever it answers.
    pub async fn close(mut self) -> Called<()> {
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

    /// The answer of an episode that takes no such command any more.
    fn over<T>(&self) -> Called<T> {
        let receipt = invoke::blank_receipt(&self.loaded, &self.call);
        invoke::with_fault(&self.loaded, receipt, Fault::new(FaultKind::EpisodeOver))
    }

    async fn command<T, F>(&mut self, work: F) -> Called<T>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Store<CallState>, Arc<guest::Guest>, ResourceAny) -> Work<'a, T>
            + Send
            + 'static,
    {
        let Some(mut live) = self.live.take() else {
            return self.over();
        };
        let receipt = invoke::blank_receipt(&self.loaded, &self.call);
        let blank = receipt.clone();
        let loaded = Arc::clone(&self.loaded);
        let run = async move {
            if let Err(error) = invoke::refuel(&mut live.store) {
                let fault = invoke::host_fault(&format!("{error:#}"));
                return (None, invoke::with_fault(&loaded, receipt, fault));
            }
            let (guest, session) = (Arc::clone(&live.guest), live.session);
            let (outcome, receipt) = invoke::supervise(&mut live.store, receipt, move |store| {
                work(store, guest, session)
            })
            .await;
            let alive = match &outcome {
                Ok(_) => true,
                Err(fault) => matches!(fault.kind, FaultKind::PluginError { .. }),
            };
            (alive.then_some(live), Called { outcome, receipt })
        };
        match self.loaded.threads.spawn(run).await {
            Ok((live, called)) => {
                self.live = live;
                called
            }
            Err(error) => {
                let fault = invoke::host_fault(&error.to_string());
                invoke::with_fault(&self.loaded, blank, fault)
            }
        }
    }
}

fn observed(observation: guest::Observation, rules: &VerdictRules) -> Result<Observation, String> {
    for (what, count) in [
        ("messages", observation.messages.len()),
        ("tools", observation.tools.len()),
    ] {
        if count > MAX_ITEMS {
            return Err(format!(
                "an observation of {count} {what}, at most {MAX_ITEMS} are taken"
            ));
        }
    }
    for tool in &observation.tools {
        if tool.name.is_empty() || tool.name.len() > rules.name_bytes {
            return Err(format!(
                "a tool's name of {} bytes, 1 to {} are allowed",
                tool.name.len(),
                rules.name_bytes
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

fn transition(answer: guest::Transition, rules: &VerdictRules) -> Result<Transition, String> {
    let metrics = convert::metrics_from_guest(answer.metrics);
    rules.check_reward("reward", answer.reward)?;
    rules.check_metrics(&metrics)?;
    Ok(Transition {
        observation: observed(answer.observation, rules)?,
        reward: answer.reward,
        progress: match answer.status {
            guest::Status::Running => Progress::Running,
            guest::Status::Terminated => Progress::Terminated,
            guest::Status::Truncated => Progress::Truncated,
        },
        metrics,
    })
}

fn graded(answer: guest::Outcome, rules: &VerdictRules) -> Result<EpisodeOutcome, String> {
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
