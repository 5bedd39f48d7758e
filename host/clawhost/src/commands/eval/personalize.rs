//! `clawhost eval personalize`: compares every training method with the frozen model, with several seeds each.
//!
//! Each arm of each persona and seed is a separate server in this process with its own temporary data directory, and is
//! used over HTTP. Arms differ only in their configuration.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clawhost_evaluation::{
    Arm, PersonalizeOptions, PersonalizeOutcome, Track, personalize_page, personalize_table,
};
use serde_json::json;

use super::cells::{EvalRun, about, run_all};
use crate::arms::{self, DataDir};
use crate::output::{check_writable, print, print_json};

/// Arguments of `clawhost eval personalize`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  clawhost eval personalize\n  \
    clawhost eval personalize --seeds 1 --personas student --arms control,hybrid\n  \
    clawhost eval personalize --json --check --jobs 16 --out report.html | tail -n 1\n\n\
    Scores are those of the first reply of each conversation. at36 (at24 of a teacher) is the mean over conversations 25 to 36\n\
    (13 to 24). Takes about half a minute of one core per arm, persona and seed.\n\n\
    Exit codes: 0 success, 1 an arm failed (with --check: or a target was missed), 2 wrong usage, 130 interrupted.")]
pub(crate) struct PersonalizeArgs {
    /// Arms to compare [default: all but memory]
    #[arg(long, value_name = "ARMS", value_delimiter = ',', value_parser = arm_values())]
    arms: Vec<Arm>,
    /// Personas [default: student,teacher]
    #[arg(long, value_name = "PERSONAS", value_delimiter = ',', value_parser = arms::persona_values())]
    personas: Vec<Track>,
    /// Seeds per arm and persona
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// First seed; the others follow it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Conversations per arm, persona and seed [default: 36 of a student, 24 of a teacher]
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    conversations: Option<u32>,
    /// Concurrent conversations per arm
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: u32,
    /// Held-out prompts of each kind to measure forgetting; 0 = none
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    probes: u32,
    /// Concurrent arms [default: one per core]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Model directory (Hugging Face layout) instead of the embedded model
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Configuration file of all arms; each arm sets its own training.method and training.enabled
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sampling temperature of the requests [default: the model's serving default]
    #[arg(long, value_name = "NUMBER")]
    temperature: Option<f32>,
    /// Path of the HTML report
    #[arg(long, value_name = "FILE", default_value = "clawhost-personalize.html")]
    out: PathBuf,
    /// Keep all servers' data in this directory [default: a temporary directory, removed as arms finish]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Exit with code 1 when a target is missed
    #[arg(long)]
    check: bool,
    /// Print the result as one JSON object instead of the tables
    #[arg(long)]
    json: bool,
}

fn arm_values() -> impl TypedValueParser<Value = Arm> {
    let known = Arm::ALL.map(|arm| PossibleValue::new(arm.name()).help(arm.about()));
    PossibleValuesParser::new(known).try_map(|name| name.parse::<Arm>())
}

impl PersonalizeArgs {
    fn options(&self) -> PersonalizeOptions {
        let defaults = PersonalizeOptions::default();
        PersonalizeOptions {
            arms: selected_or(&self.arms, defaults.arms),
            tracks: selected_or(&self.personas, defaults.tracks),
            first_seed: self.seed,
            seeds: self.seeds,
            conversations: self.conversations.map(|count| count as usize),
            concurrency: self.concurrency as usize,
            probes: self.probes as usize,
            temperature: self.temperature,
            ..PersonalizeOptions::default()
        }
    }

