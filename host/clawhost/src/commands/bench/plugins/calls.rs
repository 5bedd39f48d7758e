//! Call measurements of one component, this host alternating with bare wasmtime.

use std::sync::Arc;

use anyhow::{Context, Result};
use clawhost_engine::measure::Spread;
use clawhost_plugins::measure::{self, BareEngine, CallLatencies, Callers, Sample};
use clawhost_plugins::{Grants, HostOptions, Plugin, PluginHost, Profile};
use serde::Serialize;

use crate::compiling;

/// Turns of this host and of bare wasmtime in a round: what else happens on the machine meets both.
const TURNS: usize = 10;

/// Concurrent calls in the second measurement of each pair.
pub(super) const MANY: usize = 256;

const PROFILES: [Profile; 2] = [Profile::Deterministic, Profile::Fast];

/// One table row: the rounds of one runner at one concurrency.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Calls {
    pub(super) component: String,
    pub(super) component_bytes: usize,
    pub(super) runner: String,
    pub(super) concurrency: usize,
    pub(super) calls: usize,
    pub(super) failed: usize,
    /// Latency as the caller sees it, queueing included.
    pub(super) p50_us: Spread,
    pub(super) p99_us: Spread,
    /// From the start of the instance to its end.
    pub(super) run_p50_us: Spread,
    pub(super) run_p99_us: Spread,
    pub(super) per_second: Spread,
    pub(super) peak_bytes: u64,
}

/// Ratio of calls/s of bare wasmtime to this host, paired by round. Both are called on the plugin threads, as the judges of a
/// server are, so neither hands over a call between threads.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Overhead {
    pub(super) component: String,
    pub(super) profile: Profile,
    pub(super) concurrency: usize,
    pub(super) ratio: Spread,
}

/// A component with its runners and their measurements.
pub(super) struct ComponentBench {
    name: &'static str,
    bytes: usize,
    host: PluginHost,
    plugins: Vec<Plugin>,
    /// Bare wasmtime in each profile.
    peers: Vec<(Profile, BareEngine)>,
    sample: Option<Arc<Sample>>,
    calls: usize,
    /// By runner and concurrency, in the order of the first round.
    rounds: Vec<Rounds>,
}

struct Rounds {
    runner: Runner,
    measured: Vec<CallLatencies>,
}

/// What makes the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    Host(Profile, Callers),
    Bare(Profile),
}

impl std::fmt::Display for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Runner::Host(profile, Callers::OnPluginThreads) => write!(f, "clawhost, {profile}"),
            Runner::Host(profile, Callers::OtherThreads) => {
                write!(f, "clawhost, {profile}, handed over")
            }
            Runner::Bare(profile) => write!(f, "wasmtime alone, {profile}"),
        }
    }
}

impl ComponentBench {
    /// An embedded judge, run by this host in both profiles and by bare wasmtime.
    pub(super) fn new(name: &'static str, calls: usize) -> Result<Self> {
        let mut bench = Self::of_host(name, calls)?;
        for profile in PROFILES {
            let peer = BareEngine::new(embedded_plugin(name)?, profile, &HostOptions::default())?;
            bench.peers.push((profile, peer));
        }
        Ok(bench)
    }

