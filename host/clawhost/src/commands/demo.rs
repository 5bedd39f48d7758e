//! `clawhost demo`: does it learn? Two real servers in this process, one that trains and one that does
//! not, a scripted person who talks to both over HTTP, and a report.
//!
//! Everything about talking, scoring and reporting is in `clawhost-evaluation`, which knows nothing of
//! this process; here are the two servers, what a terminal shows meanwhile, and where the page goes.

mod live;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use clawhost_evaluation::{
    About, ChatClient, DemoEndpoints, DemoOptions, DemoOutcome, TerminalOptions, Track, page, plot,
    run_demo, table,
};
use serde_json::{Value, json};

use self::live::Live;
use crate::arms::{self, Data};
use crate::calendar::today;
use crate::config::Config;
use crate::output::{check_writable, say, say_json};
use crate::serve::{Server, Settings};
use crate::terminal::{columns, glyphs};

/// Arguments of `clawhost demo`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost demo\n  clawhost demo --seed 7 --json | tail -n 1\n  \
    clawhost demo --model ./my-policy --out report.html\n\n\
    Exit codes: 0 it learned, 1 it did not or something failed, 2 wrong usage, 130 interrupted."
)]
pub(crate) struct DemoArgs {
    /// Seed of the persona, its problems and its requests; the same for both arms
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Conversations of each arm
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    conversations: u32,
    /// Conversations at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: u32,
    /// Who talks
    #[arg(long, value_parser = arms::persona_values(), default_value = "student")]
    persona: Track,
    /// Model directory (Hugging Face layout) instead of the policy inside this program
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Configuration file for both servers; the control arm never trains, whatever it says
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sampling temperature of the requests [default: what the model is served at]
    #[arg(long, value_name = "NUMBER")]
    temperature: Option<f32>,
    /// Where the report goes
    #[arg(long, value_name = "FILE", default_value = "clawhost-demo.html")]
    out: PathBuf,
    /// Keep what both servers recorded in this directory [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print the result as one JSON object instead of the table and the plot
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn demo(args: &DemoArgs) -> Result<ExitCode> {
    // A report that cannot be written after minutes of work is worse than one that is refused now.
    check_writable(&args.out)?;
    let config = arms::configuration(args.config.as_deref(), args.model.as_deref())?;
    let names = [TRAINED, CONTROL].map(str::to_owned);
    let data = Data::open(args.data.as_deref(), &names)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads of the servers")?;
    let finished = runtime.block_on(async {
        tokio::select! {
            outcome = both_arms(args, &config, &data) => outcome.map(Some),
            _ = tokio::signal::ctrl_c() => Ok(None),
        }
    });
    // Servers that were interrupted are dropped with the runtime; give their threads a moment.
    runtime.shutdown_timeout(Duration::from_secs(5));
    let Some((outcome, about)) = finished? else {
        return Ok(ExitCode::from(130));
    };
    std::fs::write(&args.out, page(&outcome, &about))
        .with_context(|| format!("cannot write the report {}", args.out.display()))?;
    tell(args, &outcome)?;
    Ok(if outcome.verdict().learned() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Starts both servers, lets the persona talk to them, and stops them whatever came of it.
async fn both_arms(args: &DemoArgs, config: &Config, data: &Data) -> Result<(DemoOutcome, About)> {
    let trained = Server::start(arm(config, data, TRAINED))
        .await
        .context("the server that trains did not start")?;
    let control = match Server::start(arm(config, data, CONTROL)).await {
        Ok(server) => server,
        Err(error) => {
            trained.stop().await;
            return Err(error.context("the control server did not start"));
        }
    };
    let outcome = talk(args, config, &trained, &control).await;
    trained.stop().await;
    control.stop().await;
    outcome
}

/// The arm that learns, and its folder.
const TRAINED: &str = "trained";
/// The arm that does not.
const CONTROL: &str = "control";

/// The settings of one arm: its own data, and whether it trains.
fn arm(config: &Config, data: &Data, name: &str) -> Settings {
    let mut config = config.clone();
    config.server.data = data.of(name);
    config.training.enabled = name == TRAINED;
    Settings::from(config)
}

async fn talk(
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
    options.patience.batch = config.training.batch as u64;
    let endpoints = DemoEndpoints {
        trained: trained.url().to_owned(),
        control: control.url().to_owned(),
        model: trained.model().to_owned(),
        api_key: arms::api_key(),
    };
    let client = ChatClient::new(arms::endpoint(trained), Duration::from_secs(10))?;
    let health: Value = client.health().await?;
    let about = About {
        served: arms::served(trained, config, &health),
        reproduce: command_line(args),
        date: today(),
    };
    let mut progress = Live::new(args.conversations as usize);
    let outcome = run_demo(&endpoints, args.persona.persona(), options, &mut progress).await;
    progress.end();
    Ok((outcome?, about))
}

fn tell(args: &DemoArgs, outcome: &DemoOutcome) -> Result<()> {
    let report = std::path::absolute(&args.out).unwrap_or_else(|_| args.out.clone());
    if args.json {
        let mut line = outcome.json();
        if let Some(fields) = line.as_object_mut() {
            fields.insert("report".into(), json!(report.display().to_string()));
        }
        return say_json(&line);
    }
    let options = TerminalOptions {
        width: columns(),
        glyphs: glyphs(),
        ..TerminalOptions::default()
    };
    say(&plot(outcome, options))?;
    say(&table(outcome))?;
    say(&format!("Report: {}", report.display()))
}

/// The command line that gives this run again.
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
