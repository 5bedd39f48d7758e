//! `clawhost demo`: starts two servers in this process, one that trains and one that does not, lets a scripted persona
//! talk to both over HTTP, and writes a report.
//!
//! Conversations, scoring and reports are in `clawhost-evaluation`, which knows nothing of this process; this module
//! holds the two servers, the live display and the report path.

mod live;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use clawhost_evaluation::{
    About, ChatClient, DemoEndpoints, DemoOptions, DemoOutcome, TerminalOptions, Track, Wish,
    learning_curve, page, plot, run_demo, table,
};

use self::live::Live;
use crate::arms::{self, ArmFlags, DataDir};
use crate::config::Config;
use crate::output::check_writable;
use crate::serve::{Server, Settings};
use crate::terminal::{columns, glyphs};

/// Arguments of `clawhost demo`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost demo\n  clawhost demo --seed 7 --json | tail -n 1\n  \
    clawhost demo --model ./SmolLM2-135M-Instruct.Q4_1.gguf --wish short --temperature 0.7\n\n\
    --model smollm2 prints how to get that model.\n\n\
    Exit codes: 0 the model learned, 1 it did not or an error occurred, 2 wrong usage, 130 interrupted."
)]
pub(crate) struct DemoArgs {
    /// Seed of the persona, its problems and its requests; the same for both arms
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Conversations per arm [default: 60; of a person with a wish 36]
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    conversations: Option<u32>,
    /// Concurrent conversations
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: u32,
    /// Persona of the embedded model's worlds that talks to the servers [default: student]
    #[arg(long, value_parser = arms::persona_values())]
    persona: Option<Track>,
    /// Wish of a person who talks to the model of --model, and never states it in advance [default: short]
    #[arg(long, value_parser = arms::wish_values(), conflicts_with = "persona")]
    wish: Option<Wish>,
    #[command(flatten)]
    arms: ArmFlags,
    /// Path of the HTML report
    #[arg(long, value_name = "FILE", default_value = "clawhost-demo.html")]
    out: PathBuf,
    /// Write the learning curve to this SVG file as well
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn demo(args: &DemoArgs) -> Result<ExitCode> {
    // Check the report path now, not after minutes of work.
    check_writable(&args.out)?;
    if let Some(file) = &args.plot {
        check_writable(file)?;
    }
    let config = args.arms.configuration()?;
    let track = track(args, config.model.path.is_some())?;
    let names = [TRAINED, CONTROL].map(str::to_owned);
    let data = args.arms.data_dir(&names)?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let result = runtime.block_on(async {
        tokio::select! {
            outcome = run_arms(args, track, &config, &data) => outcome.map(Some),
            _ = tokio::signal::ctrl_c() => Ok(None),
        }
    });
    // Interrupted servers are dropped with the runtime; give their threads time to end.
    runtime.shutdown_timeout(Duration::from_secs(5));
    let Some((outcome, about)) = result? else {
        return Ok(ExitCode::from(130));
    };
    std::fs::write(&args.out, page(&outcome, &about))
        .with_context(|| format!("cannot write the report {}", args.out.display()))?;
    if let Some(file) = &args.plot {
        std::fs::write(file, learning_curve(&outcome))
            .with_context(|| format!("cannot write the plot {}", file.display()))?;
    }
    args.arms.print_outcome(outcome.json(), &args.out, || {
        let options = TerminalOptions {
            width: columns(),
            glyphs: glyphs(),
            ..TerminalOptions::default()
        };
        vec![plot(&outcome, options), table(&outcome)]
    })?;
    Ok(if outcome.verdict().has_learned() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Starts both servers, runs the conversations, and stops them in any case.
async fn run_arms(
    args: &DemoArgs,
    track: Track,
    config: &Config,
    data: &DataDir,
) -> Result<(DemoOutcome, About)> {
    let trained = Server::start(arm(config, data, TRAINED))
        .await
        .context("cannot start the training server")?;
    let control = match Server::start(arm(config, data, CONTROL)).await {
        Ok(server) => server,
        Err(error) => {
            trained.stop().await;
            return Err(error.context("cannot start the control server"));
        }
    };
    let outcome = run_conversations(args, track, config, &trained, &control).await;
    trained.stop().await;
    control.stop().await;
    outcome
}

/// Name and data directory of the arm that trains.
const TRAINED: &str = "trained";
/// The arm that does not train.
const CONTROL: &str = "control";

/// Settings of one arm: its data directory, and whether it trains.
fn arm(config: &Config, data: &DataDir, name: &str) -> Settings {
    let mut config = config.clone();
    config.server.data_dir = data.arm_dir(name);
    config.training.enabled = name == TRAINED;
    Settings::from(config)
}

async fn run_conversations(
    args: &DemoArgs,
    track: Track,
    config: &Config,
    trained: &Server,
    control: &Server,
) -> Result<(DemoOutcome, About)> {
    let defaults = match track.wish() {
        None => DemoOptions::default(),
        Some(_) => DemoOptions::of_a_wish(),
    };
    let mut options = DemoOptions {
        seed: args.seed,
        conversations: args
            .conversations
            .map_or(defaults.conversations, |count| count as usize),
        concurrency: args.concurrency as usize,
        temperature: args.arms.temperature,
        ..defaults
    };
    options.wait.batch = config.training.batch_size as u64;
    let endpoints = DemoEndpoints {
        trained: trained.url().to_owned(),
        control: control.url().to_owned(),
        model: trained.model().to_owned(),
        api_key: arms::api_key(),
    };
    let client = ChatClient::new(arms::endpoint(trained), Duration::from_secs(10))?;
    let health = client.health().await?;
    let about = About {
        served: arms::server_facts(trained, config, &health),
        reproduce: command_line(args, track, options.conversations),
        date: jiff::Timestamp::now().strftime("%F").to_string(),
    };
    let mut progress = Live::new(options.conversations);
    let persona = track.persona();
    let outcome = run_demo(&endpoints, persona.as_ref(), options, &mut progress).await;
    progress.clear();
    Ok((outcome?, about))
}

/// The command line that reproduces this run.
fn command_line(args: &DemoArgs, track: Track, conversations: usize) -> String {
    let flag = if track.wish().is_some() {
        "--wish"
    } else {
        "--persona"
    };
    args.arms.command_line(format!(
        "clawhost demo --seed {} --conversations {conversations} --concurrency {} {flag} {}",
        args.seed,
        args.concurrency,
        track.name()
    ))
}

/// Who talks to the servers. `real` is whether the model is not the embedded one.
fn track(args: &DemoArgs, real: bool) -> Result<Track> {
    match (args.persona, args.wish) {
        (Some(persona), _) => Ok(persona),
        (None, wish) if real => Ok(Track::Wish(wish.unwrap_or(Wish::Short))),
        (None, None) => Ok(Track::Student),
        (None, Some(_)) => anyhow::bail!(
            "the embedded model knows homework only, so it cannot meet a wish; pass --model, or --model smollm2 to learn how to get one"
        ),
    }
}
