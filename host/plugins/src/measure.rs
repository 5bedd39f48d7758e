//! Measures judge calls: what a call costs here, and what the bare engine needs for the same.
//!
//! Every call makes a fresh instance, through the whole host: grants, limits, receipt, checks. The
//! peer is a plain loop over the engine in the same run: its default configuration, no limits, no
//! threads of its own between caller and guest.

mod failing;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Config, Engine, Store};

use crate::bindings::judge::GuestIndices;
use crate::call::CallContext;
use crate::conversation::{Message, Role, Trajectory, Turn};
use crate::convert;
use crate::error::PluginError;
use crate::grants::Grants;
use crate::host::{HostOptions, Plugin, PluginHost};
use crate::profile::Profile;

pub use failing::{FailingCalls, failing_calls, resident_bytes};

/// How much to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Calls of each measurement. Default 5,000.
    pub calls: usize,
    /// Calls at a time in the second measurement of each pair. Default 256.
    pub at_once: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Effort {
            calls: 5_000,
            at_once: 256,
        }
    }
}

/// Times of one measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// What was measured.
    pub what: String,
    /// Calls at a time.
    pub at_once: usize,
    /// Calls measured.
    pub calls: usize,
    /// Calls that did not end with a verdict.
    pub failed: usize,
    /// Median time of a call, in microseconds. With many at a time it includes waiting.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// Calls per second.
    pub per_second: f64,
}

/// What [`judge_calls`] found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JudgeCalls {
    /// sha256 of the component.
    pub digest: String,
    /// Bytes of the component.
    pub component_bytes: usize,
    /// Bytes of text in the judged trajectory.
    pub input_bytes: usize,
    /// Time to check, compile and link it, in milliseconds.
    pub load_ms: f64,
    /// Threads that run guests.
    pub threads: usize,
    /// Instances come from a pool.
    pub pooled: bool,
    /// The measurements, this host's and the peer's.
    pub spreads: Vec<Spread>,
}

/// Measures judge calls of a component, one at a time and many at a time: this host in both
/// profiles, and the bare engine.
///
/// # Errors
/// [`PluginError`] when the component cannot be loaded with no grants.
pub async fn judge_calls(
    component: &[u8],
    options: &HostOptions,
    effort: Effort,
) -> Result<JudgeCalls, PluginError> {
    let host = PluginHost::new(options.clone())?;
    let started = Instant::now();
    let none = Grants::default();
    let first = host.load("measured", component, &none, Profile::Deterministic)?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    let plugins = [
        first,
        host.load("measured", component, &none, Profile::Fast)?,
    ];
    let trajectory = Arc::new(sample_trajectory());
    let mut spreads = Vec::new();
    for at_once in [1, effort.at_once.max(1)] {
        for plugin in &plugins {
            let what = format!("clawhost, {}", plugin.profile());
            let spread = measure(&what, at_once, effort.calls, |calls| {
                drive(plugin.clone(), Arc::clone(&trajectory), calls)
            });
            spreads.push(spread.await);
        }
        let peer = Peer::new(component)?;
        spreads.push(peer.measure(options.threads, at_once, effort.calls, &trajectory)?);
    }
    Ok(JudgeCalls {
        digest: plugins
            .first()
            .map(|plugin| plugin.digest().to_owned())
            .unwrap_or_default(),
        component_bytes: component.len(),
        input_bytes: serde_json::to_string(&*trajectory).map_or(0, |json| json.len()),
        load_ms,
        threads: options.threads,
        pooled: host.is_pooled(Profile::Deterministic)?,
        spreads,
    })
}

/// Times of the calls that one driver made, and how many of them failed.
type Driven = (Vec<Duration>, usize);

/// Calls left to make, shared by the drivers of one measurement.
type Left = Arc<AtomicUsize>;

fn take(left: &Left) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
        .is_ok()
}

async fn drive(plugin: Plugin, trajectory: Arc<Trajectory>, left: Left) -> Driven {
    let (mut times, mut failed) = (Vec::new(), 0);
    while take(&left) {
        let call = CallContext {
            run_id: "measure".to_owned(),
            ..CallContext::default()
        };
        let started = Instant::now();
        let judged = plugin.score_turn(call, &trajectory, 0).await;
        times.push(started.elapsed());
        failed += usize::from(judged.outcome.is_err());
    }
    (times, failed)
}

/// Runs `at_once` drivers until `calls` calls are made, after a warm-up of a tenth.
async fn measure<F, W>(what: &str, at_once: usize, calls: usize, driver: F) -> Spread
where
    F: Fn(Left) -> W,
    W: Future<Output = Driven> + Send + 'static,
{
    let round = |calls: usize| {
        let left: Left = Arc::new(AtomicUsize::new(calls));
        let mut drivers = JoinSet::new();
        for _ in 0..at_once {
            drivers.spawn(driver(Arc::clone(&left)));
        }
        drivers.join_all()
    };
    round(calls / 10).await;
    let started = Instant::now();
    let driven = round(calls).await;
    let took = started.elapsed();
    spread(what, at_once, driven, took)
}

