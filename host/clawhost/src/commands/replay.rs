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
use clawhost_journal::{Journal, TurnId};
use clawhost_judging::{Rejudged, Rejudging};
use clawhost_plugins::{HostOptions, Kind};
use clawhost_training::Components;

use super::explain::session_called;
use crate::capabilities::{Internet, PluginState};
use crate::config::Config;
use crate::loading::Loader;
use crate::output::{say, say_json};
use crate::serve::component_calls;

use advantages::{HINT_ALONE, Judged, next_batch};
use models::Lazily;
use report::{Named, Report};

/// Arguments of `clawhost replay`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  clawhost replay --plugin my-judge.wasm\n  \
    clawhost replay --plugin new.wasm --against old.wasm --limit 200\n  \
    clawhost replay --plugin judge.wasm --plugin advantage.wasm\n  \
    clawhost replay --config stricter.toml --session conv-7 --json\n\n\
    Every turn is put before the judges as its judgement put it, and nothing is written: it works while a server runs \
    on the same data directory. A group judge is shown all whole choices of a request together; an advantage component \
    estimates the next batch in place of the configured estimator. What a judge keeps in its state begins empty. The \
    same journal and components give the same bytes again, as long as no judge asks a model or the network.")]
pub(crate) struct ReplayArgs {
    /// Data directory of the server [default: the configuration's, else clawhost-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Judge or group judge to ask, or advantage component; may be given several times [default: the configuration's, else
    /// the embedded judge]
    #[arg(long, value_name = "FILE")]
    plugin: Vec<PathBuf>,
    /// Judge or group judge to compare with instead of what is recorded
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Configuration file, whose [judging] and [training] apply
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only the turns of this session, by id or name
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
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads that replay")?;
    // Estimators wait for their component.
    let _context = runtime.enter();
    let bench = |files: &[PathBuf]| runtime.block_on(Bench::of(&config, files));
    let new = bench(&args.plugin)?;
    let against = args
        .against
        .as_ref()
        .map(|file| bench(std::slice::from_ref(file)))
        .transpose()?;
    let named = against.as_ref().map(|against| against.named.clone());
    let mut report = Report::new(new.named.clone(), named);
    let session = match args.session.as_deref() {
        Some(name) => Some(session_called(&journal, name)?.unwrap_or_else(|| name.into())),
        None => None,
    };
    let turns = journal.judged_turns(session.as_ref(), args.limit.unwrap_or(u32::MAX))?;
    let mut judged: BTreeMap<TurnId, Judged> = BTreeMap::new();
    for turn in turns {
        if judged.contains_key(&turn) {
            // Another choice of its request came before it.
            continue;
        }
        // One after the other: what a judge keeps in its state grows in the order of the turns.
        let ask = |bench: &Bench| runtime.block_on(bench.judged(&journal, turn));
        let told = ask(&new)?;
        let mut old = against.as_ref().map(ask).transpose()?.unwrap_or_default();
        if told.is_empty() {
            report.leave(&journal, turn)?;
        }
        for new in told {
            let at = old.iter().position(|old| old.turn.id == new.turn.id);
            let old = at.map(|at| old.swap_remove(at));
            report.add(&new, old.as_ref());
            judged.insert(new.turn.id, training(new, old));
        }
    }
    report.next = next_batch(&journal, &config.training, &new.components, &judged)?;
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
    let rewarded = |told: Rejudged| {
        told.sample
            .and_then(|reward| reward.ok_or_else(|| HINT_ALONE.to_owned()))
    };
    Judged {
        neutral: neutral(&new),
        old_neutral: old.as_ref().is_some_and(neutral),
        new: rewarded(new),
        old: old.map(rewarded),
    }
}

/// Components that write nowhere.
struct Bench {
    /// The judges, by the names and digests under which they are told.
    named: Vec<Named>,
    rejudging: Rejudging,
    /// What estimates advantages, if a component does.
    components: Components,
}

impl Bench {
    /// What is in the files, else what the configuration names; the embedded judge when there is no judge among them.
    async fn of(config: &Config, files: &[PathBuf]) -> Result<Self> {
        let loader = Loader::new(
            config,
            HostOptions {
                model: Some(Arc::new(Lazily::new(config.clone()))),
                state: Some(Arc::new(PluginState::in_memory(config.plugin_state)?)),
                network: Some(Arc::new(Internet)),
                ..config.plugin_host.clone()
            },
        )?;
        let files = if files.is_empty() {
            &config.load
        } else {
            files
        };
        let loaded = loader.all(files)?;
        let judges = loaded.of(&[Kind::Judge, Kind::GroupJudge]);
        let named = judges
            .iter()
            .map(|judge| Named {
                name: judge.name().to_owned(),
                digest: judge.digest().to_owned(),
            })
            .collect();
        // A loss has no part in what is learned from, only in how.
        let estimators = loaded.of(&[Kind::Advantage]);
        Ok(Self {
            named,
            rejudging: Rejudging::new(judges, config.judging()),
            components: Components::new(&estimators, &component_calls(config)).await?,
        })
    }

    /// A turn judged anew, or all choices of its request where they are judged together. None where there is nothing
    /// to ask.
    async fn judged(&self, journal: &Journal, turn: TurnId) -> Result<Vec<Rejudged>> {
        let together = self.rejudging.together(journal, turn).await?;
        if !together.is_empty() {
            return Ok(together);
        }
        Ok(self
            .rejudging
            .turn(journal, turn)
            .await?
            .into_iter()
            .collect())
    }
}