    /// The command line that reproduces this run.
    fn command_line(&self, options: &PersonalizeOptions) -> String {
        let arms: Vec<&str> = options.arms.iter().map(|arm| arm.name()).collect();
        let tracks: Vec<&str> = options.tracks.iter().map(|track| track.name()).collect();
        let mut line = format!(
            "clawhost eval personalize --arms {} --personas {} --seeds {} --seed {} --concurrency {} --probes {}",
            arms.join(","),
            tracks.join(","),
            self.seeds,
            self.seed,
            self.concurrency,
            self.probes
        );
        if let Some(count) = self.conversations {
            line.push_str(&format!(" --conversations {count}"));
        }
        for (flag, value) in [("--model", &self.model), ("--config", &self.config)] {
            if let Some(value) = value {
                line.push_str(&format!(" {flag} {}", value.display()));
            }
        }
        if let Some(temperature) = self.temperature {
            line.push_str(&format!(" --temperature {temperature}"));
        }
        line
    }
}

/// The values values, sorted and without duplicates, or the default.
fn selected_or<T: Copy + Ord>(values: &[T], default: Vec<T>) -> Vec<T> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    if values.is_empty() { default } else { values }
}

/// Runs the command.
pub(crate) fn personalize(args: &PersonalizeArgs) -> Result<ExitCode> {
    // Check the report path now, not after minutes of work.
    check_writable(&args.out)?;
    let options = args.options();
    let mut config = arms::configuration(args.config.as_deref(), args.model.as_deref())?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cells = options.cells();
    let jobs = args
        .jobs
        .map_or(cores, |jobs| jobs as usize)
        .min(cells.len())
        .max(1);
    if config.engine.threads == 0 {
        config.engine.threads = (cores / jobs).max(1);
    }
    let names: Vec<String> = cells.iter().map(|cell| cell.name()).collect();
    let eval = Arc::new(EvalRun {
        config,
        data: DataDir::open(args.data.as_deref(), &names)?,
        jobs,
        served: tokio::sync::Mutex::default(),
        options,
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let (outcome, about) = runtime.block_on(async {
        let outcome = run_all(&eval).await;
        let about = about(&eval, args.command_line(&eval.options)).await;
        (outcome, about)
    });
    // Interrupted servers are dropped with the runtime; give their threads time to end.
    runtime.shutdown_timeout(Duration::from_secs(5));
    std::fs::write(&args.out, personalize_page(&outcome, &about))
        .with_context(|| format!("cannot write the report {}", args.out.display()))?;
    print_outcome(args, &outcome)?;
    Ok(if outcome.interrupted {
        ExitCode::from(130)
    } else if !outcome.failed.is_empty() || (args.check && !outcome.all_targets_met()) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn print_outcome(args: &PersonalizeArgs, outcome: &PersonalizeOutcome) -> Result<()> {
    let report = std::path::absolute(&args.out).unwrap_or_else(|_| args.out.clone());
    if args.json {
        let mut line = outcome.json();
        if let Some(fields) = line.as_object_mut() {
            fields.insert("report".into(), json!(report.display().to_string()));
        }
        return print_json(&line);
    }
    print(&personalize_table(outcome))?;
    print(&format!("Report: {}", report.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{FromArgMatches, Subcommand};

    fn read(flags: &[&str]) -> Result<PersonalizeOptions, clap::Error> {
        #[derive(Subcommand)]
        enum Only {
            Personalize(Box<PersonalizeArgs>),
        }
        let command = Only::augment_subcommands(clap::Command::new("eval"));
        let words = [&["eval", "personalize"], flags].concat();
        let matches = command.try_get_matches_from(words)?;
        let Only::Personalize(args) = Only::from_arg_matches(&matches)?;
        Ok(args.options())
    }

    #[test]
    fn arms_are_sorted_and_deduplicated() {
        let options = read(&["--arms", "hybrid,control,hybrid", "--personas", "teacher"]).unwrap();
        assert_eq!(options.arms, [Arm::Control, Arm::Hybrid]);
        assert_eq!(options.tracks, [Track::Teacher]);
        let options = read(&[]).unwrap();
        assert_eq!(options, PersonalizeOptions::default());
        assert!(!options.arms.contains(&Arm::Memory));
        assert!(read(&["--arms", "memory"]).is_ok());
    }

    #[test]
    fn unknown_values_are_rejected() {
        for flags in [
            ["--arms", "grpo"],
            ["--personas", "pupil"],
            ["--seeds", "0"],
            ["--conversations", "1"],
            ["--jobs", "0"],
        ] {
            assert!(read(&flags).is_err(), "{flags:?}");
        }
    }
}