    /// An embedded component, run by this host in both profiles.
    pub(super) fn of_host(name: &'static str, calls: usize) -> Result<Self> {
        let host = compiling::host(HostOptions::default())?;
        let component = embedded_plugin(name)?;
        let plugins = PROFILES
            .into_iter()
            .map(|profile| host.load(name, component, &Grants::default(), profile))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            name,
            bytes: component.len(),
            host,
            plugins,
            peers: Vec::new(),
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

    /// Runs one round: every runner at each concurrency.
    pub(super) async fn measure(&mut self, concurrency: &[usize]) -> Result<()> {
        let sample = match &self.sample {
            Some(sample) => sample.clone(),
            None => self.sample.insert(sample(&self.plugins[0]).await?).clone(),
        };
        let (here, handed_over) = (Callers::OnPluginThreads, Callers::OtherThreads);
        for &concurrency in concurrency {
            for plugin in self.plugins.clone() {
                let profile = plugin.profile();
                let host = |callers, calls| {
                    measure::measure_calls(&plugin, &sample, callers, concurrency, calls)
                };
                let peer = self.peers.iter().find(|(of, _)| *of == profile);
                let calls = self.calls.div_ceil(TURNS);
                let (mut own, mut bare) = (Vec::new(), Vec::new());
                for _ in 0..TURNS {
                    own.push(host(here, calls).await);
                    if let Some((_, peer)) = peer {
                        let (peer, sample) = (peer.clone(), Arc::clone(&sample));
                        let turn =
                            async move { peer.judge_calls(&sample, concurrency, calls).await };
                        bare.push(self.host.threads().run(turn).await);
                    }
                }
                let queued = host(handed_over, self.calls).await;
                self.record(Runner::Host(profile, here), CallLatencies::of_turns(&own));
                self.record(Runner::Host(profile, handed_over), queued);
                if !bare.is_empty() {
                    self.record(Runner::Bare(profile), CallLatencies::of_turns(&bare));
                }
            }
        }
        Ok(())
    }

    fn record(&mut self, runner: Runner, measured: CallLatencies) {
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
                measured: vec![measured],
            }),
        }
    }

    /// The table rows.
    pub(super) fn calls(&self) -> Vec<Calls> {
        self.rounds
            .iter()
            .map(|rounds| {
                Calls::summarize(
                    self.name,
                    self.bytes,
                    &rounds.runner.to_string(),
                    rounds.measured.as_slice(),
                )
            })
            .collect()
    }

    /// Overhead of this host over bare wasmtime, in each profile.
    pub(super) fn overhead(&self) -> Vec<Overhead> {
        let mut overheads = Vec::new();
        for ours in &self.rounds {
            let (Runner::Host(profile, Callers::OnPluginThreads), Some(concurrency)) = (
                ours.runner,
                ours.measured.first().map(|first| first.concurrency),
            ) else {
                continue;
            };
            let bare = self.rounds.iter().find(|other| {
                other.runner == Runner::Bare(profile)
                    && other
                        .measured
                        .first()
                        .is_some_and(|first| first.concurrency == concurrency)
            });
            let Some(bare) = bare else { continue };
            let ratios: Vec<f64> = bare
                .measured
                .iter()
                .zip(&ours.measured)
                .map(|(alone, ours)| alone.per_second / ours.per_second.max(1e-9))
                .collect();
            overheads.push(Overhead {
                component: self.name.to_owned(),
                profile,
                concurrency,
                ratio: Spread::of(&ratios),
            });
        }
        overheads
    }
}

impl Calls {
    /// Summarises the rounds of one runner.
    pub(super) fn summarize(
        component: &str,
        bytes: usize,
        runner: &str,
        rounds: &[CallLatencies],
    ) -> Self {
        let spread = |value: fn(&CallLatencies) -> f64| {
            Spread::of(&rounds.iter().map(value).collect::<Vec<f64>>())
        };
        Self {
            component: component.to_owned(),
            component_bytes: bytes,
            runner: runner.to_owned(),
            concurrency: rounds[0].concurrency,
            calls: rounds.iter().map(|round| round.calls).sum(),
            failed: rounds.iter().map(|round| round.failed).sum(),
            p50_us: spread(|round| round.p50_us),
            p99_us: spread(|round| round.p99_us),
            run_p50_us: spread(|round| round.run_p50_us),
            run_p99_us: spread(|round| round.run_p99_us),
            per_second: spread(|round| round.per_second),
            peak_bytes: rounds
                .iter()
                .map(|round| round.peak_bytes)
                .max()
                .expect("a runner has a round"),
        }
    }
}

/// An embedded component.
pub(super) fn embedded_plugin(name: &str) -> Result<&'static [u8]> {
    clawhost_plugins::embedded_component(name)
        .with_context(|| format!("the embedded plugin {name} is missing"))
}

/// The input for a component, created once.
pub(super) async fn sample(plugin: &clawhost_plugins::Plugin) -> Result<Arc<Sample>> {
    let sample = Sample::for_plugin(plugin).await;
    Ok(Arc::new(sample.with_context(|| {
        format!("{} does not declare its inputs", plugin.name())
    })?))
}
