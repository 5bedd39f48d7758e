//! `clawhost replay`: judges recorded turns again with other judges or options and compares the results.

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
use clawhost_judging::{RejudgeResult, Rejudger};
use clawhost_plugins::{HostOptions, Kind};
use clawhost_training::{ComponentOptions, Components};

use super::explain::find_session;
use crate::capabilities::{Internet, PluginState};
use crate::config::Config;
use crate::output::print_result;
use crate::plugin_loader::Loader;
use crate::serve::component_calls;

use advantages::{HINT_ONLY, ReplayedReward, next_batch};
use models::LazyModels;
use report::{JudgeId, Report};

/// Arguments of `clawhost replay`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  clawhost replay --plugin my-judge.wasm\n  \
    clawhost replay --plugin new.wasm --against old.wasm --limit 200\n  \
    clawhost replay --plugin judge.wasm --plugin advantage.wasm\n  \
    clawhost replay --config stricter.toml --session conv-7 --json\n\n\
    Each turn is judged with the same input as in its recorded judgement. Nothing is written, so it works while a server runs \
    on the same data directory. A group judge gets all finished choices of a request together; an advantage component \
    replaces the configured estimator for the next batch. A judge's state starts empty. The \
    same journal and components give identical output, as long as no judge calls a model or the network.")]
pub(crate) struct ReplayArgs {
    /// Data directory of the server [default: the configuration's, else clawhost-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Judge, group judge or advantage component; can be repeated [default: the configuration's, else the embedded
    /// judge]
    #[arg(long, value_name = "FILE")]
    plugin: Vec<PathBuf>,
    /// Judge or group judge to compare with instead of the recorded verdicts
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Configuration file; its [judging] and [training] sections apply
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a key of the configuration; can be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// Only turns of this session, by id or name
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only the latest N turns [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn replay(args: &ReplayArgs) -> Result<ExitCode> {
    let mut config = Config::load(args.config.as_deref(), &args.set, None)?;
    if let Some(data) = &args.data {
        config.server.data_dir.clone_from(data);
    }
    let journal = Journal::open_read_only(&config.server.data_dir)?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    // Advantage components block within the runtime's context.
    let _context = runtime.enter();
    let load_panel = |files: &[PathBuf]| runtime.block_on(ReplayPanel::load(&config, files));
    let new = load_panel(&args.plugin)?;
    let against = args
        .against
        .as_ref()
        .map(|file| load_panel(std::slice::from_ref(file)))
        .transpose()?;
    let against_judges = against.as_ref().map(|against| against.judge_ids.clone());
    let mut report = Report::new(new.judge_ids.clone(), against_judges);
    let session = match args.session.as_deref() {
        Some(name) => Some(find_session(&journal, name)?.unwrap_or_else(|| name.into())),
        None => None,
    };
    let turns = journal.judged_turns(session.as_ref(), args.limit.unwrap_or(u32::MAX))?;
    let mut judged: BTreeMap<TurnId, ReplayedReward> = BTreeMap::new();
    for turn in turns {
        if judged.contains_key(&turn) {
            // Already judged together with another choice of the same request.
            continue;
        }
        // Sequential: a judge's state evolves in the order of the turns.
        let rejudge = |panel: &ReplayPanel| runtime.block_on(panel.rejudge(&journal, turn));
        let results = rejudge(&new)?;
        let mut old = against
            .as_ref()
            .map(rejudge)
            .transpose()?
            .unwrap_or_default();
        if results.is_empty() {
            report.count_skipped(&journal, turn)?;
        }
        for new in results {
            let at = old.iter().position(|old| old.turn.id == new.turn.id);
            let old = at.map(|at| old.swap_remove(at));
            report.add(&new, old.as_ref());
            judged.insert(new.turn.id, replayed_reward(new, old));
        }
    }
    report.next = next_batch(&journal, &config.training, &new.components, &judged)?;
    print_result(args.json, &report, || report.text())
}

/// The rewards of a turn on both sides; without a second judge, the record is the old side.
fn replayed_reward(new: RejudgeResult, old: Option<RejudgeResult>) -> ReplayedReward {
    let neutral = |result: &RejudgeResult| result.combined.is_some_and(|o| o.reward == Some(0.0));
    let reward_of = |result: RejudgeResult| {
        result
            .sample
            .and_then(|reward| reward.ok_or_else(|| HINT_ONLY.to_owned()))
    };
    ReplayedReward {
        neutral: neutral(&new),
        old_neutral: old.as_ref().is_some_and(neutral),
        new: reward_of(new),
        old: old.map(reward_of),
    }
}

/// Components that write nothing.
struct ReplayPanel {
    /// Names and digests of the judges in the report.
    judge_ids: Vec<JudgeId>,
    rejudger: Rejudger,
    /// The advantage component, if any.
    components: Components,
}

impl ReplayPanel {
    /// Loads the files, else the configured components; the embedded judge if there is no judge among them.
    async fn load(config: &Config, files: &[PathBuf]) -> Result<Self> {
        let loader = Loader::new(
            config,
            HostOptions {
                model: Some(Arc::new(LazyModels::new(config.clone()))),
                state: Some(Arc::new(PluginState::in_memory(config.plugins.state)?)),
                network: Some(Arc::new(Internet)),
                ..HostOptions::from(config.plugins.host)
            },
        )?;
        let files = if files.is_empty() {
            &config.plugins.files
        } else {
            files
        };
        let loaded = loader.load_all(files)?;
        let judges = loaded.of_kinds(&[Kind::Judge, Kind::GroupJudge]);
        let judge_ids = judges
            .iter()
            .map(|judge| JudgeId {
                name: judge.name().to_owned(),
                digest: judge.digest().to_owned(),
            })
            .collect();
        // Losses do not change rewards or advantages, so their components are not needed.
        let estimators = loaded.of_kinds(&[Kind::Advantage]);
        let calls = ComponentOptions {
            pair_loss: false,
            ..component_calls(config)
        };
        Ok(Self {
            judge_ids,
            rejudger: Rejudger::new(
                loader.threads(),
                judges,
                config.judging_options(),
                config.plugins.clone(),
            ),
            components: Components::new(&estimators, &calls).await?,
        })
    }

    /// Judges a turn again, or all choices of its request if they are judged as a group. Empty if there is nothing to
    /// ask a judge.
    async fn rejudge(&self, journal: &Journal, turn: TurnId) -> Result<Vec<RejudgeResult>> {
        let group = self.rejudger.rejudge_group(journal, turn).await?;
        if !group.is_empty() {
            return Ok(group);
        }
        Ok(self
            .rejudger
            .rejudge_turn(journal, turn)
            .await?
            .into_iter()
            .collect())
    }
}
