//! Rounds of calls of one component, this host and the engine alone in turns.

use std::sync::Arc;

use anyhow::Result;
use clawhost_plugins::measure::{self, Peer, Sample, Spread as Measured};
use clawhost_plugins::{Grants, HostOptions, Plugin, PluginHost, Profile};
use clawhost_policy::measure::Spread;
use serde::Serialize;

use super::{embedded, sample};
use crate::compiling;

/// The name of the engine without this host.
const ALONE: &str = "wasmtime alone";

/// One line of the table: the rounds of one runner with so many calls at a time.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Calls {
    pub(super) component: String,
    pub(super) component_bytes: usize,
    pub(super) runner: String,
    pub(super) concurrency: usize,
    pub(super) calls: usize,
    pub(super) failed: usize,
    /// As the caller sees it, waiting included.
    pub(super) p50_us: Spread,
    pub(super) p99_us: Spread,
    /// From the start of the instance to its end.
    pub(super) run_p50_us: Spread,
    pub(super) run_p99_us: Spread,
    pub(super) per_second: Spread,
    pub(super) peak_bytes: u64,
}

/// Calls/s of the engine alone over those of this host, each pair from one round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Overhead {
    pub(super) component: String,
    pub(super) profile: Profile,
    pub(super) concurrency: usize,
    pub(super) ratio: Spread,
}

/// A component with those who run it, and what they took so far.
pub(super) struct Side {
    name: &'static str,
    bytes: usize,
    host: PluginHost,
    plugins: Vec<Plugin>,
    peer: Option<Peer>,
    sample: Option<Arc<Sample>>,
    calls: usize,
    /// By runner and concurrency, in the order of the first round.
    rounds: Vec<Rounds>,
}

struct Rounds {
    runner: String,
    profile: Option<Profile>,
    measured: Vec<Measured>,
}

impl Side {
    /// An embedded judge, run by this host in both profiles and by the engine alone.
    pub(super) fn new(name: &'static str, calls: usize) -> Result<Self> {
        let mut side = Self::of_host(name, calls)?;
        side.peer = Some(Peer::new(embedded(name)?)?);
        Ok(side)
    }

    /// An embedded component, run by this host in both profiles.
    pub(super) fn of_host(name: &'static str, calls: usize) -> Result<Self> {
        let host = compiling::host(HostOptions::default())?;
        let component = embedded(name)?;
        let plugins = [Profile::Deterministic, Profile::Fast]
            .into_iter()
            .map(|profile| host.load(name, component, &Grants::default(), profile))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            name,
            bytes: component.len(),
            host,
            plugins,
            peer: None,
            sample: None,
            calls: calls.max(1),
            rounds: Vec::new(),
        })
    }

    pub(super) fn component(&self) -> &'static str {
        self.name
    }

    pub(super) fn is_pooled(&self) -> Result<bool> {
        Ok(self.host.is_pooled(Profile::Deterministic)?)
    }

    /// One round: every runner with each number of calls at a time.
    pub(super) async fn measure(&mut self, at_once: &[usize]) -> Result<()> {
        let sample = match (&self.sample, self.plugins.first()) {
            (Some(sample), _) => sample.clone(),
            (None, Some(plugin)) => self.sample.insert(sample(plugin).await?).clone(),
            (None, None) => return Ok(()),
        };
        for &at_once in at_once {
            for plugin in self.plugins.clone() {
                let measured = measure::calls(&plugin, &sample, at_once, self.calls).await;
                let runner = format!("clawhost, {}", plugin.profile());
                self.note(runner, Some(plugin.profile()), measured);
            }
            if let Some(peer) = &self.peer {
                let measured = peer.judge_calls(&sample, at_once, self.calls).await;
                self.note(ALONE.to_owned(), None, measured);
            }
        }
        Ok(())
    }

    fn note(&mut self, runner: String, profile: Option<Profile>, measured: Measured) {
        let same = |rounds: &&mut Rounds| {
            rounds.runner == runner
                && rounds
                    .measured
                    .first()
                    .is_some_and(|first| first.concurrency == measured.concurrency)
        };
        match self.rounds.iter_mut().find(same) {
            Some(rounds) => rounds.measured.push(measured),
            None => self.rounds.push(Rounds {
                runner,
                profile,
                measured: vec![measured],
            }),
        }
    }

    /// The lines of the table.
    pub(super) fn calls(&self) -> Vec<Calls> {
        self.rounds
            .iter()
            .map(|rounds| {
                Calls::of(
                    self.name,
                    self.bytes,
                    &rounds.runner,
                    rounds.measured.as_slice(),
                )
            })
            .collect()
    }

    /// What this host costs over the engine alone, in each profile.
    pub(super) fn overhead(&self) -> Vec<Overhead> {
        let mut found = Vec::new();
        for ours in &self.rounds {
            let (Some(profile), Some(concurrency)) = (
                ours.profile,
                ours.measured.first().map(|first| first.concurrency),
            ) else {
                continue;
            };
            let alone = self.rounds.iter().find(|other| {
                other.profile.is_none()
                    && other
                        .measured
                        .first()
                        .is_some_and(|first| first.concurrency == concurrency)
            });
            let Some(alone) = alone else { continue };
            let ratios: Vec<f64> = alone
                .measured
                .iter()
                .zip(&ours.measured)
                .map(|(alone, ours)| alone.per_second / ours.per_second.max(1e-9))
                .collect();
            found.push(Overhead {
                component: self.name.to_owned(),
                profile,
                concurrency,
                ratio: Spread::of(&ratios),
            });
        }
        found
    }
}

impl Calls {
    /// The rounds of one runner as one line.
    pub(super) fn of(component: &str, bytes: usize, runner: &str, rounds: &[Measured]) -> Self {
        let over = |value: fn(&Measured) -> f64| {
            Spread::of(&rounds.iter().map(value).collect::<Vec<f64>>())
        };
        Self {
            component: component.to_owned(),
            component_bytes: bytes,
            runner: runner.to_owned(),
            concurrency: rounds.first().map_or(0, |first| first.concurrency),
            calls: rounds.iter().map(|round| round.calls).sum(),
            failed: rounds.iter().map(|round| round.failed).sum(),
            p50_us: over(|round| round.p50_us),
            p99_us: over(|round| round.p99_us),
            run_p50_us: over(|round| round.run_p50_us),
            run_p99_us: over(|round| round.run_p99_us),
            per_second: over(|round| round.per_second),
            peak_bytes: rounds
                .iter()
                .map(|round| round.peak_bytes)
                .max()
                .unwrap_or(0),
        }
    }
}
