//! `clawhost env bench`: how fast an environment steps, without a model.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_episodes::load_tasks;
use clawhost_plugins::{CallContext, EpisodeTask, Message, Plugin, Progress};
use serde::Serialize;

use super::play::{find_task, parse_action};
use super::rollout::load_environment;
use crate::commands::plugin::load::ConfigurationFlags;
use crate::environments::call_context;
use crate::output::print_result;

/// Arguments of `clawhost env bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost env bench environment.wasm --tasks tasks.jsonl --action 'The answer is 19.'\n  \
    clawhost env bench environment.wasm --tasks tools.jsonl --action '/call calculator {\"expression\": \"2 + 3\"}'\n\n\
    Repeats the action. An episode that ends is graded and closed, and a new one begins. The callers are on other threads\n\
    than the guests, as in a server, and then on the same, where a step is not handed over. The CPU time is that of the whole\n\
    process, so steps per CPU second do not depend on what else the machine does."
)]
pub(crate) struct BenchArgs {
    /// Environment component
    #[arg(value_name = "FILE")]
    env: PathBuf,
    /// Task set, one JSON object per line
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,
    /// The task: its number, from 1, or its id
    #[arg(long, value_name = "N", default_value = "1")]
    task: String,
    /// The action, as in `clawhost env try`
    #[arg(long, value_name = "ACTION")]
    action: String,
    /// Steps
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Episodes at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    parallel: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    configuration: ConfigurationFlags,
}

/// What was measured, once for each place of the callers.
#[derive(Debug, Clone, Copy, Serialize)]
struct Figures {
    /// Whether the callers are on the threads of the guests.
    same_threads: bool,
    parallel: u32,
    steps: u64,
    episodes: u64,
    seconds: f64,
    cpu_seconds: f64,
    steps_per_second: f64,
    steps_per_cpu_second: f64,
    /// Wall time of a step as its caller sees it.
    mean_step_us: f64,
}

/// Counts of one worker.
#[derive(Default)]
struct Counts {
    steps: u64,
    episodes: u64,
    stepping: Duration,
}

/// Runs the command.
pub(super) fn bench(args: &BenchArgs) -> Result<ExitCode> {
    let tasks = load_tasks(&args.tasks)?;
    let task = find_task(&tasks, &args.task)?;
    let task = EpisodeTask {
        id: task.id.clone(),
        instruction: task.instruction.clone(),
        payload: task.payload.clone(),
    };
    let action = parse_action(&args.action, 1).map_err(anyhow::Error::msg)?;
    let config = args.configuration.load(None)?;
    let environment = load_environment(&args.env, &config)?;
    let call = call_context(&config, &environment, 0);
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let work = Arc::new(Work {
        environment,
        call,
        task,
        action,
    });
    let figures = [false, true].map(|same_threads| {
        runtime.block_on(async {
            run(&work, args, same_threads, (args.steps / 20).max(1)).await?;
            measure(&work, args, same_threads).await
        })
    });
    let [other, same] = figures;
    let figures = [other?, same?];
    print_result(args.json, &figures, || {
        figures.map(|one| one.text()).join("\n")
    })
}

async fn measure(work: &Arc<Work>, args: &BenchArgs, same_threads: bool) -> Result<Figures> {
    let (started, cpu) = (Instant::now(), cpu_time());
    let counts = run(work, args, same_threads, args.steps).await?;
    let (seconds, cpu_seconds) = (
        started.elapsed().as_secs_f64(),
        (cpu_time() - cpu).as_secs_f64(),
    );
    let steps = counts.steps as f64;
    Ok(Figures {
        same_threads,
        parallel: args.parallel,
        steps: counts.steps,
        episodes: counts.episodes,
        seconds,
        cpu_seconds,
        steps_per_second: steps / seconds,
        steps_per_cpu_second: steps / cpu_seconds,
        mean_step_us: counts.stepping.as_secs_f64() * 1e6 / steps,
    })
}

impl Figures {
    fn text(&self) -> String {
        let place = match self.same_threads {
            true => "on the guests' threads",
            false => "on other threads",
        };
        format!(
            "callers {place}: {} steps in {} episodes, {} at a time: {:.0} steps/s, {:.0} steps per CPU second, {:.1} µs per step",
            self.steps,
            self.episodes,
            self.parallel,
            self.steps_per_second,
            self.steps_per_cpu_second,
            self.mean_step_us
        )
    }
}

/// What each worker repeats.
struct Work {
    environment: Plugin,
    call: CallContext,
    task: EpisodeTask,
    action: Message,
}

/// Makes at least this many steps, in equal shares of the workers.
async fn run(work: &Arc<Work>, args: &BenchArgs, same_threads: bool, steps: u32) -> Result<Counts> {
    let share = steps.div_ceil(args.parallel);
    let workers: Vec<_> = (0..args.parallel)
        .map(|_| {
            let (own, work) = (Arc::clone(work), worker(Arc::clone(work), share.into()));
            tokio::spawn(async move {
                match same_threads {
                    true => own.environment.threads().run(work).await,
                    false => work.await,
                }
            })
        })
        .collect();
    let mut sum = Counts::default();
    for worker in workers {
        let counts = worker.await.context("a worker failed")??;
        sum.steps += counts.steps;
        sum.episodes += counts.episodes;
        sum.stepping += counts.stepping;
    }
    Ok(sum)
}

async fn worker(work: Arc<Work>, steps: u64) -> Result<Counts> {
    let mut counts = Counts::default();
    while counts.steps < steps {
        let started = work
            .environment
            .start_episode(work.call.clone(), work.task.clone(), 0)
            .await;
        let (mut episode, _) = started.outcome?;
        counts.episodes += 1;
        let (before, began) = (counts.steps, Instant::now());
        while counts.steps < steps {
            let transition = episode.step(&work.action).await.outcome?;
            counts.steps += 1;
            if transition.progress != Progress::Running {
                break;
            }
        }
        counts.stepping += began.elapsed();
        ensure!(counts.steps > before, "an episode made no step");
        episode.grade().await.outcome?;
        episode.close().await.outcome?;
    }
    Ok(counts)
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(now.tv_sec).expect("CPU time is not negative"),
        u32::try_from(now.tv_nsec).expect("nanoseconds of a second"),
    )
}
