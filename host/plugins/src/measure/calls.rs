//! Benchmarks calls of one plugin through the host.

use std::sync::Arc;
use std::time::Duration;

use super::latencies::{CallLatencies, CallOutcome, measure};
use super::sample::Sample;
use crate::call::CallContext;
use crate::host::Plugin;
use crate::kind::Kind;
use crate::receipt::CallResult;
use crate::worlds::environment::EpisodeTask;

/// Where the callers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// On the threads of the caller, as those of training are: each call is handed over to the plugin threads and back.
    OtherThreads,
    /// On the plugin threads, as those of a judgement are; see [`PluginThreads::run`](crate::PluginThreads::run).
    OnPluginThreads,
}

/// Makes `calls` calls of the plugin's kind, `concurrency` at a time, each in a fresh instance: a loss is evaluated, an
/// environment is reset and closed. The plugin error `unsupported` does not count as a failure.
///
/// # Panics
/// A call panicked.
pub async fn measure_calls(
    plugin: &Plugin,
    sample: &Arc<Sample>,
    callers: Callers,
    concurrency: usize,
    calls: usize,
) -> CallLatencies {
    let (own, sample) = (plugin.clone(), Arc::clone(sample));
    let measured = measure(concurrency, calls, move || {
        let (plugin, sample) = (own.clone(), Arc::clone(&sample));
        async move { call(&plugin, &sample).await }
    });
    match callers {
        Callers::OtherThreads => measured.await,
        Callers::OnPluginThreads => plugin.threads().run(measured).await,
    }
}

async fn call(plugin: &Plugin, sample: &Sample) -> CallOutcome {
    let call = CallContext {
        run_id: "measure".to_owned(),
        limits: plugin.kind().default_limits(),
        ..CallContext::default()
    };
    match plugin.kind() {
        Kind::Judge => outcome(plugin.score_turn(call, &sample.trajectory, 0).await),
        Kind::GroupJudge => {
            let group = vec![sample.trajectory.clone(); 8];
            outcome(plugin.score_group(call, &group).await)
        }
        Kind::Hint => outcome(plugin.extract_hint(call, &sample.trajectory, 0).await),
        Kind::Filter => outcome(
            plugin
                .filter_turn(call, &sample.trajectory, 0, Some(1.0))
                .await,
        ),
        Kind::Loss => {
            let batch = sample.batch.clone();
            outcome(plugin.evaluate_loss(call, sample.needs, batch).await)
        }
        Kind::PairLoss => outcome(plugin.evaluate_pairs(call, sample.pairs.clone()).await),
        Kind::Advantage => outcome(plugin.compute_advantages(call, &sample.sequences).await),
        Kind::Gate => outcome(plugin.review_candidate(call, &sample.candidate).await),
        Kind::Environment => {
            let task = EpisodeTask {
                id: "measure".to_owned(),
                instruction: String::new(),
                payload: "{}".to_owned(),
            };
            let start = plugin.start_episode(call, task, 0).await;
            match start.outcome {
                Ok((episode, _)) => outcome(episode.close().await),
                Err(fault) => outcome(CallResult::<()> {
                    outcome: Err(fault),
                    receipt: start.receipt,
                }),
            }
        }
    }
}

fn outcome<T>(result: CallResult<T>) -> CallOutcome {
    CallOutcome {
        failed: result
            .outcome
            .err()
            .is_some_and(|fault| !fault.is_unsupported()),
        run: Duration::from_micros(result.receipt.wall_us),
        peak_bytes: result.receipt.peak_memory_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grants::Grants;
    use crate::host::PluginHost;
    use crate::measure::BareEngine;
    use crate::options::HostOptions;
    use clawhost_config::{PluginHostConfig, Profile};

    #[tokio::test]
    async fn first_party_losses_stay_within_the_default_limits() {
        let host = PluginHost::new(HostOptions {
            config: PluginHostConfig {
                num_threads: 1,
                max_instances: 2,
                ..PluginHostConfig::default()
            },
            ..HostOptions::default()
        })
        .unwrap();
        let losses: [(&str, &[u8]); 4] = [
            (
                "loss-dpo",
                include_bytes!("../../../../plugins/artifacts/loss-dpo.wasm"),
            ),
            (
                "loss-distill-topk",
                include_bytes!("../../../../plugins/artifacts/loss-distill-topk.wasm"),
            ),
            (
                "loss-cispo",
                include_bytes!("../../../../plugins/artifacts/loss-cispo.wasm"),
            ),
            (
                "loss-ppo-clip",
                include_bytes!("../../../../plugins/artifacts/loss-ppo-clip.wasm"),
            ),
        ];
        for (name, component) in losses {
            let grants = Grants::default();
            let loaded = host.load(name, component, &grants, Profile::Deterministic);
            let plugin = loaded.unwrap();
            let sample = Arc::new(Sample::for_plugin(&plugin).await.unwrap());
            let spread = measure_calls(&plugin, &sample, Callers::OtherThreads, 1, 1).await;
            assert_eq!((spread.calls, spread.failed), (1, 0), "{name}: {spread:?}");
        }
    }

    #[tokio::test]
    async fn measurements_make_all_calls_without_failures() {
        let options = HostOptions {
            config: PluginHostConfig {
                num_threads: 2,
                max_instances: 8,
                ..PluginHostConfig::default()
            },
            ..HostOptions::default()
        };
        let component = crate::embedded_component("judge-next-state").unwrap();
        let host = PluginHost::new(options.clone()).unwrap();
        let plugin = host
            .load("measured", component, &Grants::default(), Profile::Fast)
            .unwrap();
        let sample = Arc::new(Sample::for_plugin(&plugin).await.unwrap());
        for callers in [Callers::OtherThreads, Callers::OnPluginThreads] {
            let spread = measure_calls(&plugin, &sample, callers, 4, 20).await;
            assert_eq!((spread.calls, spread.failed), (20, 0), "{spread:?}");
            assert!(spread.peak_bytes > 0);
        }
        for profile in [Profile::Deterministic, Profile::Fast] {
            let bare = BareEngine::new(component, profile, &options).unwrap();
            let spread = bare.judge_calls(&sample, 4, 20).await;
            assert_eq!((spread.calls, spread.failed), (20, 0), "{spread:?}");
        }
    }

    #[tokio::test]
    async fn a_call_of_a_rust_guest_does_not_grow_its_memory() {
        let options = HostOptions {
            config: PluginHostConfig {
                num_threads: 1,
                max_instances: 2,
                ..PluginHostConfig::default()
            },
            ..HostOptions::default()
        };
        let host = PluginHost::new(options).unwrap();
        for name in ["judge-minimal", "judge-next-state"] {
            let component = crate::embedded_component(name).unwrap();
            let initial = host.inspect(component).unwrap().initial_memory_bytes;
            let plugin = host
                .load(name, component, &Grants::default(), Profile::Deterministic)
                .unwrap();
            let sample = Arc::new(Sample::for_plugin(&plugin).await.unwrap());
            let call = measure_calls(&plugin, &sample, Callers::OtherThreads, 1, 1).await;
            assert_eq!(Some(call.peak_bytes), initial, "{name}");
        }
    }
}
