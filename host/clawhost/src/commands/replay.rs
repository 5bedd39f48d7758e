//! `clawhost replay`: what would other judges, or other options, have made of the record?

mod advantages;
mod models;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use clawhost_journal::{Journal, SessionId, TurnId};
use clawhost_judging::{Rejudged, Rejudging};
use clawhost_plugins::HostOptions;

use crate::capabilities::{Internet, PluginState};
use crate::config::Config;
use crate::loading::Loader;
use crate::output::{say, say_json};

use advantages::{Judged, next_batch};
use models::Lazily;
use report::{Named, Report};

/// Arguments of `clawhost replay`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  clawhost replay --plugin my-judge.wasm\n  \
    clawhost replay --plugin new.wasm --against old.wasm --limit 200\n  \
    clawhost replay --config stricter.toml --session conv-7 --json\n\n\
    Every turn is put before the judges as its judgement put it, and nothing is written: it works while a server runs \
    on the same data directory. What a judge keeps in its state begins empty. The same journal and components give \
    the same bytes again, as long as no judge asks a model or the network.")]
pub(crate) struct ReplayArgs {
    /// Data directory of the server [default: the configuration's, else clawhost-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Judge to ask; may be given several times [default: the configuration's, else the embedded one]
    #[arg(long, value_name = "FILE")]
    plugin: Vec<PathBuf>,
    /// Judge to compare with instead of what is recorded
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Configuration file, whose [judging] and [training] apply
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only the turns of this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only the latest so many turns [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn replay(args: &ReplayArgs) -> Result<ExitCode> {
    let mut config = Config::load(args.config.as_deref(), None)?;
    if let Some(data) = &args.data {
        config.server.data.clone_from(data);
    }
    let journal = Journal::open_read_only(&config.server.data)?;
    let (judges, rejudging) = bench(&config, &args.plugin)?;
    let against = args
        .against
        .as_ref()
        .map(|file| bench(&config, std::slice::from_ref(file)))
        .transpose()?;
    let mut report = Report::new(judges, against.as_ref().map(|(named, _)| named.clone()));
    let session = args.session.as_deref().map(SessionId::from);
    let turns = journal.judged_turns(session.as_ref(), args.limit.unwrap_or(u32::MAX))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads that replay")?;
    let mut judged: BTreeMap<TurnId, Judged> = BTreeMap::new();
    for turn in turns {
        let ask = |bench: &Rejudging| runtime.block_on(bench.turn(&journal, turn));
        // One after the other: what a judge keeps in its state grows in the order of the turns.
        let Some(new) = ask(&rejudging)? else {
            continue;
        };
        let old = match &against {
            Some((_, bench)) => ask(bench)?,
            None => None,
        };
        report.add(&new, old.as_ref());
        judged.insert(turn, training(new, old));
    }
    report.next = next_batch(&journal, &config.training, &judged)?;
    if args.json {
        say_json(&report)?;
    } else {
        say(&report.text())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What a turn would train with under either side; the record itself is the old side unless there is another.
fn training(new: Rejudged, old: Option<Rejudged>) -> Judged {
    let neutral = |told: &Rejudged| told.opinion.is_some_and(|o| o.reward == Some(0.0));
    Judged {
        neutral: neutral(&new),
        old_neutral: old.as_ref().is_some_and(neutral),
        new: new.sample,
        old: old.map(|old| old.sample),
    }
}

/// Judges that write nowhere, by the names and digests under which they are told: those in the files, else those of
/// the configuration, else the embedded one.
fn bench(config: &Config, files: &[PathBuf]) -> Result<(Vec<Named>, Rejudging)> {
    let loader = Loader::new(
        config,
        HostOptions {
            model: Some(Arc::new(Lazily::new(config.clone()))),
            state: Some(Arc::new(PluginState::in_memory(config.plugin_state)?)),
            network: Some(Arc::new(Internet)),
            ..config.plugin_host.clone()
        },
    )?;
    let judges = if files.is_empty() {
        loader.all(&config.load)?.judges
    } else {
        loader.judges(files)?
    };
    let named = judges
        .iter()
        .map(|judge| Named {
            name: judge.name().to_owned(),
            digest: judge.digest().to_owned(),
        })
        .collect();
    Ok((named, Rejudging::new(judges, config.judging.clone())))
}
