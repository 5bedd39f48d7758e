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
    About, ChatClient, DemoEndpoints, DemoOptions, DemoOutcome, TerminalOptions, Track,
    learning_curve, page, plot, run_demo, table,
};
use serde_json::{Value, json};

use self::live::Live;
use crate::arms::{self, DataDir};
use crate::calendar::today;
use crate::config::Config;
use crate::output::{check_writable, print, print_json};
use crate::serve::{Server, Settings};
use crate::terminal::{columns, glyphs};

/// Arguments of `clawhost demo`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost demo\n  clawhost demo --seed 7 --json | tail -n 1\n  \
    clawhost demo --model ./my-policy --out report.html\n\n\
    Exit codes: 0 the model learned, 1 it did not or an error occurred, 2 wrong usage, 130 interrupted."
)]
pub(crate) struct DemoArgs {
    /// Seed of the persona, its problems and its requests; the same for both arms
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Conversations per arm
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    conversations: u32,
    /// Concurrent conversations
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: u32,
    /// Persona that talks to the servers
    #[arg(long, value_parser = arms::persona_values(), default_value = "student")]
    persona: Track,
    /// Model directory (Hugging Face layout) instead of the embedded model
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Configuration file of both servers; the control arm never trains
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sampling temperature of the requests [default: the model's serving default]
    #[arg(long, value_name = "NUMBER")]
    temperature: Option<f32>,
    /// Path of the HTML report
    #[arg(long, value_name = "FILE", default_value = "clawhost-demo.html")]
    out: PathBuf,
    /// Write the learning curve to this SVG file as well
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Keep both servers' data in this directory [default: a temporary directory, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print the result as one JSON object instead of the table and the plot
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn demo(args: &DemoArgs) -> Result<ExitCode> {
    // Check the report path now, not after minutes of work.
    check_writable(&args.out)?;
    if let Some(file) = &args.plot {
        check_writable(file)?;
    }
    let config = arms::configuration(args.config.as_deref(), args.model.as_deref())?;
    let names = [TRAINED, CONTROL].map(str::to_owned);
    let data = DataDir::open(args.data.as_deref(), &names)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(async {
        tokio::select! {
            outcome = run_arms(args, &config, &data) => outcome.map(Some),
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
    print_outcome(args, &outcome)?;
    Ok(if outcome.verdict().has_learned() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Starts both servers, runs the conversations, and stops them in any case.
async fn run_arms(
    args: &DemoArgs,
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
    let outcome = run_conversations(args, config, &trained, &control).await;
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
    config.server.data = data.arm_dir(name);
    config.training.enabled = name == TRAINED;
    Settings::from(config)
}

async fn run_conversations(
    args: &DemoArgs,
    config: &Config,
    trained: &Server,
    control: &Server,
) -> Result<(DemoOutcome, About)> {
    let mut options = DemoOptions {
        seed: args.seed,
        conversations: args.conversations as usize,
        concurrency: args.concurrency as usize,
        temperature: args.temperature,
        ..DemoOptions::default()
    };
    options.wait.batch = config.training.batch as u64;
    let endpoints = DemoEndpoints {
        trained: trained.url().to_owned(),
        control: control.url().to_owned(),
        model: trained.model().to_owned(),
        api_key: arms::api_key(),
    };
    let client = ChatClient::new(arms::endpoint(trained), Duration::from_secs(10))?;
    let health: Value = client.health().await?;
    let about = About {
        served: arms::server_facts(trained, config, &health),
        reproduce: command_line(args),
        date: today(),
    };
    let mut progress = Live::new(args.conversations as usize);
    let outcome = run_demo(&endpoints, args.persona.persona(), options, &mut progress).await;
    progress.clear();
    Ok((outcome?, about))
}

fn print_outcome(args: &DemoArgs, outcome: &DemoOutcome) -> Result<()> {
    let report = std::path::absolute(&args.out).unwrap_or_else(|_| args.out.clone());
    if args.json {
        let mut line = outcome.json();
        if let Some(fields) = line.as_object_mut() {
            fields.insert("report".into(), json!(report.display().to_string()));
        }
        return print_json(&line);
    }
    let options = TerminalOptions {
        width: columns(),
        glyphs: glyphs(),
        ..TerminalOptions::default()
    };
    print(&plot(outcome, options))?;
    print(&table(outcome))?;
    print(&format!("Report: {}", report.display()))
}

/// The command line that reproduces this run.
fn command_line(args: &DemoArgs) -> String {
    let mut line = format!(
        "clawhost demo --seed {} --conversations {} --concurrency {} --persona {}",
        args.seed,
        args.conversations,
        args.concurrency,
        args.persona.name()
    );
    for (flag, value) in [("--model", &args.model), ("--config", &args.config)] {
        if let Some(value) = value {
            line.push_str(&format!(" {flag} {}", value.display()));
        }
    }
    if let Some(temperature) = args.temperature {
        line.push_str(&format!(" --temperature {temperature}"));
    }
    line
}