fn spread(what: &str, at_once: usize, driven: Vec<Driven>, took: Duration) -> Spread {
    let failed = driven.iter().map(|(_, failed)| failed).sum();
    let mut times: Vec<Duration> = driven.into_iter().flat_map(|(times, _)| times).collect();
    times.sort_unstable();
    let at = |share: f64| {
        let place = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times
            .get(place)
            .map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    Spread {
        what: what.to_owned(),
        at_once,
        calls: times.len(),
        failed,
        p50_us: at(0.5),
        p99_us: at(0.99),
        per_second: times.len() as f64 / took.as_secs_f64().max(1e-9),
    }
}

/// The bare engine: a store, an instance and a call, nothing around them.
struct Peer {
    engine: Engine,
    pre: InstancePre<()>,
    indices: GuestIndices,
}

impl Peer {
    fn new(component: &[u8]) -> Result<Peer, PluginError> {
        let failed = |error: wasmtime::Error| PluginError::Host(format!("{error:#}"));
        let engine = Engine::new(&Config::new()).map_err(failed)?;
        let component = Component::from_binary(&engine, component).map_err(failed)?;
        let mut linker = Linker::<()>::new(&engine);
        linker
            .define_unknown_imports_as_traps(&component)
            .map_err(failed)?;
        let pre = linker.instantiate_pre(&component).map_err(failed)?;
        Ok(Peer {
            indices: GuestIndices::new(&pre).map_err(failed)?,
            pre,
            engine,
        })
    }

    fn measure(
        &self,
        threads: usize,
        at_once: usize,
        calls: usize,
        trajectory: &Arc<Trajectory>,
    ) -> Result<Spread, PluginError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .build()
            .map_err(|error| PluginError::Host(error.to_string()))?;
        let measured = runtime.spawn({
            let (engine, pre, indices) =
                (self.engine.clone(), self.pre.clone(), self.indices.clone());
            let trajectory = Arc::clone(trajectory);
            async move {
                measure("wasmtime alone", at_once, calls, |left| {
                    let peer = (engine.clone(), pre.clone(), indices.clone());
                    drive_peer(peer, Arc::clone(&trajectory), left)
                })
                .await
            }
        });
        // The measurement runs on the peer's own threads; this one only waits for it.
        let spread = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let wait = tokio::runtime::Builder::new_current_thread().build();
                wait.map(|wait| wait.block_on(measured))
            });
            waiting.join()
        });
        runtime.shutdown_background();
        match spread {
            Ok(Ok(Ok(spread))) => Ok(spread),
            _ => Err(PluginError::Host(
                "the peer's measurement failed".to_owned(),
            )),
        }
    }
}

async fn drive_peer(
    (engine, pre, indices): (Engine, InstancePre<()>, GuestIndices),
    trajectory: Arc<Trajectory>,
    left: Left,
) -> Driven {
    let (mut times, mut failed) = (Vec::new(), 0);
    while take(&left) {
        let started = Instant::now();
        let trajectory = convert::trajectory_to_guest(&trajectory);
        let mut store = Store::new(&engine, ());
        let judged = async {
            let instance = pre.instantiate_async(&mut store).await?;
            let judge = indices.load(&mut store, &instance)?;
            judge.call_score_turn(&mut store, &trajectory, 0).await
        };
        failed += usize::from(!matches!(judged.await, Ok(Ok(_))));
        drop(store);
        times.push(started.elapsed());
        // Without a tick the guest never yields; let the other drivers run.
        tokio::task::yield_now().await;
    }
    (times, failed)
}

/// A short conversation of about 2 KB, as a tutor's users have them.
fn sample_trajectory() -> Trajectory {
    let reply =
        "**Answer: 7 apples**\n\n1. Maria starts with 12 apples.\n2. She gives 5 of them away.\n\
                 3. 12 - 5 = **7**, so seven apples remain.\n\n"
            .repeat(8);
    let mut trajectory = Trajectory::new("measure", "measure");
    trajectory.turns.push(Turn {
        index: 0,
        prompt: vec![
            Message::text(Role::System, "You help with homework. Be short and friendly. ".repeat(8)),
            Message::text(
                Role::User,
                "Maria has 12 apples and gives 5 to her brother. How many apples does she have left?",
            ),
        ],
        response: Message::text(Role::Assistant, reply),
        next_state: vec![Message::text(
            Role::User,
            "Thanks, but could you write that again without the bold and the list? It looks like AI.",
        )],
        truncated: false,
    });
    trajectory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_drivers_together() {
        let time = Duration::from_micros;
        let driven = vec![
            ((1..=50).map(time).collect(), 1),
            ((51..=100).map(time).collect(), 2),
        ];
        let spread = spread("x", 2, driven, Duration::from_secs(2));
        assert_eq!((spread.calls, spread.failed), (100, 3));
        assert_eq!((spread.p50_us, spread.p99_us), (51.0, 100.0));
        assert_eq!(spread.per_second, 50.0);
    }

    #[tokio::test]
    async fn every_measurement_makes_its_calls_and_none_fails() {
        let options = HostOptions {
            threads: 2,
            instances: 8,
            ..HostOptions::default()
        };
        let effort = Effort {
            calls: 20,
            at_once: 4,
        };
        let component = crate::embedded("judge-next-state").unwrap();
        let found = judge_calls(component, &options, effort).await.unwrap();
        assert_eq!(found.spreads.len(), 6);
        for spread in &found.spreads {
            assert_eq!((spread.calls, spread.failed), (20, 0), "{spread:?}");
        }
    }
}
