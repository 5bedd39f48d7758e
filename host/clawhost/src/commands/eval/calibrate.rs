//! `clawhost eval calibrate`: what a real model does with each wish before anything is trained.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use clawhost_evaluation::{
    Calibration, CalibrationOptions, ChatClient, Wish, calibrate, calibration_table,
};

use super::selection::selected_or;
use crate::arms::{self, ArmFlags};
use crate::config::Config;
use crate::progress::Progress;
use crate::serve::{Server, Settings};

/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Arguments of `clawhost eval calibrate`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost eval calibrate --model ./SmolLM2-135M-Instruct.Q4_1.gguf\n  \
    clawhost eval calibrate --model ./Qwen3-0.6B --wish short,bullets --questions 64\n\n\
    A wish can be learned when the model meets it when instructed (gain of at least 0.2, significantly above 0) and not unasked.\n\n\
    Exit codes: 0 success, 1 a request failed or an error occurred, 2 wrong usage, 130 interrupted."
)]
pub(crate) struct CalibrateArgs {
    /// Wishes to measure [default: all]
    #[arg(long, value_name = "WISHES", value_delimiter = ',', value_parser = arms::wish_values())]
    wish: Vec<Wish>,
    /// Held-out questions for each wish, each asked three times: as it is, with the wish, with its opposite
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(2..=1000))]
    questions: u32,
    /// Simple questions of each kind; 0 = none
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=64))]
    skills: u32,
    /// Seed of the requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Concurrent requests
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: u32,
    #[command(flatten)]
    flags: ArmFlags,
}

impl CalibrateArgs {
    fn options(&self) -> CalibrationOptions {
        let defaults = CalibrationOptions::default();
        CalibrationOptions {
            wishes: selected_or(&self.wish, defaults.wishes.clone()),
            questions: self.questions as usize,
            skills: self.skills as usize,
            concurrency: self.concurrency as usize,
            seed: self.seed,
            temperature: self.flags.temperature,
            ..defaults
        }
    }
}

/// The data directory of the server that is measured.
const NAME: &str = "calibrate";

/// Runs the command.
pub(crate) fn calibrate_command(args: &CalibrateArgs) -> Result<ExitCode> {
    let mut config = args.flags.configuration()?;
    anyhow::ensure!(
        config.model.path.is_some(),
        "the embedded model knows homework only, so wishes cannot be measured with it; pass --model"
    );
    let data = args.flags.data_dir(&[NAME.to_owned()])?;
    config.server.data_dir = data.arm_dir(NAME);
    config.training.enabled = false;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let result = runtime.block_on(async {
        tokio::select! {
            outcome = run(args, config) => outcome.map(Some),
            _ = tokio::signal::ctrl_c() => Ok(None),
        }
    });
    // An interrupted server is dropped with the runtime; give its threads time to end.
    runtime.shutdown_timeout(Duration::from_secs(5));
    let Some(calibration) = result? else {
        return Ok(ExitCode::from(130));
    };
    args.flags
        .print_figures(&calibration.json(), || calibration_table(&calibration))?;
    Ok(if calibration.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn run(args: &CalibrateArgs, config: Config) -> Result<Calibration> {
    let server = Server::start(Settings::from(config))
        .await
        .context("cannot start the server")?;
    let options = args.options();
    let client = ChatClient::new(arms::endpoint(&server), TIMEOUT);
    let calibration = match client {
        Ok(client) => {
            let mut progress = Progress::new(options.requests() as f64);
            let mut advance = || {
                progress.advance(1.0);
                progress.stage("calibrating");
            };
            let calibration = calibrate(&client, &options, &mut advance).await;
            progress.clear();
            Ok(calibration)
        }
        Err(error) => Err(error.into()),
    };
    server.stop().await;
    calibration
}
