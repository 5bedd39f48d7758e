//! `clawhost eval episodes`: how often the model solves the tasks of an environment.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_episodes::{EpisodeReport, SampleUnit, plan_groups};
use serde_json::json;

use crate::commands::env::rollout::{
    RolloutArgs, SplitChoice, load_environment, report_text, run_with_progress, tasks_of,
};
use crate::commands::plugin::load::ConfigurationFlags;
use crate::output::print_result;
use crate::serve;

/// Arguments of `clawhost eval episodes`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost eval episodes --env environment.wasm --tasks tasks.jsonl\n  \
    clawhost eval episodes --env environment.wasm --tasks tasks.jsonl --split held-out --samples 8 --json\n  \
    clawhost eval episodes --env environment.wasm --tasks tasks.jsonl --adapter ./clawhost-data/adapters/v000020\n\n\
    pass@1 is the share of solved episodes, pass@k the probability that one of k episodes of a task solves it. The intervals \
    are of 95 %, over tasks. An episode that a fault or the wall limit ended has no verdict and enters no mean."
)]
pub(crate) struct EpisodesArgs {
    /// Environment component
    #[arg(long, value_name = "FILE")]
    env: PathBuf,
    /// Task set, one JSON object per line
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,
    /// Episodes per task
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    samples: u32,
    /// The part of the task set
    #[arg(long, value_enum, default_value_t = SplitChoice::All)]
    split: SplitChoice,
    /// Model directory or GGUF file instead of the embedded model
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// PEFT adapter to evaluate
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    rollout: RolloutArgs,
    #[command(flatten)]
    configuration: ConfigurationFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn episodes(args: &EpisodesArgs) -> Result<ExitCode> {
    let tasks = tasks_of(&args.tasks, args.split)?;
    ensure!(
        !tasks.is_empty(),
        "{} has no task of this split; pass another --split",
        args.tasks.display()
    );
    let config = args.configuration.load(args.model.as_deref())?;
    let environment = load_environment(&args.env, &config)?;
    let digest = environment.digest().to_owned();
    let model = serve::load_engine(&config)?;
    serve::publish_adapter(args.adapter.as_deref(), &model.engine)?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let rollout = &args.rollout;
    let runner = rollout.runner(&config, &model.engine, environment, SampleUnit::Trajectory)?;
    let plans = plan_groups(&tasks, args.samples, rollout.seed, "eval");
    let started = Instant::now();
    let records = runtime.block_on(run_with_progress(&runner, plans, "episodes"));
    let seconds = started.elapsed().as_secs_f64();
    let report = EpisodeReport::new(&records);
    let output = json!({
        "environment": args.env, "digest": digest, "model": model.name, "report": report, "seconds": seconds,
    });
    print_result(args.json, &output, || {
        format!(
            "{}\n  {seconds:.1} s in all",
            report_text(&model.name, &report)
        )
    })?;
    Ok(if report.episodes == 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
